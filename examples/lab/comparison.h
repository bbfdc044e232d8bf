// Replays workloads through policies and checks poolgrad's goals.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "allocator/lab/replay/policy.h"
#include "allocator/lab/replay/replay.h"
#include "allocator/lab/replay/workload.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

/// A capacity in bytes, or as a multiple of a workload's lower bound.
struct Capacity {
  std::size_t bytes = 0;
  double factor = 0;

  /// "8GiB" or "1.05x". Throws ValueError that shows the text.
  static Capacity parse(const std::string& text);
  /// The bytes for a workload with this lower bound, in whole pages of 2 MiB.
  std::size_t of(std::size_t lower_bound) const;
  /// In the syntax of parse().
  std::string text() const;
};

struct ComparisonOptions {
  const LatencyTable* latency = nullptr;  // nullptr: "unit"
  Capacity tight{.factor = 1.05};         // capacity of the out-of-memory test
  bool smallest = true;                   // find the smallest capacity of each, by bisection
  std::vector<Capacity> curve = {};       // capacities for device time, besides unlimited
  unsigned threads = 2;
};

/// One policy on one workload.
struct Measurement {
  ReplayResult unlimited;
  ReplayResult tight;
  std::optional<std::size_t> smallest;  // bytes; none without a search, or if no capacity suffices
  std::vector<ReplayResult> curve;      // at each of ComparisonOptions::curve

  /// Whether an unlimited replay reached the end.
  bool served() const { return !unlimited.out_of_memory; }
};

struct Comparison {
  struct Row {
    std::string name;
    std::string description;
    std::uint64_t operations = 0;
    std::size_t lower_bound = 0;  // in whole pages of 2 MiB: the minimum of any policy
    std::vector<Measurement> policies;
    bool zoo = true;  // of the zoo or the recordings; the goals count these alone
  };

  std::vector<const PolicyEntry*> policies;
  ComparisonOptions options;
  std::vector<Row> rows;
  double seconds = 0;

  /// smallest / lower bound.
  std::optional<double> factor(std::size_t row, std::size_t policy) const;
  /// The rows of the zoo, or those of other files.
  Comparison part(bool zoo) const;
};

/// Called after each replayed pair, from any thread, but never concurrently.
using ComparisonProgress = std::function<void(std::size_t done, std::size_t all, const std::string& pair)>;

/// Replays all pairs on `options.threads` threads, which do not affect the result. The first exception ends the
/// comparison.
Comparison compare(const std::vector<Workload>& workloads, const std::vector<const PolicyEntry*>& policies,
                   const ComparisonOptions& options, const ComparisonProgress& progress = {});

/// The results of one workload as text: a row for each policy. A header that begins with '<' is of text.
struct PolicyTable {
  std::vector<std::string> headers;
  std::vector<std::vector<std::string>> rows;
};
PolicyTable policy_table(const Comparison& comparison, std::size_t row);

/// "1.050x"; "-" for none.
std::string factor_text(std::optional<double> factor);

Json result_json(const ReplayResult& result);

/// The position of an out-of-memory failure: "step 3, op 1,204"; "" without one.
std::string describe_failure(const ReplayResult& result);

/// Results of a policy over all workloads; averages cover those it serves to the end.
struct Summary {
  std::size_t served = 0;
  double utilisation = 0, worst_utilisation = 1;  // average and least, without limit
  std::optional<double> limited_utilisation;      // average at the last capacity of the curve, of those served there
  std::optional<double> factor;                   // average, of the smallest capacity
  double worst_factor = 0;
  std::string worst_utilisation_at, worst_factor_at;
  std::size_t ran_out = 0;      // workloads that failed at the tight capacity
  DeviceCounters counters;      // sums
  double modelled_ns = 0;       // device time of all
  double ns_per_operation = 0;  // wall clock
};

Summary summary_of(const Comparison& comparison, std::size_t policy);

/// A policy at one capacity: the number of workloads served, and their device time.
struct CurvePoint {
  std::size_t served = 0;
  double device_ns = 0;
};

/// For each capacity of the curve, then unlimited.
std::vector<CurvePoint> curve_of(const Comparison& comparison, std::size_t policy);

/// A goal and its result.
struct Goal {
  std::string name;
  std::string promise;
  std::string found;
  bool met = false;
};

/// The goals that apply to the policies of this comparison; none without a row of the zoo.
std::vector<Goal> goals_of(const Comparison& comparison);

}  // namespace poolgrad::examples
