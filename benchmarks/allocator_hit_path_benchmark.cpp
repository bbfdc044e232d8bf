// What an allocation and its free cost when the pool has what is asked for: the time per pair. Goals: median at most
// 25 ns and 99th percentile at most 100 ns with 1 to 10,000 cached blocks, tracing adds at most 20 ns.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/memory/host_memory.h"
#include "benchmarks/allocator_latency.h"
#include "benchmarks/allocator_peers.h"

namespace poolgrad {
namespace {

constexpr std::size_t GiB = std::size_t{1} << 30;

// A pool with `cached` free blocks of `bytes`, kept apart by live ones.
std::unique_ptr<CachingAllocator> prepared(std::size_t cached, std::size_t bytes, AllocatorConfig config) {
  auto pool = std::make_unique<CachingAllocator>(std::make_unique<HostMemory>(8 * GiB), config);
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < cached; ++i) {
    blocks.push_back(pool->allocate(bytes, 64, Stream{}));
    pool->allocate(64, 64, Stream{});
  }
  for (void* block : blocks) pool->deallocate(block, bytes, 64, Stream{});
  return pool;
}

void pair(CachingAllocator& pool, std::size_t bytes) {
  void* block = pool.allocate(bytes, 64, Stream{});
  benchmark::DoNotOptimize(block);
  pool.deallocate(block, bytes, 64, Stream{});
}

void allocator_hit_path(benchmark::State& state, AllocatorConfig config) {
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto pool = prepared(static_cast<std::size_t>(state.range(0)), bytes, config);
  for (auto _ : state) pair(*pool, bytes);
  const Statistics end = pool->statistics();
  state.counters["hits_at_once"] =
      static_cast<double>(end.magazine_hits + end.routine_hits) / static_cast<double>(end.requests);
}

void allocator_hit_path_latency(benchmark::State& state, AllocatorConfig config) {
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto pool = prepared(static_cast<std::size_t>(state.range(0)), bytes, config);
  measure_latency(state, [&] { pair(*pool, bytes); });
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"cached", "bytes"});
  for (const std::int64_t cached : {1, 100, 10000}) benchmark->Args({cached, 1024});
  benchmark->Args({1000, 1 << 20});
}

const AllocatorConfig standard{};
const AllocatorConfig lightweight{.mode = AllocatorMode::lightweight};
const AllocatorConfig no_routines{.routines = false};
const AllocatorConfig no_magazines{.magazines = false, .routines = false};
const AllocatorConfig tracing{.trace = std::size_t{1} << 20};

BENCHMARK_CAPTURE(allocator_hit_path, standard, standard)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path, tracing, tracing)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path, lightweight, lightweight)->Args({10000, 1024});
BENCHMARK_CAPTURE(allocator_hit_path, no_routines, no_routines)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path, no_magazines, no_magazines)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path_latency, standard, standard)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path_latency, tracing, tracing)->Args({10000, 1024});
BENCHMARK_CAPTURE(allocator_hit_path_latency, no_magazines, no_magazines)->Args({10000, 1024});

// For comparison, in the same run.
void c_library(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* block = std::aligned_alloc(64, bytes);
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}
BENCHMARK(c_library)->ArgName("bytes")->Arg(1024)->Arg(1 << 20);

void tree_and_map(benchmark::State& state) {
  TreeAllocator pool;
  std::vector<void*> blocks;
  for (std::int64_t i = 0; i < state.range(0); ++i) blocks.push_back(pool.allocate(1024));
  for (void* block : blocks) pool.deallocate(block);
  for (auto _ : state) {
    void* block = pool.allocate(1024);
    benchmark::DoNotOptimize(block);
    pool.deallocate(block);
  }
}
BENCHMARK(tree_and_map)->ArgName("cached")->Arg(1)->Arg(100)->Arg(10000);

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
