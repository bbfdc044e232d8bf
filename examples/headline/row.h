// One row of the headline tables: what a report claimed, what stood behind it, and how to run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/pattern.h"
#include "examples/support/progress.h"
#include "kernels/dtype.h"

namespace poolgrad::examples {

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

/// All of them, in the order of the reports.
std::vector<Group> headline_groups();

}  // namespace poolgrad::examples
