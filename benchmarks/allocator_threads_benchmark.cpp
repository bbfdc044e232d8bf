// Many threads on one pool, each on a stream of its own: wall time of batches, so with more threads than cores the
// median is that of batches which no other thread interrupted. Goal: at most 200 ns per operation with 32 threads and
// streams.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/memory/simulated_memory.h"
#include "benchmarks/allocator_peers.h"

namespace poolgrad {
namespace {

constexpr std::size_t GiB = std::size_t{1} << 30;
constexpr std::array<std::size_t, 4> sizes = {256, 1024, 4096, 65536};
constexpr int rounds = 20000;

// Each of `threads` threads keeps a few blocks of several sizes alive and replaces them in turn; the time of each batch
// of 64 operations is divided by 64. Returns the median over all batches, in ns.
template <class Allocate, class Deallocate>
double median_operation(int threads, Allocate allocate, Deallocate deallocate) {
  std::vector<std::vector<double>> times(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  std::atomic<int> ready = 0;
  for (int id = 0; id < threads; ++id) {
    running.emplace_back([&, id] {
      std::vector<double>& mine = times[static_cast<std::size_t>(id)];
      mine.reserve(rounds / 32);
      std::array<void*, sizes.size()> live{};
      const auto stream = static_cast<std::uint64_t>(id);
      for (std::size_t i = 0; i < sizes.size(); ++i) live[i] = allocate(sizes[i], stream);
      ++ready;
      while (ready < threads) std::this_thread::yield();
      for (int batch = 0; batch < rounds / 32; ++batch) {
        const auto start = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < 32; ++i) {
          const std::size_t slot = i % sizes.size();
          deallocate(live[slot], sizes[slot], stream);
          live[slot] = allocate(sizes[slot], stream);
        }
        const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
        mine.push_back(time.count() / 64);
      }
      for (std::size_t i = 0; i < sizes.size(); ++i) deallocate(live[i], sizes[i], stream);
    });
  }
  for (std::thread& thread : running) thread.join();
  std::vector<double> all;
  for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  return all[all.size() / 2];
}

void report(benchmark::State& state, const std::vector<double>& medians) {
  std::vector<double> sorted = medians;
  std::ranges::sort(sorted);
  state.counters["median_ns_per_operation"] = sorted[sorted.size() / 2];
}

void allocator_threads(benchmark::State& state, AllocatorConfig config) {
  const auto threads = static_cast<int>(state.range(0));
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 64 * GiB), config);
  const Device device = pool.device();
  std::vector<double> medians;
  for (auto _ : state) {
    medians.push_back(median_operation(
        threads,
        [&](std::size_t bytes, std::uint64_t stream) {
          return pool.allocate(bytes, 64, Stream{device, stream});
        },
        [&](void* block, std::size_t bytes, std::uint64_t stream) {
          pool.deallocate(block, bytes, 64, Stream{device, stream});
        }));
  }
  report(state, medians);
}

void tree_and_map_threads(benchmark::State& state) {
  TreeAllocator pool;
  std::vector<double> medians;
  for (auto _ : state) {
    medians.push_back(median_operation(
        static_cast<int>(state.range(0)), [&](std::size_t bytes, std::uint64_t) { return pool.allocate(bytes); },
        [&](void* block, std::size_t, std::uint64_t) { pool.deallocate(block); }));
  }
  report(state, medians);
}

const AllocatorConfig standard{};
const AllocatorConfig no_magazines{.magazines = false};

BENCHMARK_CAPTURE(allocator_threads, standard, standard)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(4)
    ->Arg(32)
    ->Iterations(3)
    ->UseRealTime();
BENCHMARK_CAPTURE(allocator_threads, no_magazines, no_magazines)
    ->ArgName("threads")
    ->Arg(32)
    ->Iterations(3)
    ->UseRealTime();
BENCHMARK(tree_and_map_threads)->ArgName("threads")->Arg(1)->Arg(32)->Iterations(3)->UseRealTime();

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
