// The modes with less bookkeeping or none, and blocks that change their size in place.
#include <cstring>
#include <random>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class ModesTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ModesTest, devices, device_name);

TEST_P(ModesTest, NoneReturnsEveryBlockToTheDevice) {
  CachingAllocator pool(memory(), {.budget = 4 * page, .mode = AllocatorMode::none});
  void* first = allocate(pool, 1000);
  void* second = allocate(pool, page + 1);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 3 * page);
  EXPECT_EQ(pool.usable_size(first), page);
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  deallocate(pool, second, page + 1);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, page);
  EXPECT_EQ(pool.statistics().allocated_bytes.current, page);
  deallocate(pool, first, 1000);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  EXPECT_EQ(pool.memory().info().free, pool.memory().info().total);
  EXPECT_EQ(pool.statistics().num_device_alloc, pool.statistics().num_device_free);
}

TEST_P(ModesTest, LightweightCountsNothingByTag) {
  CachingAllocator pool(memory(), {.mode = AllocatorMode::lightweight});
  const std::uint64_t hash = pool.sequence_hash();
  for (int i = 0; i < 3; ++i) deallocate(pool, allocate(pool, 1000, Category::gradient), 1000);
  void* parameter = allocate(pool, 1000, Category::parameter);
  const Statistics statistics = pool.statistics();
  EXPECT_EQ(statistics.requests, 4u);
  EXPECT_EQ(statistics.requested_bytes.allocated, 4000u);
  EXPECT_EQ(statistics.requested_bytes.peak, 1000u);
  for (const Gauge& gauge : statistics.category_bytes) EXPECT_EQ(gauge.allocated, 0u);
  EXPECT_EQ(pool.sequence_hash(), hash);
  EXPECT_GE(statistics.magazine_hits, 2u);
  EXPECT_EQ(statistics.reserved_bytes.current, page) << "parameters have no place of their own";
  deallocate(pool, parameter, 1000);
}

TEST_P(ModesTest, ABlockGrowsIntoTheFreeMemoryBehindItAndShrinks) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  ASSERT_TRUE(pool.expand_in_place(block, 1000, 100000, stream_of(pool)));
  EXPECT_GE(pool.usable_size(block), 100000u);
  expect_invariants(pool);
  if (pool.device().is_cpu()) std::memset(block, 1, 100000);
  void* wall = allocate(pool, 64);
  EXPECT_FALSE(pool.expand_in_place(block, 100000, 200000, stream_of(pool)));
  EXPECT_EQ(pool.statistics().requested_bytes.current, 100064u);
  ASSERT_TRUE(pool.expand_in_place(block, 100000, 10, stream_of(pool)));
  EXPECT_EQ(pool.usable_size(block), 64u);
  EXPECT_EQ(pool.statistics().requested_bytes.current, 74u);
  expect_invariants(pool);
  deallocate(pool, block, 10);
  deallocate(pool, wall, 64);
  expect_invariants(pool);
}

// A trace records growth as a free and an allocation, and its replay must release the same pages.
TEST_P(ModesTest, GrowthLeavesTheSamePagesToReleaseAsAFreeAndAnAllocation) {
  std::vector<std::vector<std::pair<std::size_t, BlockState>>> ends;
  for (const bool grows : {true, false}) {
    CachingAllocator pool(memory(), {.magazines = false});
    void* block = allocate(pool, page);
    void* behind = allocate(pool, 2 * page);
    allocate(pool, page);
    void* other = allocate(pool, page);
    allocate(pool, page);
    deallocate(pool, behind, 2 * page);
    deallocate(pool, other, page);
    if (grows) {
      ASSERT_TRUE(pool.expand_in_place(block, page, 2 * page, stream_of(pool)));
    } else {
      deallocate(pool, block, page);
      ASSERT_EQ(allocate(pool, 2 * page), block);
    }
    EXPECT_GT(pool.trim(page), 0u);
    ends.emplace_back();
    for (const BlockSnapshot& each : pool.snapshot()) ends.back().emplace_back(each.size, each.state);
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST_P(ModesTest, ABlockGrowsIntoAMagazineBlock) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1024);
  void* next = allocate(pool, 1024);
  void* wall = allocate(pool, 1024);
  deallocate(pool, next, 1024);
  ASSERT_GT(pool.statistics().magazine_bytes, 0u);
  EXPECT_TRUE(pool.expand_in_place(block, 1024, 2048, stream_of(pool)));
  EXPECT_FALSE(pool.expand_in_place(block, 2048, 2049, stream_of(pool)));
  expect_invariants(pool);
  deallocate(pool, block, 2048);
  deallocate(pool, wall, 1024);
}

TEST_P(ModesTest, OnlyLiveBlocksGrowAndOnlyOnTheirStream) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  EXPECT_FALSE(pool.expand_in_place(block, 1000, 5000, stream_of(pool, 3)));
  EXPECT_FALSE(pool.expand_in_place(block, 1000, SIZE_MAX, stream_of(pool)));
  EXPECT_THROW(pool.expand_in_place(block, 999, 5000, stream_of(pool)), ValueError);
  EXPECT_THROW(pool.expand_in_place(&pool, 10, 5000, stream_of(pool)), ValueError);
  EXPECT_EQ(pool.usable_size(block), 1024u);
  deallocate(pool, block, 1000);
}

}  // namespace
}  // namespace poolgrad::testing
