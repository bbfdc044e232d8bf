#include "allocator/lab/replay/replay.h"

#include <algorithm>
#include <chrono>

#include "allocator/base/rounding.h"

namespace poolgrad {

namespace {

std::size_t whole_pages(std::size_t bytes) { return round_up(bytes, ModelDevice::page); }

}  // namespace

double utilisation(std::size_t peak_requested, std::size_t peak_reserved) {
  if (peak_reserved == 0) return 1.0;
  return std::min(1.0, static_cast<double>(whole_pages(peak_requested)) / static_cast<double>(peak_reserved));
}

ReplayResult replay(const Workload& workload, const PolicyEntry& entry, const ReplayOptions& options) {
  static const LatencyTable unit = LatencyTable::named("unit");
  const std::unique_ptr<Policy> policy = entry.make({.capacity = options.capacity,
                                                     .latency = options.latency != nullptr ? options.latency : &unit,
                                                     .workload = &workload});
  ReplayResult result;
  result.policy = entry.name;
  result.workload = workload.name;
  result.capacity = options.capacity;
  result.lower_bound = workload.lower_bound();
  std::size_t requested = 0;
  std::uint64_t steps = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const Operation& operation : workload.operations) {
    if (operation.think != 0) policy->advance(operation.think);
    switch (operation.kind) {
      case OperationKind::allocate:
        if (!policy->allocate(operation)) {
          result.out_of_memory = static_cast<std::size_t>(&operation - workload.operations.data());
          result.out_of_memory_step = steps == 0 ? 0 : steps - 1;
          break;
        }
        requested += operation.bytes;
        result.peak_requested = std::max(result.peak_requested, requested);
        result.peak_active = std::max(result.peak_active, policy->active());
        result.peak_reserved = std::max(result.peak_reserved, policy->reserved());
        break;
      case OperationKind::free:
        policy->free(operation);
        requested -= operation.bytes;
        break;
      case OperationKind::use: policy->use(operation); break;
      case OperationKind::order: policy->order(operation); break;
      case OperationKind::step:
        policy->step();
        ++steps;
        break;
    }
    if (result.out_of_memory) break;
    ++result.operations;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.counters = policy->counters();
  result.modelled_ns = result.counters.nanoseconds;
  return result;
}

std::optional<std::size_t> smallest_capacity(const Workload& workload, const PolicyEntry& policy,
                                             const ReplayOptions& options) {
  const auto passes = [&](std::size_t capacity) {
    ReplayOptions limited = options;
    limited.capacity = capacity;
    return !replay(workload, policy, limited).out_of_memory;
  };
  std::size_t fails = workload.lower_bound();
  if (passes(fails)) return fails;
  // The reserved bytes of an unlimited run suffice, except for policies that grow by shares of the capacity: for them,
  // doubling finds a capacity that passes.
  ReplayOptions unlimited = options;
  unlimited.capacity = std::max(options.capacity, fails);
  std::size_t enough =
      std::max(fails + ModelDevice::page, whole_pages(replay(workload, policy, unlimited).peak_reserved));
  while (!passes(enough)) {
    fails = enough;
    enough *= 2;
    if (enough > std::size_t{1} << 50) return std::nullopt;
  }
  while (enough - fails > ModelDevice::page) {
    const std::size_t middle = fails + whole_pages((enough - fails) / 2);
    if (middle == enough) break;
    (passes(middle) ? enough : fails) = middle;
  }
  return enough;
}

}  // namespace poolgrad
