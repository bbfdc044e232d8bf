// What the pool's arenas cost, recorded training steps, and one size in turn. allocator_hit_path and allocator_threads
// have the rest.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/replay/zoo/zoo.h"
#include "allocator/trace/trace_file.h"

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

// A training step that repeats itself: the last whole one of a workload, after all that came before it. What outlives
// it takes the place of blocks of the same size and category that it frees; what finds no partner is left out.
class RecordedStep {
 public:
  explicit RecordedStep(const Workload& workload) : slots_(workload.blocks) {
    std::vector<std::size_t> steps;
    for (std::size_t i = 0; i < workload.operations.size(); ++i) {
      if (workload.operations[i].kind == OperationKind::step) steps.push_back(i);
    }
    const std::size_t first = steps.at(steps.size() - 2), last = steps.back();
    before_.assign(workload.operations.begin(), workload.operations.begin() + static_cast<std::ptrdiff_t>(first));
    std::map<std::pair<std::uint64_t, Category>, std::vector<std::uint32_t>> outlive;
    std::vector<char> made(workload.blocks), kept(workload.blocks);
    for (std::size_t i = first; i < last; ++i) {
      const Operation& operation = workload.operations[i];
      if (operation.kind == OperationKind::allocate) made[operation.block] = 1;
      if (operation.kind == OperationKind::free && made[operation.block] != 0) kept[operation.block] = 1;
    }
    for (std::size_t i = first; i < last; ++i) {
      const Operation& operation = workload.operations[i];
      if (operation.kind == OperationKind::allocate && kept[operation.block] == 0) {
        outlive[{operation.bytes, operation.category}].push_back(operation.block);
      }
    }
    for (std::size_t i = first; i < last; ++i) {
      const Operation& operation = workload.operations[i];
      if (operation.kind != OperationKind::free || made[operation.block] != 0) continue;
      auto& partners = outlive[{operation.bytes, operation.category}];
      if (partners.empty()) continue;
      moves_.emplace_back(partners.back(), operation.block);
      kept[partners.back()] = kept[operation.block] = 1;
      partners.pop_back();
    }
    for (std::size_t i = first; i < last; ++i) {
      const Operation& operation = workload.operations[i];
      const bool is_block = operation.kind == OperationKind::allocate || operation.kind == OperationKind::free;
      if (is_block && kept[operation.block] != 0) step_.push_back(operation);
    }
  }

  std::size_t pairs() const { return step_.size() / 2; }
  void begin(CachingAllocator& pool) { run(pool, before_); }
  /// Seconds for one repetition.
  double repeat(CachingAllocator& pool) {
    const auto start = std::chrono::steady_clock::now();
    run(pool, step_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const auto& [from, to] : moves_) slots_[to] = slots_[from];
    return seconds;
  }

 private:
  void run(CachingAllocator& pool, const std::vector<Operation>& operations) {
    const Stream stream{pool.device(), 0};
    for (const Operation& operation : operations) {
      if (operation.kind == OperationKind::allocate) {
        slots_[operation.block] = std::get<void*>(pool.try_allocate(
            {.bytes = operation.bytes, .alignment = 64, .stream = stream, .tag = {operation.category, 0}}));
      } else if (operation.kind == OperationKind::free) {
        pool.deallocate(slots_[operation.block], operation.bytes, 64, stream);
      }
    }
  }

  std::vector<void*> slots_;
  std::vector<Operation> before_;
  std::vector<Operation> step_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> moves_;  // from a block of the step to one that it frees
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

double hits_at_once(const CachingAllocator& pool, const Statistics& before) {
  const Statistics end = pool.statistics();
  const std::uint64_t hits = end.magazine_hits + end.routine_hits - before.magazine_hits - before.routine_hits;
  return static_cast<double>(hits) / static_cast<double>(end.requests - before.requests);
}

// A recorded step again and again, all sizes: `pair_ns` is the median over the steps of the time per pair of an
// allocation and a free (goal: at most 30).
void recorded_step(benchmark::State& state, const std::string& source, AllocatorConfig config) {
  const std::string recorded = POOLGRAD_RECORDINGS "/" + source + ".pgt";
  RecordedStep step(source.starts_with("zoo:") ? zoo_workload(source.substr(4))
                                               : workload_of(load_trace(recorded), source));
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 256 * GiB), config);
  step.begin(pool);
  for (int i = 0; i < 10; ++i) step.repeat(pool);
  const Statistics before = pool.statistics();
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(step.repeat(pool));
    state.SetIterationTime(seconds.back());
  }
  state.counters["pair_ns"] = median(seconds) * 1e9 / static_cast<double>(step.pairs());
  state.counters["pairs"] = static_cast<double>(step.pairs());
  state.counters["hits_at_once"] = hits_at_once(pool, before);
}

// One small size allocated and freed in turn: `pair_ns` is the median over runs of a thousand pairs (goal: at most 15).
void ping_pong(benchmark::State& state, AllocatorConfig config) {
  constexpr int pairs = 1000;
  CachingAllocator pool(std::make_unique<HostMemory>(8 * GiB), config);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto run = [&] {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < pairs; ++i) {
      void* block = pool.allocate(bytes, 64, Stream{});
      benchmark::DoNotOptimize(block);
      pool.deallocate(block, bytes, 64, Stream{});
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  run();
  const Statistics before = pool.statistics();
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(run());
    state.SetIterationTime(seconds.back());
  }
  state.counters["pair_ns"] = median(seconds) * 1e9 / pairs;
  state.counters["hits_at_once"] = hits_at_once(pool, before);
}

// Each of the two with everything, without one of what threads keep for themselves, and without both.
const int registered = [] {
  const std::pair<const char*, AllocatorConfig> configs[] = {{"standard", {}},
                                                             {"no_routines", {.routines = false}},
                                                             {"no_magazines", {.magazines = false}},
                                                             {"neither", {.magazines = false, .routines = false}}};
  for (const auto& [name, config] : configs) {
    for (const char* source : {"train-small", "train-default", "zoo:transformer", "zoo:mixture-of-experts"}) {
      benchmark::RegisterBenchmark(("recorded_step/" + std::string(source) + "/" + name).c_str(), recorded_step,
                                   std::string(source), config)
          ->UseManualTime();
    }
    benchmark::RegisterBenchmark(("ping_pong/" + std::string(name)).c_str(), ping_pong, config)
        ->ArgName("bytes")
        ->Arg(64)
        ->Arg(1000)
        ->UseManualTime();
  }
  return 0;
}();

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
