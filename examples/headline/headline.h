// The headline program: every row of the original reports that this machine can run, beside what they claimed.
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
  std::string memory = {};  // that rows may use; empty: nine tenths of what is free
  std::uint64_t seed = 1;
  bool list = false;
  std::string json = {}, html = {};  // files to write; "-" for standard output
  bool quiet = false;
};

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& options);

/// Runs and prints. Throws ValueError where no row has such a name or a number is out of range.
void run_headline(const HeadlineOptions& options, std::ostream& out, bool live);

/// What the original reported. Milliseconds of one call, bytes at the peak.
struct Theirs {
  std::optional<double> milliseconds = {};
  std::optional<double> bytes = {};
  bool out_of_memory = false;
};

/// What a row gave here. Absent numbers were not measured; `remark` says why.
struct Outcome {
  std::optional<double> milliseconds = {};  // of one call, the median
  int calls = 0;
  double operations = 0;             // floating-point operations of a call, counted on the pairs visited
  std::optional<double> peak_bytes;  // handed out at most, inputs included
  std::optional<double> reserved_bytes;
  std::int64_t tokens = 0;                 // that lived at once; 0: those of the row
  double formula_bytes = 0;                // what the tensors need
  std::optional<double> worst_error = {};  // of rows checked against the definition in f64
  bool simulated = false;                  // memory by a sim device, no arithmetic
  std::string remark;
};

/// What the pool has handed out and held at most, into the outcome.
void take_peaks(const CachingAllocator& pool, Outcome& outcome);
/// The upper one of an even number; of at least one value.
double median(std::vector<double> values);
/// Calls work() and waits until the device has done it.
template <class Work>
double seconds_of(Device device, const Work& work) {
  const Stopwatch watch;
  work();
  synchronize(device);
  return watch.seconds();
}

/// What every row is run with, and what earlier rows have taught.
struct Bench {
  Device device;
  DType dtype = DType::f16;
  double row_seconds = 60;     // rows that would take longer are left out
  double stream_seconds = 30;  // time for each streamed row
  std::uint64_t seed = 1;
  std::size_t memory = 0;  // bytes that rows may use
  double rate = 0;         // operations per second of the best row so far; 0: none yet
  Progress* progress = nullptr;
};

struct Row {
  std::string id;     // "bsr-786432": what --rows matches
  std::string label;  // what is run, in a few words
  std::int64_t batch = 1, tokens = 0;
  Theirs theirs;
  std::function<Outcome(Bench&)> run;
};

/// Rows of one table of one report.
struct Group {
  std::string id;  // "extreme"
  std::string title;
  std::string behind;  // what the original really measured, and what is computed here instead
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
  int ring = 1;             // ranks that share the sequence, on this one device
  std::string budget = {};  // hard limit of the pool; empty: none
};

/// Operations of a call: 4 D for each visited pair forward, 3.5 times that with the backward.
double operations_of(const AttentionWork& work);
/// Bytes of the tensors that must live at once, docs/attention.md.
double formula_bytes(const AttentionWork& work, DType dtype);

/// A row that runs it as often as it is worth, at least once. Where the bytes do not fit the machine a sim device
/// counts them.
Row attention_row(std::string id, std::string label, const AttentionWork& work, const Theirs& theirs);

/// A call in f32 of attend() at 8 heads of 64, or of the multi-head shell around it: the median of nine.
Outcome run_module(const attention::Pattern& pattern, std::int64_t tokens, bool multihead, Bench& bench);
/// The longest sequence in 8 GiB on sim:index, whose pool has these options: a search in steps of 512 tokens.
Outcome longest_sequence(const AttentionWork& work, int index, const char* options, Bench& bench);
/// Shapes that change from call to call, with the pool and with memory that goes back after every call.
Outcome run_shapes(Bench& bench);

struct StreamedWork {
  std::int64_t tokens = 0;  // of the whole sequence
  std::int64_t chunk = 4096;
  int ring = 1;  // chunks that attend to each other: as many as the longest segment covers
  std::int64_t heads = 8, head_dim = 64;
  std::vector<std::int64_t> segment_lengths, dilation_rates;
  attention::DilatedMode mode = attention::DilatedMode::longnet;
};
/// Computes blocks of ring * chunk tokens from the first one on, until all are done or bench.stream_seconds have
/// passed; then checks random rows against the definition in f64, with their keys made anew. The outcome's milliseconds
/// are those of one block; the remark has tokens, tokens per second, the worst error, and the time for all of them,
/// marked as an extrapolation.
Outcome stream(const StreamedWork& work, Bench& bench);

}  // namespace poolgrad::examples
