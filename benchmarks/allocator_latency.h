// Times single pairs of operations with the timestamp counter, less what reading it costs, and reports the
// distribution.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/trace/trace_ring.h"

namespace poolgrad {

/// Runs `operation` for each iteration and reports ns at the median and the 99th percentile. Reading the counter twice
/// is subtracted as its own median; it still adds a few ns of noise.
template <class Operation>
void measure_latency(benchmark::State& state, Operation operation) {
  const TraceClock clock;
  std::vector<std::uint64_t> ticks;
  ticks.reserve(1 << 20);
  std::vector<std::uint64_t> empty;
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t start = trace_ticks();
    empty.push_back(trace_ticks() - start);
  }
  for (auto _ : state) {
    const std::uint64_t start = trace_ticks();
    operation();
    const std::uint64_t end = trace_ticks();
    if (ticks.size() < ticks.capacity()) ticks.push_back(end - start);
  }
  const auto quantile = [](std::vector<std::uint64_t>& values, double share) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size() - 1) * share);
    std::ranges::nth_element(values, at);
    return static_cast<double>(*at);
  };
  const double overhead = quantile(empty, 0.5);
  const double ns = clock.scale().nanoseconds_per_tick;
  state.counters["median_ns"] = std::max(0.0, quantile(ticks, 0.5) - overhead) * ns;
  state.counters["p99_ns"] = std::max(0.0, quantile(ticks, 0.99) - overhead) * ns;
}

}  // namespace poolgrad
