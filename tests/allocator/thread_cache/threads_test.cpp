// Several threads on one pool: run these under the thread sanitizer.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/thread_cache/thread_cache.h"
#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class ThreadsTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ThreadsTest, devices, device_name);

void join_all(std::vector<std::thread>& threads) {
  for (std::thread& thread : threads) thread.join();
}

TEST_P(ThreadsTest, FindTheirCachesOfManyPools) {
  std::vector<std::unique_ptr<CachingAllocator>> pools;
  for (int i = 0; i < 9; ++i) pools.push_back(std::make_unique<CachingAllocator>(memory(16 * page), AllocatorConfig{}));
  pools.erase(pools.begin() + 2);  // its place is free for the next
  pools.push_back(std::make_unique<CachingAllocator>(memory(16 * page), AllocatorConfig{}));
  for (int round = 0; round < 100; ++round) {
    for (const auto& pool : pools) deallocate(*pool, allocate(*pool, 1 * KiB), 1 * KiB);
  }
  for (const auto& pool : pools) EXPECT_GE(pool->statistics().magazine_hits, 98u);
}

TEST(RequestSequences, HashTheCategories) {
  std::set<std::uint64_t> hashes, low;
  for (std::size_t a = 0; a < category_count; ++a) {
    for (std::size_t b = 0; b < category_count; ++b) {
      const auto first = static_cast<Category>(a), second = static_cast<Category>(b);
      if (first == Category::workspace || second == Category::workspace) continue;
      RequestSequence sequence;
      sequence.request(4096, first);
      sequence.request(4096, second);
      const auto hash = sequence.hash();
      EXPECT_TRUE(hashes.insert(hash).second) << a << " " << b;
      low.insert(hash & 0xFFFFFFFFFFFF);
      const std::uint64_t number = sequence.last(first);
      sequence.release(number, first);
      RequestSequence other;
      other.request(4096, first);
      other.request(4096, second);
      other.request(number, first);
      EXPECT_NE(sequence.hash(), other.hash()) << "a free is no request";
    }
  }
  EXPECT_EQ(low.size(), hashes.size()) << "in more than the highest bits";
}

TEST(RequestSequences, AreDistinctForMoreThan65536Threads) {
  std::vector<std::uint64_t> numbers;
  for (const std::uint64_t thread : {0u, 1u, 65535u, 65536u, 65537u, 131072u, 4194303u}) {
    RequestSequence sequence(thread);
    numbers.push_back(sequence.number(Category::activation));
    numbers.push_back(sequence.number(Category::workspace));
  }
  std::ranges::sort(numbers);
  EXPECT_EQ(std::ranges::adjacent_find(numbers), numbers.end());
}

// A cache hit reads a block's stream without a lock. The atomics order nothing, so the thread sanitizer reports any
// race in this read.
TEST_P(ThreadsTest, FreeBlocksDuringARenameOfTheirStream) {
  auto delayed = std::make_unique<DelayedMemory>(memory(64 * page));
  DelayedMemory* device = delayed.get();
  CachingAllocator pool(std::move(delayed));
  std::atomic<int> step = 0;
  const auto wait_for = [&](int wanted) {
    while (step.load(std::memory_order_relaxed) != wanted) std::this_thread::yield();
  };
  std::thread owner([&] {
    deallocate(pool, allocate(pool, 4 * page, Category::activation, 7), 4 * page, 7);
    void* block = allocate(pool, 1 * KiB, Category::activation, 7);
    step.store(1, std::memory_order_relaxed);
    wait_for(2);
    deallocate(pool, block, 1 * KiB, 7);
    step.store(3, std::memory_order_relaxed);
  });
  wait_for(1);
  pool.stream_destroyed(stream_of(pool, 7));
  EXPECT_EQ(device->unfinished_events(), 1u);
  pool.trim();  // waits for the work of the stream and clears the stream of its blocks
  EXPECT_EQ(device->unfinished_events(), 0u);
  step.store(2, std::memory_order_relaxed);
  wait_for(3);
  owner.join();
  EXPECT_EQ(pool.statistics().active_bytes.current, 0u);
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
}

// While a pool is destroyed, threads that have used it switch to other pools, whose caches evict its cache, or end.
TEST_P(ThreadsTest, MayDropTheirCacheWhileThePoolIsDestroyed) {
  constexpr int rounds = 60;
  CachingAllocator other(memory(4 * page));
  for (int round = 0; round < rounds; ++round) {
    auto pool = std::make_unique<CachingAllocator>(memory(64 * page));
    for (int i = 0; i < 20'000; ++i) allocate(*pool, 1000);  // the thread must release these at its end
    std::atomic<bool> is_done = false;
    std::thread user([&, used = pool.get()] {
      deallocate(*used, allocate(*used, 500), 500);
      is_done = true;
      for (int i = 0; i < 100 * (round % 30); ++i) std::atomic_thread_fence(std::memory_order_seq_cst);
      if (round % 2 == 0) deallocate(other, allocate(other, 500), 500);
    });
    while (!is_done) std::this_thread::yield();
    pool.reset();
    user.join();
  }
  EXPECT_EQ(other.statistics().allocated_bytes.current, 0u);
}

TEST_P(ThreadsTest, NeverShareABlock) {
  CachingAllocator pool(memory(64 * page));
  const bool host = pool.device().is_cpu();
  std::vector<std::thread> threads;
  std::atomic<int> damaged = 0;
  for (unsigned id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      std::vector<std::pair<unsigned char*, std::size_t>> live;
      const auto release = [&] {
        std::swap(live[random() % live.size()], live.back());
        const auto [pointer, bytes] = live.back();
        live.pop_back();
        if (host && (pointer[0] != id + 1 || pointer[bytes - 1] != id + 1)) ++damaged;
        deallocate(pool, pointer, bytes, id % 2);
      };
      for (int step = 0; step < 5000; ++step) {
        if (live.size() < 20 && random() % 2 == 0) {
          const std::size_t bytes = 1 + random() % (std::size_t{1} << random() % 18);
          auto* pointer = static_cast<unsigned char*>(allocate(pool, bytes, Category::activation, id % 2));
          if (host) std::memset(pointer, static_cast<int>(id) + 1, bytes);
          live.emplace_back(pointer, bytes);
        } else if (!live.empty()) {
          release();
        }
        if (id == 3 && step % 100 == 0) pool.trim();
        if (id == 2 && step % 100 == 0) pool.statistics();
      }
      while (!live.empty()) release();
    });
  }
  join_all(threads);
  EXPECT_EQ(damaged, 0);
  EXPECT_EQ(pool.statistics().allocated_bytes.current, 0u);
  expect_invariants(pool);
}

TEST_P(ThreadsTest, StayWithinTheBudgetAndNeverRunOutSpuriously) {
  // Four threads with at most two pages each fit into eight, so no request may be refused in any interleaving.
  CachingAllocator pool(memory(64 * page), {.budget = 8 * page});
  std::mutex mutex;
  std::vector<std::string> refused;
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      for (int step = 0; step < 2000; ++step) {
        const std::size_t bytes = page * (1 + random() % 2);
        try {
          void* block = allocate(pool, bytes);
          deallocate(pool, block, bytes);
        } catch (const OutOfMemoryError& error) {
          const std::lock_guard lock(mutex);
          refused.emplace_back(error.what());
        }
      }
    });
  }
  join_all(threads);
  EXPECT_THAT(refused, ::testing::IsEmpty());
  EXPECT_LE(pool.statistics().reserved_bytes.peak, 8 * page);
  expect_invariants(pool);
}

TEST_P(ThreadsTest, MayFreeBlocksOfOtherThreads) {
  CachingAllocator pool(memory());
  std::vector<void*> blocks(1000);
  for (void*& block : blocks) block = allocate(pool, 500);
  std::vector<std::thread> threads;
  for (std::size_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (std::size_t i = id; i < blocks.size(); i += 4) deallocate(pool, blocks[i], 500);
    });
  }
  join_all(threads);
  EXPECT_EQ(pool.statistics().allocated_bytes.current, 0u);
  expect_invariants(pool);
}

TEST(Registry, MakesOnePoolForManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::vector<CachingAllocator*> seen(8);
  for (CachingAllocator*& pool : seen)
    threads.emplace_back([&pool] { pool = &allocator_for(Device::parse("sim:200")); });
  join_all(threads);
  for (CachingAllocator* pool : seen) EXPECT_EQ(pool, seen.front());
}

}  // namespace
}  // namespace poolgrad::testing
