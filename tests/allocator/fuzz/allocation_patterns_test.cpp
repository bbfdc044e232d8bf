// Patterns from benchmarks that stress allocators, in small, on several threads, with every byte range checked. Run
// them under the thread sanitizer too.
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/allocator/fuzz/generator.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad::testing {
namespace {

struct Owned {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  std::uint64_t stream = 0;
  unsigned char pattern = 0;
};

// A pool that stamps each block when it allocates it and checks the stamp when the block is freed.
class StampedPool {
 public:
  explicit StampedPool(const std::string& kind, AllocatorConfig config = {})
      : pool_(make_memory(kind, 512 * page), config), has_bytes_(kind == "host") {}

  Owned take(std::size_t bytes, std::uint64_t stream, unsigned char pattern) {
    const Owned block{allocate(pool_, bytes, Category::activation, stream), bytes, stream, pattern};
    if (has_bytes_) std::memset(block.pointer, pattern, bytes);
    return block;
  }
  void give(const Owned& block) {
    if (block.pointer == nullptr) return;
    if (has_bytes_) {
      const auto* bytes = static_cast<const unsigned char*>(block.pointer);
      for (std::size_t i = 0; i < block.bytes; i += 63) damaged_ += bytes[i] != block.pattern;
    }
    deallocate(pool_, block.pointer, block.bytes, block.stream);
  }
  void expect_whole() {
    EXPECT_EQ(damaged_, 0u);
    const Statistics statistics = pool_.statistics();
    EXPECT_EQ(statistics.allocated_bytes.current, 0u);
    EXPECT_EQ(statistics.requested_bytes.current, 0u);
    EXPECT_EQ(statistics.requested_bytes.allocated, statistics.requested_bytes.freed);
    pool_.trim();
    EXPECT_EQ(pool_.statistics().reserved_bytes.current, 0u);
    expect_invariants(pool_);
  }
  CachingAllocator& pool() { return pool_; }

 private:
  CachingAllocator pool_;
  bool has_bytes_;
  std::atomic<std::size_t> damaged_ = 0;
};

template <class Body>
void on_threads(unsigned count, const Body& body) {
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < count; ++id) threads.emplace_back([&body, id] { body(id); });
  for (std::thread& thread : threads) thread.join();
}

class AllocationPatterns : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, AllocationPatterns, devices, device_name);

// larson: a server whose threads end and pass their connections, full of live objects, to the next generation.
TEST_P(AllocationPatterns, LarsonMovesLiveBlocksBetweenThreads) {
  StampedPool pool(GetParam());
  constexpr std::size_t objects = 100;
  std::vector<std::vector<Owned>> connections(3, std::vector<Owned>(objects));
  for (unsigned generation = 0; generation < 6; ++generation) {
    on_threads(3, [&](unsigned id) {
      Random random(id + 100 * generation);
      std::vector<Owned>& own = connections[(id + generation) % 3];
      for (int i = 0; i < 1000; ++i) {
        Owned& block = own[random.below(objects)];
        pool.give(block);
        block = pool.take(10 + random.below(5000), random.below(2), static_cast<unsigned char>(id + 1));
      }
    });
  }
  for (auto& own : connections) {
    for (const Owned& block : own) pool.give(block);
  }
  pool.expect_whole();
}

// xmalloc: some threads only allocate, the others only free.
TEST_P(AllocationPatterns, XmallocFreesOnAnotherThread) {
  StampedPool pool(GetParam());
  std::mutex mutex;
  std::vector<Owned> queue;
  std::atomic<int> producers = 2;
  on_threads(4, [&](unsigned id) {
    Random random(id);
    if (id < 2) {
      for (int i = 0; i < 4000; ++i) {
        const Owned block = pool.take(random.any_size(15), id, static_cast<unsigned char>(i % 251));
        const std::lock_guard lock(mutex);
        queue.push_back(block);
      }
      --producers;
      return;
    }
    while (true) {
      const bool last = producers == 0;
      std::vector<Owned> batch;
      {
        const std::lock_guard lock(mutex);
        batch.swap(queue);
      }
      for (const Owned& block : batch) pool.give(block);
      if (batch.empty() && last) return;
      if (batch.empty()) std::this_thread::yield();
    }
  });
  pool.expect_whole();
}

// mstress: every thread keeps some blocks for long, frees the others soon, and swaps blocks with the other threads.
TEST_P(AllocationPatterns, MstressMixesLifetimesAndThreads) {
  StampedPool pool(GetParam());
  std::mutex mutex;
  std::vector<Owned> board(64);
  for (unsigned round = 0; round < 3; ++round) {
    on_threads(4, [&](unsigned id) {
      Random random(round * 10 + id);
      std::vector<Owned> kept;
      for (int i = 0; i < 1500; ++i) {
        Owned block = pool.take(random.any_size(random.one_in(50) ? 21 : 12), id % 2, static_cast<unsigned char>(i));
        if (random.one_in(4)) {
          kept.push_back(block);
        } else {
          const std::lock_guard lock(mutex);
          std::swap(block, board[random.below(board.size())]);
        }
        if (!random.one_in(4))
          pool.give(block.pointer == (kept.empty() ? nullptr : kept.back().pointer) ? Owned{} : block);
        else if (block.pointer != nullptr && (kept.empty() || kept.back().pointer != block.pointer))
          kept.push_back(block);
        if (kept.size() > 60) {
          std::swap(kept[random.below(kept.size())], kept.back());
          pool.give(kept.back());
          kept.pop_back();
        }
      }
      for (const Owned& block : kept) pool.give(block);
    });
  }
  for (const Owned& block : board) pool.give(block);
  pool.expect_whole();
}

// sh8bench: waves of many small blocks of a few sizes, freed from the front, from the back, or every other one.
TEST_P(AllocationPatterns, Sh8FreesWavesInEveryOrder) {
  StampedPool pool(GetParam());
  on_threads(3, [&](unsigned id) {
    for (unsigned wave = 0; wave < 12; ++wave) {
      std::vector<Owned> blocks;
      for (std::size_t i = 0; i < 400; ++i)
        blocks.push_back(pool.take(1 + (i * i + wave) % 1000, id, static_cast<unsigned char>(id + i)));
      if (wave % 3 == 0) std::reverse(blocks.begin(), blocks.end());
      if (wave % 3 == 1) {
        for (std::size_t i = 0; i < blocks.size(); i += 2) pool.give(blocks[i]);
        for (std::size_t i = 1; i < blocks.size(); i += 2) pool.give(blocks[i]);
      } else {
        for (const Owned& block : blocks) pool.give(block);
      }
    }
  });
  pool.expect_whole();
}

// Other threads trim and read the pool while threads allocate from their caches.
TEST_P(AllocationPatterns, SurviveConcurrentTrimsAndReaders) {
  StampedPool pool(GetParam(), {.budget = 24 * page});
  std::atomic<int> at_work = 3;
  on_threads(4, [&](unsigned id) {
    Random random(id);
    if (id == 3) {
      while (at_work > 0) {
        pool.pool().trim(random.any_size(22));
        EXPECT_LE(pool.pool().statistics().reserved_bytes.current, 24 * page);
        for (const BlockSnapshot& block : pool.pool().snapshot()) EXPECT_GT(block.size, 0u);
        pool.pool().sequence_hash();
        std::this_thread::yield();
      }
      return;
    }
    std::vector<Owned> kept;
    for (int i = 0; i < 4000; ++i) {
      if (kept.size() < 30 && random.below(2) == 0) {
        kept.push_back(pool.take(random.any_size(16), id, static_cast<unsigned char>(i)));
      } else if (!kept.empty()) {
        std::swap(kept[random.below(kept.size())], kept.back());
        pool.give(kept.back());
        kept.pop_back();
      }
    }
    for (const Owned& block : kept) pool.give(block);
    --at_work;
  });
  EXPECT_LE(pool.pool().statistics().reserved_bytes.peak, 24 * page);
  pool.expect_whole();
}

// Memory in one thread's cache belongs to the pool, so it is no reason to refuse another thread.
TEST_P(AllocationPatterns, RequestsUseTheCachesOfOtherThreads) {
  StampedPool pool(GetParam(), {.budget = 4 * page});
  std::atomic<unsigned> filled = 0;
  std::atomic<bool> done = false;
  std::thread keeper([&] {
    std::vector<Owned> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(pool.take(page / 4, 0, 1));
    for (const Owned& block : blocks) pool.give(block);
    filled = 1;
    while (!done) std::this_thread::yield();  // its cache is full, and it makes no more calls
  });
  while (filled == 0) std::this_thread::yield();
  pool.give(pool.take(4 * page, 1, 2));
  done = true;
  keeper.join();
  pool.expect_whole();
}

// ABA: between two reads of a free list, another thread takes its head, uses it and puts it back. Late events and
// ending threads make the same addresses come back as fast as possible.
TEST_P(AllocationPatterns, OneBlockMayPassBetweenThreads) {
  auto delayed = std::make_unique<DelayedMemory>(make_memory(GetParam(), 64 * page));
  DelayedMemory* device = delayed.get();
  CachingAllocator pool(std::move(delayed), {.budget = 8 * page});
  std::vector<std::atomic<int>> owners(8 * page / 4096);
  std::atomic<int> shared = 0;
  std::atomic<std::uintptr_t> base = reinterpret_cast<std::uintptr_t>(allocate(pool, 64));
  on_threads(4, [&](unsigned id) {
    Random random(id);
    for (int i = 0; i < 2000; ++i) {
      void* block = allocate(pool, 4096, Category::activation, id % 2);
      const std::uintptr_t place = (reinterpret_cast<std::uintptr_t>(block) - base) / 4096;
      std::atomic<int>* owner = place < owners.size() ? &owners[place] : nullptr;
      if (owner != nullptr && owner->exchange(1) == 1) ++shared;
      if (owner != nullptr) *owner = 0;
      deallocate(pool, block, 4096, random.one_in(3) ? (id + 1) % 2 : id % 2);
      if (random.one_in(20)) device->finish_events();
    }
  });
  EXPECT_EQ(shared, 0);
  deallocate(pool, reinterpret_cast<void*>(base.load()), 64);
  device->finish_events();
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
}

}  // namespace
}  // namespace poolgrad::testing
