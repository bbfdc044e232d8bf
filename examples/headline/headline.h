// The headline program: runs every row of the original reports that this machine can run, and shows it beside the
// original claim.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "allocator/device.h"
#include "attention/pattern/pattern.h"
#include "examples/support/console.h"
#include "kernels/dtype.h"

namespace poolgrad::examples {

struct HeadlineOptions {
  std::vector<std::string> rows = {};  // prefixes of rows' or groups' names; empty: all
  std::string device = "cpu";
  std::string dtype = "f16";
  double row_seconds = 60;
  double seconds = 30;  // for each streamed row
  std::uint64_t seed = 1;
  bool list = false;
  std::string json = {};  // file to write; "-" for standard output
};

/// Reads the command line. Returns the exit code if the program must end at once (--help, an error), else -1.
int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& options);

/// Runs and prints. Throws ValueError if no row matches or a number is out of range.
void run_headline(const HeadlineOptions& options, std::ostream& out, bool live);

/// Figures of the original report: milliseconds of one call, peak bytes.
struct Theirs {
  std::optional<double> milliseconds = {};
  std::optional<double> bytes = {};
  bool out_of_memory = false;
};

enum class Work {
  forward,             // q, k, v and out live
  forward_over_query,  // out is written over q
  training,            // forward and backward; dq is written over out
  module,              // forward in f32
  multihead,           // forward of the multi-head module around the pattern, in f32
  shapes,              // forward for five batches and lengths in turn
  shapes_released,     // the same; every cached page is released after each
  stream               // forward for blocks of a sequence larger than memory, for --seconds
};

/// Attention of one shape and pattern.
struct Row {
  std::string id;     // "bsr-786432": what --rows matches
  std::string label;  // short description of the run
  Theirs theirs;
  attention::Pattern pattern;
  std::int64_t tokens = 0;
  Work work = Work::forward;
  std::int64_t batch = 1, heads = 8, head_dim = 64;
  int ring = 1;            // ranks that share the sequence, all on this device
  std::int64_t block = 0;  // of a stream: tokens that live at once

  std::int64_t at_once() const { return block ? block : tokens; }
};

/// Rows of one table of one report.
struct Group {
  std::string id;  // "extreme"
  std::string title;
  std::string behind;  // the original's actual measurement, and the computation here
  std::vector<Row> rows = {};
};

/// The tables of the original reports, in their order.
std::vector<Group> headline_groups();

/// Settings common to all rows, and results of earlier rows.
struct Bench {
  Device device = cpu;
  DType dtype = DType::f16;
  double row_seconds = 60, stream_seconds = 30;
  std::uint64_t seed = 1;
  std::size_t memory = 0;  // in bytes; skips rows that need more
  double rate = 0;         // operations per second of the best row so far; 0: none yet
};

/// Runs a row within 8 GiB, the memory of the original card. Returns the entry of `--json`. Milliseconds are the median
/// of calls or blocks, operations those of a call. The peak includes the inputs; formula_bytes must be live at once.
/// Figures that were not measured are null, and the remark gives the reason.
Json measure(const Row& row, Bench& bench);

}  // namespace poolgrad::examples
