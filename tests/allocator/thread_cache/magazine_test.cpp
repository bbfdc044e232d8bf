// A magazine keeps a thread's free blocks by exact size, newest first, up to a limit. The depot passes chains of blocks
// from thread to thread. The pool can reclaim both.
#include "allocator/thread_cache/magazine.h"

#include <thread>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

std::vector<Block> blocks_of(std::size_t count, std::size_t size) {
  std::vector<Block> blocks(count);
  for (Block& block : blocks) block.size = size;
  return blocks;
}

TEST(Magazine, ReturnsTheNewestBlockOfExactlyTheSize) {
  Magazine magazine(7, 0, 1);
  std::vector<Block> blocks = blocks_of(3, 1024);
  for (Block& block : blocks) ASSERT_TRUE(magazine.push(&block, 4096));
  EXPECT_EQ(magazine.bytes(), 3072u);
  EXPECT_EQ(magazine.pop(960, 64), nullptr);
  EXPECT_EQ(magazine.pop(1088, 64), nullptr);
  for (std::size_t i = blocks.size(); i-- > 0;) EXPECT_EQ(magazine.pop(1024, 64), &blocks[i]);
  EXPECT_EQ(magazine.pop(1024, 64), nullptr);
  EXPECT_EQ(magazine.bytes(), 0u);
}

TEST(Magazine, ReturnsOnlyAlignedBlocks) {
  Magazine magazine(7, 0, 1);
  std::vector<Block> blocks = blocks_of(2, 1024);
  blocks[0].address = 4096;
  blocks[1].address = 64;
  ASSERT_TRUE(magazine.push(&blocks[0], 4096));
  EXPECT_EQ(magazine.pop(1024, 256), &blocks[0]);
  ASSERT_TRUE(magazine.push(&blocks[1], 4096));
  EXPECT_EQ(magazine.pop(1024, 256), nullptr);
  EXPECT_EQ(magazine.pop(1024, 64), &blocks[1]);
}

TEST(Magazine, HoldsNoMoreBytesThanItsLimit) {
  Magazine magazine(0, 0, 1);
  std::vector<Block> blocks = blocks_of(5, 1024);
  for (std::size_t i = 0; i < 4; ++i) ASSERT_TRUE(magazine.push(&blocks[i], 5119));
  EXPECT_FALSE(magazine.push(&blocks[4], 5119));
  EXPECT_TRUE(magazine.push(&blocks[4], 5120));
  EXPECT_EQ(magazine.bytes(), 5120u);
}

TEST(Magazine, GivesUpSizesThatDoNotComeBack) {
  Magazine magazine(0, 0, 1);
  std::vector<Block> old = blocks_of(64, 64);
  for (Block& block : old) ASSERT_TRUE(magazine.push(&block, 4096));
  Block wanted;
  wanted.size = 4096;
  Chain given;
  int offers = 0;
  while (!magazine.push(&wanted, 4096)) {
    ASSERT_LT(++offers, 1000);
    if (const Chain chain = magazine.make_room(&wanted); chain.top != nullptr) given = chain;
  }
  EXPECT_GT(offers, 1) << "at once would be too soon";
  EXPECT_EQ(given.size, 64u);
  EXPECT_EQ(given.count, old.size());
}

TEST(Magazine, GivesUpLargerBlocksAtOnce) {
  Magazine magazine(0, 0, 1);
  Block large, small;
  large.size = 4096;
  small.size = 64;
  ASSERT_TRUE(magazine.push(&large, 4096));
  ASSERT_FALSE(magazine.push(&small, 4096));
  int offers = 0;
  for (; magazine.bytes() != 0; ++offers) magazine.make_room(&small);
  EXPECT_LE(offers, 16) << "each offer looks at 8 of 128 bins";
}

TEST(Magazine, GivesUpItsOnlySizeAsOneChainAndTakesItOver) {
  Magazine magazine(0, 0, 1), other(0, 1, 1);
  std::vector<Block> blocks = blocks_of(65, 64);
  for (std::size_t i = 0; i < 64; ++i) ASSERT_TRUE(magazine.push(&blocks[i], 4096));
  const Chain chain = magazine.make_room(&blocks[64]);
  EXPECT_EQ(chain.bytes(), 4096u);
  EXPECT_EQ(magazine.bytes(), 0u);
  EXPECT_FALSE(other.take_over(chain, 4095));
  ASSERT_TRUE(other.take_over(chain, 4096));
  EXPECT_FALSE(other.take_over(chain, 8192)) << "the bin is in use";
  for (std::size_t i = 64; i-- > 0;) EXPECT_EQ(other.pop(64, 64), &blocks[i]);
  EXPECT_EQ(other.bytes(), 0u);
}

Chain chain_of(std::vector<Block>& blocks) {
  Chain chain;
  for (Block& block : blocks) chain.push(&block);
  return chain;
}

TEST(Depot, ReturnsTheNewestChainOfTheSizeAndStream) {
  Depot depot;
  const auto none = [](Block*) { FAIL(); };
  std::vector<Block> first = blocks_of(3, 64), second = blocks_of(2, 64), third = blocks_of(2, 128);
  std::vector<Block> elsewhere = blocks_of(1, 64);
  elsewhere[0].stream = 7;
  for (auto* blocks : {&first, &second, &third, &elsewhere}) depot.give(chain_of(*blocks), 1024, none);
  EXPECT_EQ(depot.bytes(), 64u * 6 + 256);
  EXPECT_EQ(depot.take(192, 0).top, nullptr);
  EXPECT_EQ(depot.take(64, 0).count, 2u);
  EXPECT_EQ(depot.take(64, 0).count, 3u);
  EXPECT_EQ(depot.take(64, 0).top, nullptr);
  std::size_t released = 0;
  depot.drain_stream(7, [&](Block* block) { released += block->size; });
  EXPECT_EQ(released, 64u);
  depot.drain([&](Block* block) { released += block->size; });
  EXPECT_EQ(released, 320u);
  EXPECT_EQ(depot.bytes(), 0u);
}

TEST(Depot, ReleasesTheOldestChainsBeyondItsLimit) {
  Depot depot;
  std::vector<std::vector<Block>> chains(6, blocks_of(16, 64));
  std::vector<const Block*> released;
  for (auto& blocks : chains) depot.give(chain_of(blocks), 1024, [&](Block* block) { released.push_back(block); });
  EXPECT_EQ(depot.bytes(), 4096u) << "four magazines";
  ASSERT_EQ(released.size(), 32u);
  EXPECT_EQ(released.front(), &chains[0].back());
  EXPECT_EQ(released.back(), &chains[1].front());
  depot.give(chain_of(chains[0]), 1023, [&](Block* block) { released.push_back(block); });
  EXPECT_EQ(released.size(), 48u) << "a chain of more than a magazine holds";
}

class MagazinesTest : public PoolTest {
 protected:
  static std::size_t count(const CachingAllocator& pool, BlockState state) {
    std::size_t blocks = 0;
    for (const BlockSnapshot& block : pool.snapshot()) blocks += block.state == state;
    return blocks;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, MagazinesTest, devices, device_name);

TEST_P(MagazinesTest, ServeASizeThatWasJustFreed) {
  CachingAllocator pool(memory());
  void* first = allocate(pool, 1000);
  void* second = allocate(pool, 1000);
  deallocate(pool, first, 1000);
  deallocate(pool, second, 1000);
  EXPECT_EQ(count(pool, BlockState::magazine), 2u);
  EXPECT_EQ(pool.statistics().magazine_bytes, 2048u);
  expect_invariants(pool);
  EXPECT_EQ(allocate(pool, 1000), second);
  EXPECT_EQ(allocate(pool, 970), first) << "both are 1024 bytes";
  EXPECT_EQ(pool.statistics().magazine_hits, 2u);
  EXPECT_EQ(pool.usable_size(first), 1024u);
  expect_invariants(pool);
}

TEST_P(MagazinesTest, KeepStreamsApart) {
  CachingAllocator pool(memory());
  void* one = allocate(pool, 1000, Category::activation, 1);
  void* two = allocate(pool, 1000, Category::activation, 2);
  const std::uint64_t events = pool.statistics().events_recorded;
  deallocate(pool, one, 1000, 1);
  deallocate(pool, two, 1000, 2);
  EXPECT_EQ(count(pool, BlockState::magazine), 2u);
  EXPECT_EQ(allocate(pool, 1000, Category::activation, 1), one);
  EXPECT_EQ(allocate(pool, 1000, Category::activation, 2), two);
  EXPECT_EQ(pool.statistics().events_recorded, events);
}

// Half of malloc's addresses are odd multiples of 64 bytes. A magazine must serve requests with PyTorch's alignment.
TEST_P(MagazinesTest, ServeRequestsOfPyTorchsAlignmentOnEveryThread) {
  CachingAllocator pool(memory(64 * page));
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&pool] {
      const Stream stream{pool.device(), 0};
      for (int i = 0; i < 1000; ++i)
        for (const std::size_t bytes : {std::size_t{1000}, std::size_t{320}}) {
          void* block = pool.allocate(bytes, 256, stream);
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0u);
          pool.deallocate(block, bytes, 256, stream);
        }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(pool.statistics().magazine_hits, 3600u) << "of 4000 requests";
}

TEST_P(MagazinesTest, HoldTransientBlocksOnly) {
  CachingAllocator pool(memory());
  void* parameter = allocate(pool, 1000, Category::parameter);
  deallocate(pool, parameter, 1000);
  EXPECT_EQ(count(pool, BlockState::magazine), 0u);
}

TEST_P(MagazinesTest, AreDrainedBeforeTheDeviceIsAskedForMore) {
  CachingAllocator pool(memory(), {.budget = page});
  std::vector<void*> blocks;
  for (int i = 0; i < 512; ++i) blocks.push_back(allocate(pool, page / 512));
  for (void* block : blocks) deallocate(pool, block, page / 512);
  ASSERT_GT(pool.statistics().magazine_bytes, 64 * KiB) << "the depot holds some of it";
  // All of the budget is committed, and the magazine holds some of it. The pool must reclaim it for this request.
  EXPECT_NE(allocate(pool, page), nullptr);
  EXPECT_EQ(pool.statistics().num_device_alloc, 1u);
  EXPECT_EQ(count(pool, BlockState::magazine), 0u);
}

TEST_P(MagazinesTest, AreDrainedForOtherThreads) {
  CachingAllocator pool(memory(), {.budget = page});
  std::atomic<int> phase = 0;
  std::thread other([&] {
    void* block = allocate(pool, 1000);
    deallocate(pool, block, 1000);
    phase = 1;
    phase.notify_all();
    phase.wait(1);
    // The cache still works after the pool took it and the thread got it back.
    deallocate(pool, allocate(pool, 1000), 1000);
    deallocate(pool, allocate(pool, 1000), 1000);
  });
  phase.wait(0);
  EXPECT_EQ(count(pool, BlockState::magazine), 1u);
  void* all = allocate(pool, page);
  EXPECT_EQ(count(pool, BlockState::magazine), 0u);
  deallocate(pool, all, page);
  phase = 2;
  phase.notify_all();
  other.join();
  expect_invariants(pool);
}

TEST_P(MagazinesTest, ReturnToThePoolWhenTheirThreadEnds) {
  CachingAllocator pool(memory());
  std::thread([&] { deallocate(pool, allocate(pool, 1000), 1000); }).join();
  EXPECT_EQ(count(pool, BlockState::magazine), 0u);
  EXPECT_EQ(pool.statistics().requests, 1u);
  EXPECT_EQ(pool.statistics().allocated_bytes.freed, 1024u);
  expect_invariants(pool);
}

TEST_P(MagazinesTest, AreDroppedWithTheirPool) {
  // The thread has caches of destroyed pools and of new pools at the same addresses.
  for (int round = 0; round < 20; ++round) {
    CachingAllocator pool(memory());
    CachingAllocator other(memory());
    void* block = allocate(pool, 1000);
    deallocate(pool, block, 1000);
    EXPECT_EQ(allocate(pool, 1000), block);
    deallocate(other, allocate(other, 1000), 1000);
    EXPECT_EQ(other.statistics().requests, 1u);
  }
}

TEST_P(MagazinesTest, TakeBlocksThatAnotherThreadAllocated) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  void* again = nullptr;
  std::thread([&] {
    void* mine = allocate(pool, 1000);
    deallocate(pool, block, 1000);
    again = allocate(pool, 1000);
    deallocate(pool, again, 1000);
    deallocate(pool, mine, 1000);
  }).join();
  EXPECT_EQ(again, block);
  EXPECT_EQ(pool.statistics().allocated_bytes.current, 0u);
  expect_invariants(pool);
}

TEST_P(MagazinesTest, AreOffWithPoisonAndWithoutThePool) {
  for (const AllocatorConfig& config : {AllocatorConfig{.magazines = false}, AllocatorConfig{.poison = true},
                                        AllocatorConfig{.mode = AllocatorMode::none}}) {
    CachingAllocator pool(memory(), config);
    deallocate(pool, allocate(pool, 1000), 1000);
    EXPECT_EQ(count(pool, BlockState::magazine), 0u);
    EXPECT_EQ(pool.statistics().magazine_hits, 0u);
  }
}

TEST_P(MagazinesTest, HoldLessInASmallerPool) {
  CachingAllocator pool(memory());
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(allocate(pool, 1000));
  void* large = allocate(pool, 32 * page);
  deallocate(pool, allocate(pool, 1000), 1000);
  deallocate(pool, large, 32 * page);
  pool.set_budget(2 * page);
  for (void* block : blocks) deallocate(pool, block, 1000);
  EXPECT_LE(pool.statistics().magazine_bytes, 5 * 64 * KiB) << "a 64th of two pages, and four of them in the depot";
}

TEST_P(MagazinesTest, PassChainsFromAThreadThatFreesToOneThatAllocates) {
  for (const bool destroyed : {false, true}) {
    CachingAllocator pool(memory());
    std::vector<void*> blocks;
    const auto allocate_all = [&] {
      while (blocks.size() < 1000) blocks.push_back(allocate(pool, 1000, Category::activation, 7));
    };
    const auto free_all = [&] {
      for (; !blocks.empty(); blocks.pop_back()) deallocate(pool, blocks.back(), 1000, 7);
    };
    allocate_all();
    std::thread(free_all).join();
    EXPECT_EQ(pool.statistics().magazine_bytes, 256 * KiB);
    expect_invariants(pool);
    if (destroyed) {
      pool.stream_destroyed(stream_of(pool, 7));
      EXPECT_EQ(pool.statistics().magazine_bytes, 0u);
    }
    const std::uint64_t before = pool.statistics().magazine_hits;
    allocate_all();
    EXPECT_EQ(pool.statistics().magazine_hits - before, destroyed ? 0u : 4 * 63u) << "four chains of 64 blocks";
    expect_invariants(pool);
    free_all();
  }
}

TEST_P(MagazinesTest, AreEmptiedByTrim) {
  CachingAllocator pool(memory());
  for (int i = 0; i < 3; ++i) deallocate(pool, allocate(pool, 1000), 1000);
  EXPECT_EQ(pool.trim(), page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
}

using MagazinesDeathTest = MagazinesTest;
INSTANTIATE_TEST_SUITE_P(Devices, MagazinesDeathTest, devices, device_name);

TEST_P(MagazinesDeathTest, NameADoubleFree) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  deallocate(pool, block, 1000);
  ASSERT_EQ(count(pool, BlockState::magazine), 1u);
  EXPECT_DEATH(deallocate(pool, block, 1000), "\\[deallocate\\] double free of 0x");
}

TEST_P(MagazinesDeathTest, NameAWrongSizeAndAStreamOfAnotherDevice) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  deallocate(pool, block, 1000);
  ASSERT_EQ(allocate(pool, 1000), block);
  EXPECT_DEATH(deallocate(pool, block, 999), "wrong size for .* it has 1000 bytes, not 999");
  EXPECT_DEATH(pool.deallocate(block, 1000, 64, Stream{Device::parse("cuda:5"), 0}),
               "stream of another device for .* cuda:5");
}

TEST_P(MagazinesTest, AreDrainedWhileTheirOwnersWork) {
  // Owner threads start and end as fast as they can, while another thread drains, reads and resets.
  CachingAllocator pool(memory(64 * page));
  std::atomic<bool> done = false;
  std::vector<std::thread> owners;
  for (std::uint64_t id = 0; id < 3; ++id) {
    owners.emplace_back([&, id] {
      for (int i = 0; i < 3000; ++i) {
        void* first = allocate(pool, 512, Category::activation, id % 2);
        void* second = allocate(pool, 2048, Category::gradient, id % 2);
        deallocate(pool, first, 512, id % 2);
        deallocate(pool, second, 2048, id % 2);
      }
    });
  }
  std::thread thief([&] {
    while (!done) {
      pool.trim(1);
      pool.snapshot();
      pool.reset_peaks();
      std::this_thread::yield();
    }
  });
  for (std::thread& owner : owners) owner.join();
  done = true;
  thief.join();
  const Statistics statistics = pool.statistics();
  EXPECT_EQ(statistics.requests, 3u * 3000u * 2u);
  EXPECT_EQ(statistics.allocation.freed, statistics.requests);
  EXPECT_EQ(statistics.allocated_bytes.current, 0u);
  EXPECT_EQ(statistics.requested_bytes.allocated, 3u * 3000u * 2560u);
  expect_invariants(pool);
}

}  // namespace
}  // namespace poolgrad::testing
