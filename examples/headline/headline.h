// The headline program: runs every row of the original reports that this machine can run, and shows it beside the
// original claim.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/pattern/pattern.h"
#include "examples/support/console.h"
#include "kernels/dtype.h"
#include "tensor/tensor.h"

namespace poolgrad::examples {

struct HeadlineOptions {
  std::vector<std::string> rows = {};  // prefixes of rows' or groups' names; empty: all
  std::string device = "cpu";
  std::string dtype = "f16";
  double row_seconds = 60;
  double seconds = 30;      // for each streamed row
  std::string memory = {};  // limit of the rows' memory; empty: nine tenths of the free memory
  std::uint64_t seed = 1;
  bool list = false;
  std::string json = {}, html = {};  // files to write; "-" for standard output
  bool quiet = false;
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

/// The result of a row on this machine. Absent numbers were not measured; `remark` gives the reason.
struct Outcome {
  std::optional<double> milliseconds = {};  // of one call, the median
  int calls = 0;
  double operations = 0;             // floating-point operations of a call, counted on visited pairs
  std::optional<double> peak_bytes;  // peak allocated bytes, inputs included
  std::optional<double> reserved_bytes;
  std::int64_t tokens = 0;                 // live at once; 0: those of the row
  double formula_bytes = 0;                // theoretical bytes of the tensors
  std::optional<double> worst_error = {};  // of rows checked against the definition in f64
  bool simulated = false;                  // memory from a sim device, without arithmetic
  std::string remark;
};

/// Copies the pool's peaks of allocated and reserved bytes into the outcome.
void take_peaks(const CachingAllocator& pool, Outcome& outcome);
/// The upper median; needs at least one value.
double median(std::vector<double> values);
/// Calls work() and waits for the device.
template <class Work>
double seconds_of(Device device, const Work& work) {
  const Stopwatch watch;
  work();
  synchronize(device);
  return watch.seconds();
}

/// Settings common to all rows, and results of earlier rows.
struct Bench {
  Device device;
  DType dtype = DType::f16;
  double row_seconds = 60;     // skip rows that would take longer
  double stream_seconds = 30;  // time for each streamed row
  std::uint64_t seed = 1;
  std::size_t memory = 0;  // limit of the rows' memory in bytes
  double rate = 0;         // operations per second of the best row so far; 0: none yet
  Progress* progress = nullptr;
};

struct Row {
  std::string id;     // "bsr-786432": what --rows matches
  std::string label;  // short description of the run
  std::int64_t batch = 1, tokens = 0;
  Theirs theirs;
  std::function<Outcome(Bench&)> run;
};

/// Rows of one table of one report.
struct Group {
  std::string id;  // "extreme"
  std::string title;
  std::string behind;  // the original's actual measurement, and the computation here
  std::vector<Row> rows;
};

/// The tables of the original reports, in their order.
std::vector<Group> headline_groups();

enum class Work {
  forward,             // q, k, v and out live
  forward_over_query,  // out is written over q
  training             // forward and backward; dq is written over out
};

/// Attention of one shape and pattern.
struct AttentionWork {
  Work work = Work::forward;
  std::int64_t batch = 1, tokens = 1, heads = 8, head_dim = 64;
  attention::Pattern pattern = attention::Pattern::dense();
  int ring = 1;             // ranks that share the sequence, all on this device
  std::string budget = {};  // hard limit of the pool; empty: none
};

/// Operations of a call: 4 D for each visited pair forward, 3.5 times that with the backward.
double operations_of(const AttentionWork& work);
/// Bytes of the tensors that must be live at once, docs/reference/attention.md.
double formula_bytes(const AttentionWork& work, DType dtype);

/// A row that repeats the work while time permits, at least once. If the bytes do not fit the machine, a sim device
/// counts them.
Row attention_row(std::string id, std::string label, const AttentionWork& work, const Theirs& theirs);

/// One f32 call of attend() at 8 heads of 64, or of the multi-head module around it: the median of nine.
Outcome run_module(const attention::Pattern& pattern, std::int64_t tokens, bool multihead, Bench& bench);
/// The longest sequence in 8 GiB on sim:index, whose pool has these options: searches in steps of 512 tokens.
Outcome longest_sequence(const AttentionWork& work, int index, const char* options, Bench& bench);
/// Shapes that change between calls, with the pool and with memory that is released after every call.
Outcome run_shapes(Bench& bench);

struct StreamedWork {
  std::int64_t tokens = 0;  // of the whole sequence
  std::int64_t chunk = 4096;
  int ring = 1;  // chunks that attend to each other: as many as the longest segment covers
  std::int64_t heads = 8, head_dim = 64;
  std::vector<std::int64_t> segment_lengths, dilation_rates;
  attention::DilatedMode mode = attention::DilatedMode::longnet;
};
/// Computes blocks of ring * chunk tokens from the start until all are done or bench.stream_seconds have passed. Then
/// checks random rows against the definition in f64, with their keys generated again. The outcome's milliseconds are
/// those of one block. The remark has tokens, tokens per second, the worst error, and the extrapolated time for all
/// tokens, marked as such.
Outcome stream(const StreamedWork& work, Bench& bench);

}  // namespace poolgrad::examples
