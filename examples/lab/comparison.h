// Workloads through policies: what each needs, and whether poolgrad keeps its promises.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "allocator/replay/policy.h"
#include "allocator/replay/replay.h"
#include "allocator/replay/workload.h"

namespace poolgrad::examples {

/// A capacity in bytes, or as a multiple of a workload's lower bound.
struct Capacity {
  std::size_t bytes = 0;
  double factor = 0;

  /// "8GiB" or "1.05x". Throws ValueError that shows the text.
  static Capacity parse(const std::string& text);
  /// In whole pages of 2 MiB, for a workload of this lower bound.
  std::size_t of(std::size_t lower_bound) const;
  /// As parse() reads it, for people.
  std::string text() const;
};

struct ComparisonOptions {
  const LatencyTable* latency = nullptr;  // nullptr: "unit"
  Capacity tight{.factor = 1.05};         // where running out of memory is looked for
  bool smallest = true;                   // find the smallest capacity of each, by bisection
  std::vector<Capacity> curve = {};       // where device time is measured, beside without limit
  unsigned threads = 2;
};

/// One policy on one workload.
struct Measurement {
  ReplayResult unlimited;
  ReplayResult tight;
  std::optional<std::size_t> smallest;  // bytes; nothing if not looked for, or if no capacity suffices
  std::vector<ReplayResult> curve;      // at each of ComparisonOptions::curve

  /// To its end, where nothing limits the policy but itself.
  bool served() const { return !unlimited.out_of_memory; }
};

struct Comparison {
  struct Row {
    std::string name;
    std::string description;
    std::uint64_t operations = 0;
    std::size_t lower_bound = 0;  // in whole pages of 2 MiB: no policy can hold less
    std::vector<Measurement> policies;
  };

  std::vector<const PolicyEntry*> policies;
  ComparisonOptions options;
  std::vector<Row> rows;
  double seconds = 0;

  /// smallest / lower bound.
  std::optional<double> factor(std::size_t row, std::size_t policy) const;
};

/// Called after each replayed pair, from any thread but one at a time.
using ComparisonProgress = std::function<void(std::size_t done, std::size_t all, const std::string& pair)>;

/// Replays all pairs on `options.threads` threads; the result does not depend on their number. The first exception of
/// any pair ends it.
Comparison compare(const std::vector<Workload>& workloads, const std::vector<const PolicyEntry*>& policies,
                   const ComparisonOptions& options, const ComparisonProgress& progress = {});

/// Where a replay ran out of memory: "step 3, op 1,204"; "" if it did not.
std::string describe_failure(const ReplayResult& result);

/// All workloads through one policy: averages are of those that it serves to their end.
struct Summary {
  std::size_t served = 0;
  double utilisation = 0, worst_utilisation = 1;  // average and least, without limit
  std::optional<double> factor;                   // average, of the smallest capacity
  double worst_factor = 0;
  std::string worst_utilisation_at, worst_factor_at;
  std::size_t ran_out = 0;      // workloads that did not fit into the tight capacity
  DeviceCounters counters;      // sums
  double modelled_ns = 0;       // device time of all
  double ns_per_operation = 0;  // wall clock
};

Summary summary_of(const Comparison& comparison, std::size_t policy);

/// What tightness costs: how many workloads a policy serves in a capacity, and the device time of those.
struct CurvePoint {
  std::size_t served = 0;
  double device_ns = 0;
};

/// At each capacity of the curve, and without limit last.
std::vector<CurvePoint> curve_of(const Comparison& comparison, std::size_t policy);

/// A promise, and what was found.
struct Goal {
  std::string name;
  std::string promise;
  std::string found;
  bool met = false;
  bool timing = false;  // of this machine at this moment
};

/// The promises that this comparison can tell about: those of policies that took part.
std::vector<Goal> goals_of(const Comparison& comparison);

}  // namespace poolgrad::examples
