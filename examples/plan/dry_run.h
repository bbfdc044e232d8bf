// Training without arithmetic: the steps of examples/support/train.h on a simulated device, which is asked for every
// byte that the real one would be asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/trace/trace.h"
#include "examples/support/train.h"

namespace poolgrad::examples {

/// What a run needs. Bytes are those of the pool's statistics.
struct DryRun {
  bool fits = true;
  std::string refusal;  // where it does not fit: what was asked for last, and all else the pool has to say
  std::uint64_t peak_live = 0, peak_reserved = 0;
  std::array<std::uint64_t, category_count> peak_by_category{};
  std::int64_t parameters = 0;
  double step_seconds = 0;  // of the last step by the simulated device's clock, see kernels/dispatch.h
};

/// More than any device has.
inline constexpr std::size_t no_limit = std::size_t{768} << 30;

/// How much of a run is gone through.
enum class Through : std::uint8_t {
  steps,  // two steps: the first makes the optimiser's state, the second is like all that follow
  run     // all of ./run train: steps and validations until they repeat, the last validation, a sample
};

/// Simulates a run as `options` say (but for their text) in `memory` bytes of a device that is like this machine's CPU,
/// or, on cuda, like a GPU. Its peaks equal to the byte those of `./run train --budget MEMORY`. Through::run takes
/// steps until two in a row, with a validation between them, leave every block of the pool in the same place: later
/// steps then do the same. Throws ValueError for options that a run refuses; running out of memory is an answer.
DryRun dry_run(const TrainOptions& options, std::size_t memory, Through through = Through::run);

/// The second step of such a run, as a trace of its requests. Throws OutOfMemoryError where it does not fit.
Trace trace_of_step(const TrainOptions& options, std::size_t memory);

/// The least budget of more than `too_small` bytes, in whole MiB and to a 64th of itself, in which a run trains as
/// `options` say (but for their budget). Throws what the options are refused with; 0 where there is none.
std::size_t smallest_budget(TrainOptions options, std::size_t too_small);

struct Longest {
  std::int64_t context = 0;  // 0: not even the shortest fits
  DryRun run;                // at that context
};

/// Finds the longest contexts, of at most `most` tokens, that train as `options` say.
class ContextSearch {
 public:
  ContextSearch(const TrainOptions& options, std::int64_t most) : options_(options), most_(most) {}

  /// The longest whose whole run fits in `memory` bytes, to a thousandth of itself: a guess, then galloping and
  /// bisection between contexts whose first two steps fit and do not; between whole runs where those need more. The
  /// guess is where two short contexts lead to, and, once asked, where the answers to earlier questions do.
  Longest in(std::size_t memory);

 private:
  struct Answer {
    double memory, context;
  };
  double short_runs(std::size_t memory) const;
  /// From a context that is thought to be near the end. Whether the end was found rather than a limit: `bounded`.
  Longest search(std::int64_t guess, std::size_t memory, Through through, bool& bounded);

  TrainOptions options_;
  std::int64_t most_;
  std::vector<Answer> answers_;
};

}  // namespace poolgrad::examples
