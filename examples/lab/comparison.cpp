#include "examples/lab/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

namespace {

std::size_t whole_pages(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + ModelDevice::page - 1) / ModelDevice::page) * ModelDevice::page;
}

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

}  // namespace

Capacity Capacity::parse(const std::string& text) {
  if (!text.ends_with('x')) return {.bytes = parse_bytes(text)};
  double factor = 0;
  const char* end = text.data() + text.size() - 1;
  const auto [read, error] = std::from_chars(text.data(), end, factor);
  if (error != std::errc() || read != end || !(factor > 0) || factor > 1e6)
    throw ValueError("[lab] a capacity is a size such as 8GiB or a multiple of the lower bound such as 1.05x, but is " +
                     text);
  return {.factor = factor};
}

std::size_t Capacity::of(std::size_t lower_bound) const {
  if (bytes > 0) return bytes;
  return static_cast<std::size_t>(factor * static_cast<double>(lower_bound)) / ModelDevice::page * ModelDevice::page;
}

std::string Capacity::text() const { return bytes > 0 ? format_bytes(bytes) : fmt::format("{:g}x", factor); }

std::string describe_failure(const ReplayResult& result) {
  if (!result.out_of_memory) return "";
  const std::string operation = "op " + format_integer(*result.out_of_memory);
  return result.out_of_memory_step ? fmt::format("step {}, {}", *result.out_of_memory_step, operation) : operation;
}

double Comparison::factor(std::size_t row, std::size_t policy) const {
  return static_cast<double>(rows[row].policies[policy].smallest.value_or(0)) /
         static_cast<double>(rows[row].lower_bound);
}

Comparison compare(const std::vector<Workload>& workloads, const std::vector<const PolicyEntry*>& policies,
                   const ComparisonOptions& options, const ComparisonProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  Comparison result;
  result.policies = policies;
  result.options = options;
  for (const Workload& workload : workloads)
    result.rows.push_back({.name = workload.name,
                           .description = workload.description,
                           .operations = workload.operations.size(),
                           .lower_bound = whole_pages(workload.lower_bound()),
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
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace poolgrad::examples
