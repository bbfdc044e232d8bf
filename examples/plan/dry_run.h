// Training without arithmetic: runs the steps of examples/support/train.h on a simulated device, with exactly the
// allocations of the real one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "allocator/trace/trace.h"
#include "examples/support/train.h"

namespace poolgrad::examples {

/// The requirements of a run. Bytes are from the pool's statistics.
struct DryRun {
  bool fits = true;
  std::string refusal;  // if it does not fit: the failed request and the pool's report
  std::uint64_t peak_live = 0, peak_reserved = 0;
  std::array<std::uint64_t, category_count> peak_by_category{};
  std::int64_t parameters = 0;
  double step_seconds = 0;  // of the last step, on the simulated device's clock, see kernels/dispatch.h
};

/// More than any device has.
inline constexpr std::size_t no_limit = std::size_t{768} << 30;

/// The part of a run to simulate.
enum class Through : std::uint8_t {
  steps,  // two steps: the first creates the optimizer state, all later ones equal the second
  run     // all of ./run train: steps and validations until they repeat, the last validation, a sample
};

/// Simulates a run with `options` (except their text) in `memory` bytes of a device like this machine's CPU, or, on
/// cuda, like a GPU. Its peaks equal those of `./run train --budget MEMORY` to the byte. Through::run repeats steps
/// until two in a row, with a validation between them, leave every block of the pool in the same place; later steps
/// then repeat. Stages of a context warm-up take at most eight steps each. Throws ValueError for invalid options; out
/// of memory is a result.
DryRun dry_run(const TrainOptions& options, std::size_t memory, Through through = Through::run);

/// A trace of the second step of such a run. Throws OutOfMemoryError if it does not fit.
Trace trace_of_step(const TrainOptions& options, std::size_t memory);

/// The smallest sufficient budget above `too_small` bytes for `options` (except their budget), in whole MiB and within
/// a 64th; 0 if there is none. Throws the errors of the options.
std::size_t smallest_budget(TrainOptions options, std::size_t too_small);

struct Longest {
  std::int64_t context = 0;  // 0: not even the shortest fits
  DryRun run;                // at that context
};

/// Finds the longest contexts, up to `most` tokens, that train with `options`.
class ContextSearch {
 public:
  ContextSearch(const TrainOptions& options, std::int64_t most) : options_(options), most_(most) {}

  /// The longest context whose whole run fits in `memory` bytes, within a thousandth. Starts from a guess, gallops, and
  /// bisects by the first two steps, or by whole runs if those need more. Guesses extrapolate from two short contexts,
  /// later from earlier answers. The same memory has one answer.
  Longest in(std::size_t memory);

 private:
  struct Answer {
    double memory, context;
  };
  double short_runs(std::size_t memory) const;
  /// Searches from a guess. `bounded` says whether the result is the limit of memory rather than of the search.
  Longest search(std::int64_t guess, std::size_t memory, Through through, bool& bounded);

  TrainOptions options_;
  std::int64_t most_;
  std::vector<Answer> answers_;           // those at the limit of memory
  std::map<std::size_t, Longest> found_;  // by memory
};

}  // namespace poolgrad::examples
