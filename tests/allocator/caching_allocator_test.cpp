#include "allocator/caching_allocator.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "allocator/memory/memory_adaptor.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class CachingAllocatorTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CachingAllocatorTest, devices, device_name);

TEST_P(CachingAllocatorTest, CommitsOnlyThePagesThatAreNeeded) {
  CachingAllocator pool(memory());
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  void* small = allocate(pool, 100);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, page);
  void* large = allocate(pool, 5 * MiB);
  // 128 bytes and 5 MiB fit in three pages: the second allocation uses the rest of the first page.
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 3 * page);
  EXPECT_EQ(pool.statistics().num_device_alloc, 2u);
  expect_invariants(pool);
  deallocate(pool, small, 100);
  deallocate(pool, large, 5 * MiB);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 3 * page);
  expect_invariants(pool);
}

TEST(HostGrowth, UsesLargePagesOnceTheyWasteLittle) {
  CachingAllocator pool(make_memory("host", 1024 * MiB, 64 * KiB));
  const auto reserved = [&] { return pool.statistics().reserved_bytes.current; };
  allocate(pool, 100 * KiB);
  EXPECT_EQ(reserved(), 128 * KiB);
  allocate(pool, 32 * MiB);
  EXPECT_EQ(reserved(), 32 * MiB + 128 * KiB);
  // Large pages from here on: growth ends at a multiple of 2 MiB.
  allocate(pool, MiB);
  EXPECT_EQ(reserved(), 34 * MiB);
  allocate(pool, 3 * MiB);
  EXPECT_EQ(reserved(), 38 * MiB);
  expect_invariants(pool);
}

TEST(HostGrowth, UsesTheLastSmallPagesOfABudget) {
  CachingAllocator pool(make_memory("host", 1024 * MiB, 64 * KiB), {.budget = 41 * MiB});
  allocate(pool, 40 * MiB);
  allocate(pool, 900 * KiB);
  EXPECT_LE(pool.statistics().reserved_bytes.peak, 41 * MiB);
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, ReusesAFreedBlockWithoutTheDevice) {
  CachingAllocator pool(memory());
  void* first = allocate(pool, 3 * MiB);
  deallocate(pool, first, 3 * MiB);
  EXPECT_EQ(allocate(pool, 3 * MiB), first);
  const Statistics statistics = pool.statistics();
  EXPECT_EQ(statistics.requests, 2u);
  EXPECT_EQ(statistics.pool_hits, 1u);
  EXPECT_EQ(statistics.num_device_alloc, 1u);
  EXPECT_EQ(statistics.hit_rate(), 0.5);
}

TEST_P(CachingAllocatorTest, ReturnsTheFirstPointerAfterEverythingWasFreed) {
  CachingAllocator pool(memory(), {.magazines = false});
  void* first = allocate(pool, 1000);
  std::vector<void*> others;
  for (int i = 0; i < 100; ++i) others.push_back(allocate(pool, 5000));
  for (std::size_t i = 0; i < others.size(); i += 2) deallocate(pool, others[i], 5000);
  deallocate(pool, first, 1000);
  for (std::size_t i = 1; i < others.size(); i += 2) deallocate(pool, others[i], 5000);
  EXPECT_EQ(allocate(pool, 700), first);
}

TEST_P(CachingAllocatorTest, CoalescesNeighboursInEveryOrderOfRelease) {
  std::array<int, 3> order = {0, 1, 2};
  do {
    CachingAllocator pool(memory());
    std::array<void*, 3> blocks{};
    for (void*& block : blocks) block = allocate(pool, 64 * KiB);
    for (const int i : order) {
      deallocate(pool, blocks[static_cast<std::size_t>(i)], 64 * KiB);
      expect_invariants(pool);
    }
    EXPECT_EQ(allocate(pool, page), blocks[0]);
    EXPECT_EQ(pool.statistics().num_device_alloc, 1u);
  } while (std::ranges::next_permutation(order).found);
}

TEST_P(CachingAllocatorTest, TakesTheBestFitAndThenTheLowestAddress) {
  CachingAllocator pool(memory(), {.magazines = false});
  std::vector<void*> blocks;
  const std::vector<std::size_t> sizes = {8192, 4096, 6144, 4096, 5120};
  std::vector<void*> walls;
  for (const std::size_t size : sizes) {
    blocks.push_back(allocate(pool, size));
    walls.push_back(allocate(pool, 64));
  }
  for (std::size_t i = sizes.size(); i-- > 0;) deallocate(pool, blocks[i], sizes[i]);
  EXPECT_EQ(allocate(pool, 4090), blocks[1]);
  EXPECT_EQ(allocate(pool, 4090), blocks[3]);
  EXPECT_EQ(allocate(pool, 4090), blocks[4]);
  EXPECT_EQ(allocate(pool, 5121), blocks[2]);
}

TEST_P(CachingAllocatorTest, HonoursEveryAlignment) {
  CachingAllocator pool(memory());
  std::vector<std::tuple<void*, std::size_t, std::size_t>> blocks;
  for (std::size_t alignment = 1; alignment <= 4 * page; alignment *= 2) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{70000}}) {
      void* pointer = pool.allocate(bytes, alignment, stream_of(pool));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % std::max<std::size_t>(alignment, 64), 0u);
      blocks.emplace_back(pointer, bytes, alignment);
    }
  }
  expect_invariants(pool);
  for (const auto& [pointer, bytes, alignment] : blocks) pool.deallocate(pointer, bytes, alignment, stream_of(pool));
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, RefusesAnAlignmentThatIsNotAPowerOfTwo) {
  CachingAllocator pool(memory());
  for (const std::size_t alignment : {0u, 3u, 65u}) {
    EXPECT_THAT(
        [&] { pool.allocate(8, alignment, stream_of(pool)); },
        ThrowsMessage<ValueError>(HasSubstr("alignment must be a power of two, got " + std::to_string(alignment))));
  }
}

TEST_P(CachingAllocatorTest, RefusesAStreamOfAnotherDevice) {
  CachingAllocator pool(memory());
  EXPECT_THROW(pool.allocate(8, 64, Stream{Device::parse("cuda:3"), 0}), DeviceError);
}

TEST_P(CachingAllocatorTest, GivesZeroBytesADistinctPointerEach) {
  CachingAllocator pool(memory());
  void* first = allocate(pool, 0);
  void* second = allocate(pool, 0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.usable_size(first), 64u);
  deallocate(pool, first, 0);
  deallocate(pool, second, 0);
  deallocate(pool, nullptr, 0);
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, WastesLessThanOneGranulePerBlock) {
  CachingAllocator pool(memory());
  for (const std::size_t bytes : {1u, 63u, 64u, 65u, 1000u, 4097u, 1000001u}) {
    EXPECT_EQ(pool.usable_size(allocate(pool, bytes)), (bytes + 63) / 64 * 64);
  }
  EXPECT_THROW(pool.usable_size(&pool), ValueError);
}

TEST_P(CachingAllocatorTest, UsesAnotherGranuleWhenConfigured) {
  CachingAllocator pool(memory(), {.alignment = 512});
  void* pointer = allocate(pool, 1);
  EXPECT_EQ(pool.usable_size(pointer), 512u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocate(pool, 600)) % 512, 0u);
  EXPECT_THROW(CachingAllocator(memory(), {.alignment = 96}), ValueError);
  EXPECT_THROW(CachingAllocator(memory(), {.alignment = 2 * page}), ValueError);
}

TEST_P(CachingAllocatorTest, ReleasesTheLeastRecentlyUsedRunFirst) {
  CachingAllocator pool(memory());
  std::array<void*, 4> blocks{};
  std::array<void*, 4> walls{};
  for (std::size_t i = 0; i < 4; ++i) {
    blocks[i] = allocate(pool, page);
    walls[i] = allocate(pool, page);
  }
  for (const std::size_t i : {2u, 0u, 3u, 1u}) deallocate(pool, blocks[i], page);
  const auto committed = [&](std::size_t i) {
    for (const BlockSnapshot& block : pool.snapshot()) {
      if (block.address <= reinterpret_cast<std::uintptr_t>(blocks[i]) &&
          reinterpret_cast<std::uintptr_t>(blocks[i]) < block.address + block.size) {
        return block.state == BlockState::free;
      }
    }
    return false;
  };
  for (const std::size_t i : {2u, 0u, 3u, 1u}) {
    EXPECT_TRUE(committed(i));
    EXPECT_EQ(pool.trim(1), page);
    EXPECT_FALSE(committed(i));
    expect_invariants(pool);
  }
  EXPECT_EQ(pool.trim(), 0u);
}

TEST_P(CachingAllocatorTest, TrimsOnlyAsManyPagesAsAsked) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 8 * page);
  deallocate(pool, block, 8 * page);
  EXPECT_EQ(pool.trim(page + 1), 2 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 6 * page);
  EXPECT_EQ(pool.statistics().num_device_free, 1u);
  // The lower pages are still committed, so the block returns to its address.
  EXPECT_EQ(allocate(pool, 8 * page), block);
  EXPECT_EQ(pool.statistics().num_device_alloc, 2u);
}

TEST_P(CachingAllocatorTest, TrimsOnlyWholePages) {
  CachingAllocator pool(memory());
  void* first = allocate(pool, 100);
  void* middle = allocate(pool, 3 * page + page / 2);
  void* last = allocate(pool, 100);
  deallocate(pool, middle, 3 * page + page / 2);
  EXPECT_EQ(pool.trim(), 2 * page);
  expect_invariants(pool);
  deallocate(pool, first, 100);
  deallocate(pool, last, 100);
  EXPECT_EQ(pool.trim(), 2 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, NeverExceedsItsBudget) {
  CachingAllocator pool(memory(), {.budget = 4 * page});
  void* block = allocate(pool, 3 * page);
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  EXPECT_EQ(pool.statistics().reserved_bytes.peak, 3 * page);
  deallocate(pool, block, 3 * page);
  void* all = allocate(pool, 4 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.peak, 4 * page);
  EXPECT_THROW(allocate(pool, 1), OutOfMemoryError);
  deallocate(pool, all, 4 * page);
  EXPECT_NO_THROW(allocate(pool, 1));
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, ReleasesCachedPagesToMakeRoomForALargerBlock) {
  CachingAllocator pool(memory(), {.budget = 6 * page});
  std::array<void*, 3> blocks{};
  std::array<void*, 3> walls{};
  for (std::size_t i = 0; i < 3; ++i) {
    blocks[i] = allocate(pool, page);
    walls[i] = allocate(pool, page);
  }
  for (void* block : blocks) deallocate(pool, block, page);
  // Three scattered free pages become one range of three; reserved bytes do not grow.
  void* large = allocate(pool, 3 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 6 * page);
  EXPECT_EQ(pool.statistics().num_device_free, 3u);
  expect_invariants(pool);
  deallocate(pool, large, 3 * page);
}

TEST_P(CachingAllocatorTest, LowersItsBudgetByTrimming) {
  CachingAllocator pool(memory());
  void* kept = allocate(pool, 2 * page);
  deallocate(pool, allocate(pool, 6 * page), 6 * page);
  pool.set_budget(3 * page);
  EXPECT_EQ(pool.budget(), 3 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 3 * page);
  EXPECT_THROW(pool.set_budget(page), ValueError);
  EXPECT_EQ(pool.budget(), 3 * page);
  deallocate(pool, kept, 2 * page);
  pool.set_budget(0);
  EXPECT_EQ(pool.budget(), 1024 * MiB);
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, StopsAtTheCapacityOfTheDevice) {
  CachingAllocator pool(memory(4 * page), {.budget = 100 * page});
  void* block = allocate(pool, 2 * page, Category::parameter);
  void* other = allocate(pool, 2 * page);
  EXPECT_THAT([&] { allocate(pool, page); }, ThrowsMessage<OutOfMemoryError>(HasSubstr("free on the device 0 B")));
  deallocate(pool, block, 2 * page);
  // The device has no free page, but the pool can release cached ones.
  void* third = allocate(pool, 2 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 4 * page);
  deallocate(pool, other, 2 * page);
  deallocate(pool, third, 2 * page);
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, KeepsLongLivedMemoryApartFromTransients) {
  CachingAllocator pool(memory());
  std::vector<std::pair<void*, std::size_t>> transients;
  for (int i = 0; i < 16; ++i) {
    transients.emplace_back(allocate(pool, page / 2), page / 2);
    allocate(pool, 1000, i % 2 == 0 ? Category::parameter : Category::optimizer_state);
  }
  for (const auto& [pointer, bytes] : transients) deallocate(pool, pointer, bytes);
  EXPECT_EQ(pool.trim(), 8 * page / 2 * 2);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, page);
}

TEST_P(CachingAllocatorTest, UsesTheOtherArenaBeforeItFails) {
  CachingAllocator pool(memory(), {.budget = page});
  void* parameter = allocate(pool, 1000, Category::parameter);
  void* transient = allocate(pool, 1000, Category::activation);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, page);
  deallocate(pool, parameter, 1000);
  deallocate(pool, transient, 1000);
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, CountsBytesByCategory) {
  CachingAllocator pool(memory());
  void* query = allocate(pool, 1000, Category::query);
  void* scores = allocate(pool, 3000, Category::scores);
  deallocate(pool, scores, 3000);
  const Statistics statistics = pool.statistics();
  const auto& gauges = statistics.category_bytes;
  EXPECT_EQ(gauges[static_cast<std::size_t>(Category::query)].current, 1000u);
  EXPECT_EQ(gauges[static_cast<std::size_t>(Category::scores)].current, 0u);
  EXPECT_EQ(gauges[static_cast<std::size_t>(Category::scores)].peak, 3000u);
  EXPECT_EQ(gauges[static_cast<std::size_t>(Category::scores)].freed, 3000u);
  EXPECT_EQ(statistics.requested_bytes.peak, 4000u);
  EXPECT_EQ(statistics.allocated_bytes.peak, 1024u + 3008u);
  EXPECT_EQ(statistics.cached_bytes(), page - 1024u);
  pool.reset_peaks();
  EXPECT_EQ(pool.statistics().requested_bytes.peak, 1000u);
  deallocate(pool, query, 1000);
}

TEST_P(CachingAllocatorTest, TagsBlocksWithTheOpenScopes) {
  CachingAllocator pool(memory());
  const MemoryScope scope("tagged.block", Category::mask);
  pool.allocate(10, 64, stream_of(pool));
  for (const BlockSnapshot& block : pool.snapshot()) {
    if (block.state != BlockState::live) continue;
    EXPECT_EQ(block.tag.category, Category::mask);
    EXPECT_EQ(scope_name(block.tag.scope), "tagged.block");
    EXPECT_EQ(block.number, 1u);
    EXPECT_EQ(block.requested, 10u);
  }
}

TEST_P(CachingAllocatorTest, ReportsInsteadOfThrowingWhenTried) {
  CachingAllocator pool(memory(), {.budget = page});
  const auto result = pool.try_allocate({.bytes = 2 * page, .alignment = 64, .stream = stream_of(pool)});
  ASSERT_TRUE(std::holds_alternative<std::string>(result));
  EXPECT_THAT(std::get<std::string>(result), HasSubstr("out of memory"));
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
}

TEST_P(CachingAllocatorTest, RefusesSizesThatWouldOverflow) {
  CachingAllocator pool(memory());
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, std::size_t{1} << 60}) {
    EXPECT_THROW(allocate(pool, bytes), OutOfMemoryError);
  }
  EXPECT_THROW(pool.allocate(64, std::size_t{1} << 63, stream_of(pool)), OutOfMemoryError);
  EXPECT_NO_THROW(allocate(pool, 64));
  expect_invariants(pool);
}

TEST_P(CachingAllocatorTest, ReleasesEverythingWhenItIsDestroyed) {
  auto owned = memory();
  class Watch : public MemoryAdaptor {
   public:
    Watch(std::unique_ptr<DeviceMemory> inner, std::size_t& committed, std::size_t& reserved)
        : MemoryAdaptor(std::move(inner)), committed_(committed), reserved_(reserved) {}
    void* reserve(std::size_t bytes) override {
      reserved_ += bytes;
      return inner().reserve(bytes);
    }
    void unreserve(void* address, std::size_t bytes) noexcept override {
      reserved_ -= bytes;
      inner().unreserve(address, bytes);
    }
    bool commit(void* address, std::size_t bytes) override {
      committed_ += bytes;
      return inner().commit(address, bytes);
    }
    void decommit(void* address, std::size_t bytes) noexcept override {
      committed_ -= bytes;
      inner().decommit(address, bytes);
    }

   private:
    std::size_t& committed_;
    std::size_t& reserved_;
  };
  std::size_t committed = 0;
  std::size_t reserved = 0;
  {
    CachingAllocator pool(std::make_unique<Watch>(std::move(owned), committed, reserved));
    allocate(pool, 3 * page);
    deallocate(pool, allocate(pool, 5 * page), 5 * page);
    allocate(pool, 100, Category::parameter);
    pool.trim(page);
    EXPECT_EQ(committed, pool.statistics().reserved_bytes.current);
    EXPECT_GT(reserved, 0u);
  }
  EXPECT_EQ(committed, 0u);
  EXPECT_EQ(reserved, 0u);
}

}  // namespace
}  // namespace poolgrad::testing
