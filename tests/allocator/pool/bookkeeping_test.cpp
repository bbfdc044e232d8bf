// The pool's bookkeeping is small, counted and freed.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include "allocator/heap/block.h"
#include "tests/allocator/pool_testing.h"
#include "tests/effort.h"
#include "tests/test_seed.h"

namespace {

std::atomic<std::size_t> heap_bytes = 0;     // from operator new
thread_local std::uint64_t failing_new = 0;  // this call from now on throws in this thread; 0: none

void* counted_new(std::size_t bytes, std::size_t alignment) {
  if (failing_new != 0 && --failing_new == 0) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  heap_bytes += malloc_usable_size(memory);
  return memory;
}

void counted_delete(void* memory) noexcept {
  if (memory != nullptr) heap_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted_new(bytes, alignof(std::max_align_t)); }
// As in the standard library. A sanitizer's version would not call the operator above.
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_new(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { counted_delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { counted_delete(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { counted_delete(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { counted_delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { counted_delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { counted_delete(memory); }

namespace poolgrad::testing {
namespace {

// One thread and one stream with any sizes: indices of free blocks, caches, first pages of tables.
constexpr std::size_t floor_bytes = 128 * KiB;
constexpr std::size_t each_further_stream = 20 * KiB;

struct Held {
  void* pointer;
  std::size_t bytes;
  std::uint64_t stream = 0;
};

struct Sizes {
  std::size_t least;
  std::size_t most;
  std::size_t blocks;
};

std::vector<Held> fill(CachingAllocator& pool, const Sizes& sizes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Held> held;
  held.reserve(sizes.blocks);
  for (std::size_t i = 0; i < sizes.blocks; ++i) {
    const std::size_t bytes = sizes.least + random() % (sizes.most - sizes.least + 1);
    held.push_back({allocate(pool, bytes, Category::parameter), bytes});
  }
  return held;
}

// The sizes of requests and their options.
struct Load {
  Sizes sizes;
  std::uint64_t streams = 1;  // used in turn
  std::size_t alignment = 64;
  Category category = Category::parameter;
  AllocatorMode mode = AllocatorMode::standard;
};

std::string name_of(const Load& load) {
  std::string name = std::to_string(load.sizes.blocks) + "of" + std::to_string(load.sizes.least) + "to" +
                     std::to_string(load.sizes.most);
  if (load.streams != 1) name += "on" + std::to_string(load.streams) + "streams";
  if (load.alignment != 64) name += "at" + std::to_string(load.alignment);
  if (load.category != Category::parameter) name += "as" + std::string(to_string(load.category));
  if (load.mode != AllocatorMode::standard) name += "lightweight";
  return name;
}

class BookkeepingTest : public ::testing::TestWithParam<Load> {
 protected:
  Held allocate_one(CachingAllocator& pool, std::uint64_t stream) {
    const auto& [sizes, streams, alignment, category, mode] = GetParam();
    const std::size_t bytes = sizes.least + random_() % (sizes.most - sizes.least + 1);
    return {allocate(pool, bytes, category, stream, alignment), bytes, stream};
  }

  // A Block of 128 bytes and at most 43 in the live map; a Block more for the free block that may follow.
  static void expect_little(const CachingAllocator& pool, bool replaced) {
    const Statistics statistics = pool.statistics();
    const std::size_t each = replaced ? 308 : 176;
    const std::size_t floor = floor_bytes + (GetParam().streams - 1) * each_further_stream;
    ASSERT_LE(statistics.bookkeeping_bytes, each * statistics.allocation.current + floor);
  }

  std::mt19937_64 random_{test_seed()};
};
INSTANTIATE_TEST_SUITE_P(
    Loads, BookkeepingTest,
    ::testing::Values(Load{{64, 64, 1000000}}, Load{{1, 256, 500000}}, Load{{16 * KiB, 128 * KiB, 20000}},
                      Load{{1 * MiB, 2 * MiB, 1000}}, Load{{512, 2 * KiB, 100000}, 2}, Load{{64, 64, 500000}, 1, 256},
                      Load{{512, 512, 100000}, 1, 64, Category::unknown},
                      Load{{1000, 1000, 100000}, 2, 256, Category::activation},
                      Load{{512, 512, 100000}, 1, 64, Category::parameter, AllocatorMode::lightweight}),
    [](const auto& test) { return name_of(test.param); });

TEST_P(BookkeepingTest, TakesAFixedNumberOfBytesForEachBlock) {
  const auto& [sizes, streams, alignment, category, mode] = GetParam();
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, std::size_t{64} << 30), {.mode = mode});
  const auto free_one = [&](const Held& block) {
    pool.deallocate(block.pointer, block.bytes, alignment, stream_of(pool, block.stream));
  };
  std::vector<Held> held;
  const std::size_t blocks = is_brief() ? std::min<std::size_t>(sizes.blocks, 100000) : sizes.blocks;
  while (held.size() < blocks) {
    held.push_back(allocate_one(pool, held.size() % streams));
    if (held.size() % (blocks / 20) != 0) continue;
    ASSERT_NO_FATAL_FAILURE(expect_little(pool, false)) << held.size();
  }
  // Replaces a fifth of the blocks one by one.
  for (std::size_t i = 1; i <= held.size() / 5; ++i) {
    Held& block = held[random_() % held.size()];
    free_one(block);
    block = allocate_one(pool, block.stream);
    if (i % (held.size() / 100) != 0) continue;
    ASSERT_NO_FATAL_FAILURE(expect_little(pool, true)) << i << " replaced";
  }
  ASSERT_NO_FATAL_FAILURE(expect_invariants(pool));
  pool.trim();
  ASSERT_NO_FATAL_FAILURE(expect_little(pool, true)) << "trimmed";
  ASSERT_NO_FATAL_FAILURE(expect_invariants(pool));
  for (const Held& block : held) free_one(block);
  pool.trim();
  EXPECT_LE(pool.statistics().bookkeeping_bytes, floor_bytes + (streams - 1) * each_further_stream);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
}

void expect_counted(const CachingAllocator& pool, std::size_t heap) {
  const auto counted = static_cast<double>(pool.statistics().bookkeeping_bytes);
  // Pages of tables do not come from the heap, and malloc()'s rounding is not counted.
  EXPECT_NEAR(counted, static_cast<double>(heap), 0.05 * counted + 64 * KiB);
}

TEST(Bookkeeping, EqualsTheHeapBytesOfThePool) {
  const std::size_t before = heap_bytes;
  CachingAllocator counted(std::make_unique<SimulatedMemory>(0, std::size_t{8} << 30));
  std::vector<Held> held = fill(counted, {512, 2 * KiB, 100000}, 5);
  const std::size_t own = held.capacity() * sizeof(Held);
  expect_counted(counted, heap_bytes - before - own);
  EXPECT_GE(counted.statistics().bookkeeping_bytes, held.size() * sizeof(Block));
  for (std::size_t i = 0; i < held.size(); i += 2) deallocate(counted, held[i].pointer, held[i].bytes);
  expect_counted(counted, heap_bytes - before - own);
  counted.trim();
  expect_counted(counted, heap_bytes - before - own);
  for (std::size_t i = 1; i < held.size(); i += 2) deallocate(counted, held[i].pointer, held[i].bytes);
  counted.trim();
  expect_counted(counted, heap_bytes - before - own);
  EXPECT_LE(counted.statistics().bookkeeping_bytes, floor_bytes);
  EXPECT_LE(heap_bytes - before - own, floor_bytes);
}

TEST(Bookkeeping, CountsARecordedStepAndItsPlan) {
  constexpr std::size_t requests = 50000;
  std::vector<Held> held;
  held.reserve(requests);
  const std::size_t before = heap_bytes;
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, std::size_t{8} << 30), {.mode = AllocatorMode::planned});
  const auto allocate_all = [&] {
    while (held.size() < requests) held.push_back({allocate(pool, 512), 512});
  };
  const auto free_all = [&] {
    for (; !held.empty(); held.pop_back()) deallocate(pool, held.back().pointer, held.back().bytes);
  };
  const auto bookkeeping = [&] { return pool.statistics().bookkeeping_bytes; };
  pool.begin_step();
  allocate_all();
  expect_counted(pool, heap_bytes - before);
  free_all();
  const std::uint64_t recorded = bookkeeping();
  expect_counted(pool, heap_bytes - before);
  pool.begin_step();
  allocate_all();
  ASSERT_EQ(pool.statistics().planned_hits, requests);
  expect_counted(pool, heap_bytes - before);
  // A place for each request, and an entry of the live map; the recorded steps are freed.
  EXPECT_LE(bookkeeping(), requests * (sizeof(Block) + 64 + 48) + floor_bytes);
  free_all();
  pool.trim();
  expect_counted(pool, heap_bytes - before);
  EXPECT_LE(bookkeeping(), floor_bytes);
  EXPECT_GT(recorded, requests * 2 * sizeof(std::uint64_t)) << "a size and a time for each request";
}

TEST(Bookkeeping, CountsManyStreams) {
  constexpr std::uint64_t streams = 300;
  const std::size_t before = heap_bytes;
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, std::size_t{8} << 30), {.magazines = false});
  for (std::uint64_t id = 0; id < streams; ++id)
    deallocate(pool, allocate(pool, 100, Category::activation, id), 100, id);
  expect_counted(pool, heap_bytes - before);
  const std::uint64_t alone = pool.statistics().bookkeeping_bytes;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t id = 0; id < streams; ++id) pool.order(stream_of(pool, (id + 1) % streams), stream_of(pool, id));
  }
  expect_counted(pool, heap_bytes - before);
  EXPECT_GT(pool.statistics().bookkeeping_bytes - alone, streams * streams * 2 * sizeof(std::uint64_t))
      << "each stream is behind all others";
  pool.trim();
  expect_counted(pool, heap_bytes - before);
  EXPECT_LE(pool.statistics().bookkeeping_bytes, alone + floor_bytes) << "what is over need not be known";
}

TEST(Bookkeeping, EndsWithItsThreadsAndStreams) {
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 64 * MiB));
  deallocate(pool, allocate(pool, 100), 100);
  pool.trim();
  const std::uint64_t before = pool.statistics().bookkeeping_bytes;
  deallocate(pool, allocate(pool, 100), 100);
  EXPECT_GT(pool.statistics().bookkeeping_bytes, before) << "a magazine";
  std::thread([&] {
    deallocate(pool, allocate(pool, 100), 100);
    EXPECT_GT(pool.statistics().bookkeeping_bytes, before + 4 * KiB) << "a cache and two magazines";
  }).join();
  pool.trim();
  EXPECT_EQ(pool.statistics().bookkeeping_bytes, before);
}

TEST(Bookkeeping, StaysSmallForAgesInMilliseconds) {
  for (const std::size_t age : {1u, 10u, 15u, 1000u}) {
    CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 64 * MiB), {.magazines = false, .decay_ms = age});
    const auto request = [&] { deallocate(pool, allocate(pool, 100), 100); };
    request();
    const std::uint64_t before = pool.statistics().bookkeeping_bytes;
    for (int i = 0; i < 20000; ++i) request();
    EXPECT_LE(pool.statistics().bookkeeping_bytes, before + 2 * KiB) << "decay_ms:" << age;
  }
}

TEST(Bookkeeping, IsInTheNamedStatistics) {
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 64 * MiB));
  allocate(pool, 100);
  const Statistics statistics = pool.statistics();
  EXPECT_THAT(named_statistics(statistics),
              ::testing::Contains(::testing::Pair("bookkeeping_bytes", statistics.bookkeeping_bytes)));
  EXPECT_GT(statistics.bookkeeping_bytes, sizeof(Block));
}

TEST(Bookkeeping, StaysTheSameOverSteadySteps) {
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, std::size_t{1} << 30));
  fill(pool, {512, 2 * KiB, 3000}, 3);
  std::vector<Held> step;
  const auto run_step = [&] {
    std::mt19937_64 random(9);
    for (int i = 0; i < 400; ++i) {
      const std::size_t bytes = 1 + random() % (16 * KiB);
      step.push_back({allocate(pool, bytes), bytes});
    }
    for (; !step.empty(); step.pop_back()) deallocate(pool, step.back().pointer, step.back().bytes);
  };
  for (int i = 0; i < 8; ++i) run_step();
  const std::uint64_t bytes = pool.statistics().bookkeeping_bytes;
  const std::size_t heap = heap_bytes;
  for (int i = 0; i < 4; ++i) run_step();
  EXPECT_EQ(pool.statistics().bookkeeping_bytes, bytes);
  EXPECT_EQ(heap_bytes, heap);
}

TEST(Bookkeeping, StaysRightWhileThreadsFreeBlocksOfOthers) {
  CachingAllocator pool(make_memory("host", 512 * MiB));
  std::vector<Held> held = fill(pool, {64, 2 * KiB, 20000}, 11);
  for (const Held& block : held) *static_cast<unsigned char*>(block.pointer) = 42;
  std::atomic<std::size_t> next = 0;
  std::atomic<int> damaged = 0;
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      std::vector<Held> own;
      for (std::size_t i = next++; i < held.size(); i = next++) {
        if (*static_cast<unsigned char*>(held[i].pointer) != 42) ++damaged;
        if (random() % 4 == 0) pool.use(held[i].pointer, stream_of(pool, 0));
        if (random() % 4 == 0 && pool.usable_size(held[i].pointer) < held[i].bytes) ++damaged;
        deallocate(pool, held[i].pointer, held[i].bytes);
        for (int k = 0; k < 2; ++k) {
          const std::size_t bytes = 1 + random() % 1000;
          own.push_back({allocate(pool, bytes), bytes});
          *static_cast<unsigned char*>(own.back().pointer) = static_cast<unsigned char>(id);
        }
        if (random() % 2 == 0) {
          std::swap(own[random() % own.size()], own.back());
          if (*static_cast<unsigned char*>(own.back().pointer) != id) ++damaged;
          deallocate(pool, own.back().pointer, own.back().bytes);
          own.pop_back();
        }
        if (i % 1000 == 999) pool.trim(0);
      }
      for (const Held& block : own) deallocate(pool, block.pointer, block.bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged, 0);
  EXPECT_EQ(pool.statistics().allocation.current, 0u);
  ASSERT_NO_FATAL_FAILURE(expect_invariants(pool));
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
}

TEST(Bookkeeping, SurvivesAFailingHeapAtAnyCall) {
  const auto attempt = [](std::uint64_t& due, auto call) {
    failing_new = due;
    bool done = false;
    try {
      call();
      done = true;
    } catch (const std::bad_alloc&) {
    }
    due = failing_new;
    failing_new = 0;
    return done;
  };
  for (std::uint64_t k = 1, last = k; last == k; ++k) {
    SCOPED_TRACE("failure " + std::to_string(k));
    CachingAllocator pool(make_memory("sim", 64 * MiB, 64 * KiB));
    std::vector<Held> held = fill(pool, {200, 200, 1500}, 1);
    std::uint64_t due = k;
    attempt(due, [&] { pool.trim(0); });
    for (std::size_t i = 0; i < 700; i += 70) {
      attempt(due, [&] { pool.use(held[i].pointer, stream_of(pool, 1)); });
      const auto expand = [&] {
        held[i + 1].bytes = pool.expand_in_place(held[i + 1].pointer, 200, 190, {}) ? 190 : 200;
      };
      attempt(due, expand);
      for (const std::size_t j : {i + 5, i + 7, i + 6}) {
        EXPECT_TRUE(attempt(due, [&] { deallocate(pool, held[j].pointer, held[j].bytes); }));
        held[j].pointer = nullptr;
      }
      if (i == 350) attempt(due, [&] { pool.trim(0); });
    }
    if (due == 0) last = k + 1;
    ASSERT_NO_FATAL_FAILURE(expect_invariants(pool));
    for (const Held& block : held) {
      if (block.pointer != nullptr) deallocate(pool, block.pointer, block.bytes);
    }
    pool.trim();
    EXPECT_EQ(pool.statistics().active_bytes.current, 0u);
    EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  }
}

}  // namespace
}  // namespace poolgrad::testing
