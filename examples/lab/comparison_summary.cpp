// Averages, worst cases and promises of a comparison.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "examples/lab/comparison.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

namespace {

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

std::size_t find_policy(const Comparison& comparison, std::string_view name) {
  const auto found =
      std::ranges::find_if(comparison.policies, [&](const PolicyEntry* policy) { return policy->name == name; });
  return found == comparison.policies.end() ? none : static_cast<std::size_t>(found - comparison.policies.begin());
}

Goal at_most(std::string name, std::string promise, std::string unit, double limit, double value, std::string where) {
  return {std::move(name), std::move(promise), fmt::format("{:.3f}{}{}", value, unit, where), value <= limit};
}

/// The workload where `policy` is furthest above the best other online policy, and by what factor.
std::optional<Goal> against_the_others(const Comparison& comparison, std::size_t policy) {
  double worst = 0;
  std::string where;
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) {
    double best = std::numeric_limits<double>::infinity();
    std::string_view by;
    for (std::size_t other = 0; other < comparison.policies.size(); ++other)
      if (other != policy && comparison.policies[other]->online && comparison.factor(row, other) < best) {
        best = comparison.factor(row, other);
        by = comparison.policies[other]->name;
      }
    if (by.empty()) return std::nullopt;
    const double ratio = comparison.factor(row, policy) / best;
    if (ratio > worst) {
      worst = ratio;
      where = fmt::format(" x at {} ({})", comparison.rows[row].name, by);
    }
  }
  return at_most("never behind the best other", "smallest capacity <= 1.01 x that of any other online policy", "", 1.01,
                 worst, where);
}

}  // namespace

Summary summary_of(const Comparison& comparison, std::size_t policy) {
  Summary result;
  double operations = 0, seconds = 0;
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) {
    const Measurement& measurement = comparison.rows[row].policies[policy];
    const double utilisation = measurement.unlimited.utilisation();
    result.utilisation += utilisation;
    if (row == 0 || utilisation < result.worst_utilisation) {
      result.worst_utilisation = utilisation;
      result.worst_utilisation_at = comparison.rows[row].name;
    }
    const double factor = comparison.factor(row, policy);
    result.factor += factor;
    if (row == 0 || factor > result.worst_factor) {
      result.worst_factor = factor;
      result.worst_factor_at = comparison.rows[row].name;
    }
    result.ran_out += measurement.tight.out_of_memory.has_value();
    const DeviceCounters& counters = measurement.unlimited.counters;
    result.counters.allocations += counters.allocations;
    result.counters.frees += counters.frees;
    result.counters.events += counters.events;
    result.counters.waits += counters.waits;
    result.counters.synchronizations += counters.synchronizations;
    result.counters.nanoseconds += counters.nanoseconds;
    result.modelled_ns += measurement.unlimited.modelled_ns;
    operations += static_cast<double>(measurement.unlimited.operations);
    seconds += measurement.unlimited.seconds;
  }
  const double rows = static_cast<double>(std::max<std::size_t>(1, comparison.rows.size()));
  result.utilisation /= rows;
  result.factor /= rows;
  result.ns_per_operation = operations > 0 ? seconds / operations * 1e9 : 0;
  return result;
}

std::vector<CurvePoint> curve_of(const Comparison& comparison, std::size_t policy) {
  std::vector<CurvePoint> points(comparison.options.curve.size() + 1);
  for (const Comparison::Row& row : comparison.rows) {
    const Measurement& measurement = row.policies[policy];
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ReplayResult& result = i < measurement.curve.size() ? measurement.curve[i] : measurement.unlimited;
      if (result.out_of_memory) continue;
      ++points[i].served;
      points[i].device_ns += result.modelled_ns;
    }
  }
  return points;
}

std::vector<Goal> goals_of(const Comparison& comparison) {
  std::vector<Goal> goals;
  if (comparison.rows.empty()) return goals;
  const bool capacities = comparison.rows[0].policies.empty() || comparison.rows[0].policies[0].smallest.has_value();
  if (const std::size_t policy = find_policy(comparison, "poolgrad"); policy != none) {
    const Summary own = summary_of(comparison, policy);
    goals.push_back(
        {"utilisation, average", ">= 95 %", fmt::format("{:.1f} %", 100 * own.utilisation), own.utilisation >= 0.95});
    goals.push_back({"utilisation, worst", ">= 90 %",
                     fmt::format("{:.1f} % at {}", 100 * own.worst_utilisation, own.worst_utilisation_at),
                     own.worst_utilisation >= 0.90});
    if (capacities) {
      goals.push_back(at_most("smallest capacity, average", "<= 1.05 x lower bound", " x", 1.05, own.factor, ""));
      if (const auto goal = against_the_others(comparison, policy)) goals.push_back(*goal);
    }
    if (const std::size_t peer = find_policy(comparison, "pytorch-expandable"); peer != none) {
      const double most = summary_of(comparison, peer).modelled_ns;
      goals.push_back({"device time", fmt::format("<= {} of pytorch-expandable", format_time(most)),
                       format_time(own.modelled_ns), own.modelled_ns <= most});
    }
  }
  double nanoseconds = 0;
  std::size_t slowest = 0;
  for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) {
    const double own = summary_of(comparison, policy).ns_per_operation;
    if (own > nanoseconds) slowest = policy;
    nanoseconds = std::max(nanoseconds, own);
  }
  if (!comparison.policies.empty()) {
    goals.push_back({"replay, slowest policy", "<= 100 ns per operation",
                     fmt::format("{:.0f} ns with {}", nanoseconds, comparison.policies[slowest]->name),
                     nanoseconds <= 100, true});
  }
  if (const std::size_t policy = find_policy(comparison, "planned"); policy != none && capacities) {
    const Summary planned = summary_of(comparison, policy);
    goals.push_back(at_most("planned, worst", "<= 1.02 x lower bound", " x", 1.02, planned.worst_factor,
                            " at " + planned.worst_factor_at));
  }
  return goals;
}

}  // namespace poolgrad::examples
