// What the pool's arenas cost, and a whole training step. allocator_hit_path and allocator_threads have the rest.
#include <benchmark/benchmark.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/host_memory.h"
#include "allocator/simulated_memory.h"
#include "tests/allocator/training_trace.h"

namespace poolgrad {
namespace {

constexpr std::size_t GiB = std::size_t{1} << 30;

// Allocate and free at the edge of a large free block: one split and one coalescing.
void split_and_coalesce(benchmark::State& state) {
  CachingAllocator pool(std::make_unique<HostMemory>(8 * GiB), {.magazines = false, .routines = false});
  pool.deallocate(pool.allocate(64 << 20, 64, Stream{}), 64 << 20, 64, Stream{});
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* block = pool.allocate(bytes, 64, Stream{});
    benchmark::DoNotOptimize(block);
    pool.deallocate(block, bytes, 64, Stream{});
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(split_and_coalesce)->ArgName("bytes")->Arg(256)->Arg(1 << 20);

// One warm training step of a four-layer transformer: the time is per allocation or free.
void training_step(benchmark::State& state) {
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 8 * GiB));
  const Stream stream{pool.device(), 0};
  testing::TrainingTrace trace({8, 256, 192, 4, 6, 256});
  std::unordered_map<std::size_t, std::size_t> slots;
  struct Operation {
    bool allocates;
    std::size_t slot;
    std::size_t bytes;
    Category category;
  };
  std::vector<std::pair<void*, std::size_t>> live;
  const auto compile = [&] {
    std::vector<Operation> operations;
    for (const testing::TraceEvent& event : trace.take()) {
      const auto [entry, added] = slots.try_emplace(event.id, slots.size());
      operations.push_back({event.allocates, entry->second, event.bytes, event.category});
    }
    live.resize(slots.size());
    return operations;
  };
  const auto run = [&](const std::vector<Operation>& operations) {
    for (const Operation& operation : operations) {
      auto& [pointer, bytes] = live[operation.slot];
      if (operation.allocates) {
        bytes = operation.bytes;
        pointer = std::get<void*>(
            pool.try_allocate({.bytes = bytes, .alignment = 64, .stream = stream, .tag = {operation.category, 0}}));
      } else {
        pool.deallocate(pointer, bytes, 64, stream);
      }
    }
  };
  for (int step = 0; step < 2; ++step) {
    trace.step();
    run(compile());
  }
  const std::uint64_t device_calls = pool.statistics().num_device_alloc;
  std::int64_t events = 0;
  for (auto _ : state) {
    state.PauseTiming();
    trace.step();
    const std::vector<Operation> operations = compile();
    state.ResumeTiming();
    run(operations);
    events += static_cast<std::int64_t>(operations.size());
  }
  state.SetItemsProcessed(events);
  const Statistics end = pool.statistics();
  state.counters["hits_at_once"] =
      static_cast<double>(end.magazine_hits + end.routine_hits) / static_cast<double>(end.requests);
  state.counters["device_allocations"] = static_cast<double>(pool.statistics().num_device_alloc - device_calls);
}
BENCHMARK(training_step);

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
