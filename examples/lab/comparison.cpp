#include "examples/lab/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/support/console.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

namespace {

Measurement measure(const Workload& workload, const PolicyEntry& policy, std::size_t lower_bound,
                    const ComparisonOptions& options) {
  Measurement result;
  result.unlimited = replay(workload, policy, {.latency = options.latency});
  result.tight = replay(workload, policy, {.capacity = options.tight.of(lower_bound), .latency = options.latency});
  if (options.smallest) result.smallest = smallest_capacity(workload, policy, {.latency = options.latency});
  for (const Capacity& capacity : options.curve)
    result.curve.push_back(
        replay(workload, policy, {.capacity = capacity.of(lower_bound), .latency = options.latency}));
  return result;
}

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::size_t find_policy(const Comparison& comparison, std::string_view name) {
  const auto found =
      std::ranges::find_if(comparison.policies, [&](const PolicyEntry* policy) { return policy->name == name; });
  return found == comparison.policies.end() ? none : static_cast<std::size_t>(found - comparison.policies.begin());
}

Goal at_most(std::string name, std::string promise, std::string unit, double limit, double value, std::string where) {
  return {std::move(name), std::move(promise), fmt::format("{:.3f}{}{}", value, unit, where), value <= limit};
}

/// The workload with the largest factor of `policy` over the best other online policy, and that factor.
std::optional<Goal> against_the_others(const Comparison& comparison, std::size_t policy) {
  double worst = 0;
  std::string where;
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) {
    double best = infinity;
    std::string_view by;
    for (std::size_t other = 0; other < comparison.policies.size(); ++other)
      if (const auto factor = comparison.factor(row, other);
          other != policy && comparison.policies[other]->online && factor && *factor < best) {
        best = *factor;
        by = comparison.policies[other]->name;
      }
    if (by.empty()) continue;
    const double ratio = comparison.factor(row, policy).value_or(infinity) / best;
    if (ratio > worst) {
      worst = ratio;
      where = fmt::format(" x at {} ({})", comparison.rows[row].name, by);
    }
  }
  if (where.empty()) return std::nullopt;
  return at_most("never behind the best other", "smallest capacity <= 1.01 x that of any other online policy", "", 1.01,
                 worst, where);
}

}  // namespace

Capacity Capacity::parse(const std::string& text) {
  if (!text.ends_with('x')) return {.bytes = of_option("--capacity", [&] { return parse_bytes(text); })};
  const auto factor = number_in<double>(std::string_view(text).substr(0, text.size() - 1));
  if (!factor || !(*factor > 0) || *factor > 1e6)
    throw ValueError("[lab] a capacity is a size such as 8GiB or a multiple of the lower bound such as 1.05x, but is " +
                     printable(text));
  return {.factor = *factor};
}

std::size_t Capacity::of(std::size_t lower_bound) const {
  if (bytes > 0) return bytes;
  return static_cast<std::size_t>(factor * static_cast<double>(lower_bound)) / ModelDevice::page * ModelDevice::page;
}

std::string Capacity::text() const { return bytes > 0 ? format_bytes(bytes) : fmt::format("{:g}x", factor); }

PolicyTable policy_table(const Comparison& comparison, std::size_t row) {
  PolicyTable table{{"<policy", "peak reserved", "utilisation", "smallest capacity", "x bound", "device calls",
                     "events", "waits", "device time", "<first OOM at " + comparison.options.tight.text()},
                    {}};
  for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) {
    const Measurement& m = comparison.rows[row].policies[policy];
    const DeviceCounters& counters = m.unlimited.counters;
    table.rows.push_back({std::string(comparison.policies[policy]->name), format_bytes(m.unlimited.peak_reserved),
                          m.served() ? format_percent(m.unlimited.utilisation()) : "-",
                          m.smallest ? format_bytes(*m.smallest) : "-", factor_text(comparison.factor(row, policy)),
                          format_integer(counters.allocations + counters.frees), format_integer(counters.events),
                          format_integer(counters.waits), format_time(m.unlimited.modelled_ns),
                          describe_failure(m.tight)});
  }
  return table;
}

std::string factor_text(std::optional<double> factor) { return factor ? fmt::format("{:.3f}x", *factor) : "-"; }

Json result_json(const ReplayResult& r) {
  Json json{{"policy", r.policy},
            {"workload", r.workload},
            {"capacity", r.capacity},
            {"lower_bound", r.lower_bound},
            {"peak_reserved", r.peak_reserved},
            {"peak_active", r.peak_active},
            {"peak_requested", r.peak_requested},
            {"utilisation", r.utilisation()},
            {"operations", r.operations},
            {"device_allocations", r.counters.allocations},
            {"device_frees", r.counters.frees},
            {"events", r.counters.events},
            {"waits", r.counters.waits},
            {"synchronizations", r.counters.synchronizations},
            {"modelled_ns", r.modelled_ns},
            {"seconds", r.seconds},
            {"out_of_memory", nullptr}};
  if (r.out_of_memory) json["out_of_memory"] = {{"operation", *r.out_of_memory}};
  if (r.out_of_memory_step) json["out_of_memory"]["step"] = *r.out_of_memory_step;
  return json;
}

std::string describe_failure(const ReplayResult& result) {
  if (!result.out_of_memory) return "";
  const std::string operation = "op " + format_integer(*result.out_of_memory);
  return result.out_of_memory_step ? fmt::format("step {}, {}", *result.out_of_memory_step, operation) : operation;
}

std::optional<double> Comparison::factor(std::size_t row, std::size_t policy) const {
  const std::optional<std::size_t>& smallest = rows[row].policies[policy].smallest;
  if (!smallest) return std::nullopt;
  return static_cast<double>(*smallest) / static_cast<double>(rows[row].lower_bound);
}

Comparison Comparison::part(bool zoo) const {
  Comparison part = *this;
  std::erase_if(part.rows, [&](const Row& row) { return row.zoo != zoo; });
  return part;
}

Comparison compare(const std::vector<Workload>& workloads, const std::vector<const PolicyEntry*>& policies,
                   const ComparisonOptions& options, const ComparisonProgress& progress) {
  const Stopwatch watch;
  Comparison result;
  result.policies = policies;
  result.options = options;
  for (const Workload& workload : workloads)
    result.rows.push_back({.name = workload.name,
                           .description = workload.description,
                           .operations = workload.operations.size(),
                           .lower_bound = std::max(workload.lower_bound(), ModelDevice::page),
                           .policies = std::vector<Measurement>(policies.size())});

  const std::size_t pairs = workloads.size() * policies.size();
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::size_t done = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t pair = next++; pair < pairs; pair = next++) {
      const std::size_t w = pair / policies.size(), p = pair % policies.size();
      try {
        Comparison::Row& row = result.rows[w];
        row.policies[p] = measure(workloads[w], *policies[p], row.lower_bound, options);
        const std::lock_guard lock(mutex);
        if (progress) progress(++done, pairs, fmt::format("{} with {}", workloads[w].name, policies[p]->name));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = pairs;
      }
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < std::min<std::size_t>(std::max(options.threads, 1u), pairs); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
  result.seconds = watch.seconds();
  return result;
}

Summary summary_of(const Comparison& comparison, std::size_t policy) {
  Summary result;
  double operations = 0, seconds = 0, utilisations = 0, factors = 0, limited = 0;
  std::size_t sized = 0, served_in_limit = 0;
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) {
    const Measurement& measurement = comparison.rows[row].policies[policy];
    if (measurement.served()) {
      const double utilisation = measurement.unlimited.utilisation();
      utilisations += utilisation;
      if (++result.served == 1 || utilisation < result.worst_utilisation) {
        result.worst_utilisation = utilisation;
        result.worst_utilisation_at = comparison.rows[row].name;
      }
    }
    if (const std::optional<double> factor = comparison.factor(row, policy)) {
      factors += *factor;
      if (++sized == 1 || *factor > result.worst_factor) {
        result.worst_factor = *factor;
        result.worst_factor_at = comparison.rows[row].name;
      }
    }
    if (!measurement.curve.empty() && !measurement.curve.back().out_of_memory) {
      limited += measurement.curve.back().utilisation();
      ++served_in_limit;
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
  result.utilisation = utilisations / static_cast<double>(std::max<std::size_t>(1, result.served));
  if (served_in_limit > 0) result.limited_utilisation = limited / static_cast<double>(served_in_limit);
  if (sized > 0) result.factor = factors / static_cast<double>(sized);
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

std::vector<Goal> goals_of(const Comparison& all) {
  const Comparison comparison = all.part(true);
  std::vector<Goal> goals;
  if (comparison.rows.empty()) return goals;
  if (const std::size_t policy = find_policy(comparison, "poolgrad"); policy != none) {
    const Summary own = summary_of(comparison, policy);
    // Every second block of the checkerboard stays: only stitch_idle=on serves large blocks from the pages between.
    Comparison usual = comparison;
    std::erase_if(usual.rows, [](const Comparison::Row& row) { return row.name == "checkerboard"; });
    if (const Summary of_usual = summary_of(usual, policy); of_usual.served > 0) {
      goals.push_back({"utilisation, average", ">= 95 % without checkerboard",
                       fmt::format("{:.1f} %", 100 * of_usual.utilisation), of_usual.utilisation >= 0.95});
      goals.push_back({"utilisation, worst", ">= 90 % without checkerboard",
                       fmt::format("{:.1f} % at {}", 100 * of_usual.worst_utilisation, of_usual.worst_utilisation_at),
                       of_usual.worst_utilisation >= 0.90});
    }
    if (own.factor) {
      goals.push_back(at_most("smallest capacity, average", "<= 1.05 x lower bound", " x", 1.05, *own.factor, ""));
      if (const auto goal = against_the_others(comparison, policy)) goals.push_back(*goal);
    }
    if (const std::size_t peer = find_policy(comparison, "pytorch-expandable"); peer != none) {
      const double most = summary_of(comparison, peer).modelled_ns;
      std::string found = format_time(own.modelled_ns);
      if (const std::size_t plain = find_policy(comparison, "pytorch"); plain != none)
        found += fmt::format(", {:.3g} x that of pytorch", own.modelled_ns / summary_of(comparison, plain).modelled_ns);
      goals.push_back({"device time", fmt::format("<= {} of pytorch-expandable", format_time(most)), std::move(found),
                       own.modelled_ns <= most});
    }
  }
  if (const std::size_t policy = find_policy(comparison, "planned"); policy != none) {
    if (const Summary planned = summary_of(comparison, policy); planned.factor) {
      goals.push_back(at_most("planned, worst", "<= 1.02 x lower bound", " x", 1.02, planned.worst_factor,
                              " at " + planned.worst_factor_at));
    }
  }
  return goals;
}

}  // namespace poolgrad::examples
