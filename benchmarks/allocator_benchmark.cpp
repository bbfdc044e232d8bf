// Costs of the pool: a hit, its arenas, recorded training steps, one size in turn, and many threads at once.
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/lab/zoo/zoo.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/trace/trace_ring.h"
#include "benchmarks/support.h"

namespace poolgrad {
namespace {

constexpr std::size_t GiB = std::size_t{1} << 30;

const AllocatorConfig standard{};
const AllocatorConfig lightweight{.mode = AllocatorMode::lightweight};
const AllocatorConfig no_magazines{.magazines = false};
const AllocatorConfig tracing{.trace = std::size_t{1} << 20};

void pair(CachingAllocator& pool, std::size_t bytes) {
  void* block = pool.allocate(bytes, 64, Stream{});
  benchmark::DoNotOptimize(block);
  pool.deallocate(block, bytes, 64, Stream{});
}

/// Returns the share of requests since `before` that magazines served.
double hits_at_once(const CachingAllocator& pool, const Statistics& before = {}) {
  const Statistics end = pool.statistics();
  const std::uint64_t hits = end.magazine_hits - before.magazine_hits;
  return static_cast<double>(hits) / static_cast<double>(end.requests - before.requests);
}

// Time of an allocation and its free if the pool has a cached block. Goals: median at most 25 ns and 99th percentile at
// most 100 ns with 1 to 10,000 cached blocks; tracing adds at most 20 ns.

// Returns a pool with `cached` free blocks of `bytes`, separated by live ones.
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

void allocator_hit_path(benchmark::State& state, AllocatorConfig config) {
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto pool = prepared(static_cast<std::size_t>(state.range(0)), bytes, config);
  for (auto _ : state) pair(*pool, bytes);
  state.counters["hits_at_once"] = hits_at_once(*pool);
}

/// Times single pairs by the timestamp counter: ns at the median and the 99th percentile. Subtracts the median cost of
/// two counter reads, which still adds a few ns of noise.
void allocator_hit_path_latency(benchmark::State& state, AllocatorConfig config) {
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto pool = prepared(static_cast<std::size_t>(state.range(0)), bytes, config);
  const TraceClock clock;
  std::vector<std::uint64_t> ticks, empty;
  ticks.reserve(1 << 20);
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t start = trace_ticks();
    empty.push_back(trace_ticks() - start);
  }
  for (auto _ : state) {
    const std::uint64_t start = trace_ticks();
    pair(*pool, bytes);
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

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"cached", "bytes"});
  for (const std::int64_t cached : {1, 100, 10000}) benchmark->Args({cached, 1024});
  benchmark->Args({1000, 1 << 20});
}

BENCHMARK_CAPTURE(allocator_hit_path, standard, standard)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path, tracing, tracing)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path, lightweight, lightweight)->Args({10000, 1024});
BENCHMARK_CAPTURE(allocator_hit_path, no_magazines, no_magazines)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path_latency, standard, standard)->Apply(sizes);
BENCHMARK_CAPTURE(allocator_hit_path_latency, tracing, tracing)->Args({10000, 1024});
BENCHMARK_CAPTURE(allocator_hit_path_latency, no_magazines, no_magazines)->Args({10000, 1024});

// Allocates and frees at the edge of a large free block: one split and one coalescing.
void split_and_coalesce(benchmark::State& state) {
  CachingAllocator pool(std::make_unique<HostMemory>(8 * GiB), no_magazines);
  pool.deallocate(pool.allocate(64 << 20, 64, Stream{}), 64 << 20, 64, Stream{});
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) pair(pool, bytes);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(split_and_coalesce)->ArgName("bytes")->Arg(256)->Arg(1 << 20);

// A repeatable training step: the last whole step of a workload, after all operations before it. A block that outlives
// the step takes the place of a block of the same size and category that the step frees. Blocks without such a partner
// are left out.
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
  /// Returns the seconds of one repetition.
  double repeat(CachingAllocator& pool) {
    const double seconds = seconds_of([&] { run(pool, step_); });
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

// Repeats a recorded step of all sizes. `pair_ns` is the median over the steps of the time per allocation and free
// (goal: at most 30).
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

// Allocates and frees one small size in turn. `pair_ns` is the median over runs of a thousand pairs (goal: at most 15).
void ping_pong(benchmark::State& state, AllocatorConfig config) {
  constexpr int pairs = 1000;
  CachingAllocator pool(std::make_unique<HostMemory>(8 * GiB), config);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto run = [&] {
    for (int i = 0; i < pairs; ++i) pair(pool, bytes);
  };
  run();
  const Statistics before = pool.statistics();
  std::vector<double> seconds;
  for (auto _ : state) {
    seconds.push_back(seconds_of(run));
    state.SetIterationTime(seconds.back());
  }
  state.counters["pair_ns"] = median(seconds) * 1e9 / pairs;
  state.counters["hits_at_once"] = hits_at_once(pool, before);
}

// Registers both with and without magazines.
const int registered = [] {
  const std::pair<const char*, AllocatorConfig> configs[] = {{"standard", standard}, {"no_magazines", no_magazines}};
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

// Many threads on one pool, each on its own stream: wall time of batches. With more threads than cores, the median is
// that of batches without an interruption. Goal: at most 200 ns per operation with 32 threads and streams.

constexpr std::array<std::size_t, 4> block_sizes = {256, 1024, 4096, 65536};
constexpr int rounds = 20000;

// Each of `threads` threads keeps a few blocks of several sizes alive and replaces them in turn. Divides the time of
// each batch of 64 operations by 64. Returns the median over all batches, in ns.
template <class Allocate, class Deallocate>
double median_operation(int threads, Allocate allocate, Deallocate deallocate) {
  std::vector<std::vector<double>> times(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  std::atomic<int> ready = 0;
  for (int id = 0; id < threads; ++id) {
    running.emplace_back([&, id] {
      std::vector<double>& mine = times[static_cast<std::size_t>(id)];
      mine.reserve(rounds / 32);
      std::array<void*, block_sizes.size()> live{};
      const auto stream = static_cast<std::uint64_t>(id);
      for (std::size_t i = 0; i < block_sizes.size(); ++i) live[i] = allocate(block_sizes[i], stream);
      ++ready;
      while (ready < threads) std::this_thread::yield();
      for (int batch = 0; batch < rounds / 32; ++batch) {
        const double seconds = seconds_of([&] {
          for (std::size_t i = 0; i < 32; ++i) {
            const std::size_t slot = i % block_sizes.size();
            deallocate(live[slot], block_sizes[slot], stream);
            live[slot] = allocate(block_sizes[slot], stream);
          }
        });
        mine.push_back(seconds * 1e9 / 64);
      }
      for (std::size_t i = 0; i < block_sizes.size(); ++i) deallocate(live[i], block_sizes[i], stream);
    });
  }
  for (std::thread& thread : running) thread.join();
  std::vector<double> all;
  for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  return median(std::move(all));
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
  state.counters["median_ns_per_operation"] = median(medians);
}

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
// For comparison, in the same run: the C library, and a typical caching allocator of a framework, reduced to its data
// structures. It has one mutex, a tree of free blocks ordered by size and address, and a hash map from pointers to
// blocks.

class TreeAllocator {
 public:
  TreeAllocator() = default;
  ~TreeAllocator() {
    for (const auto& [pointer, bytes] : live_) std::free(pointer);
    for (const auto& [bytes, pointer] : free_) std::free(pointer);
  }
  TreeAllocator(const TreeAllocator&) = delete;
  TreeAllocator& operator=(const TreeAllocator&) = delete;

  void* allocate(std::size_t bytes) {
    bytes = (bytes + 511) / 512 * 512;
    const std::lock_guard lock(mutex_);
    void* pointer = nullptr;
    if (const auto fit = free_.lower_bound({bytes, nullptr}); fit != free_.end() && fit->first == bytes) {
      pointer = fit->second;
      free_.erase(fit);
    } else {
      pointer = std::aligned_alloc(512, bytes);
    }
    live_.emplace(pointer, bytes);
    return pointer;
  }
  void deallocate(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto block = live_.find(pointer);
    free_.emplace(block->second, pointer);
    live_.erase(block);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<std::size_t, void*>> free_;
  std::unordered_map<void*, std::size_t> live_;
};

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

void tree_and_map_threads(benchmark::State& state) {
  TreeAllocator pool;
  std::vector<double> medians;
  for (auto _ : state) {
    medians.push_back(median_operation(
        static_cast<int>(state.range(0)), [&](std::size_t bytes, std::uint64_t) { return pool.allocate(bytes); },
        [&](void* block, std::size_t, std::uint64_t) { pool.deallocate(block); }));
  }
  state.counters["median_ns_per_operation"] = median(medians);
}

BENCHMARK(tree_and_map_threads)->ArgName("threads")->Arg(1)->Arg(32)->Iterations(3)->UseRealTime();

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
