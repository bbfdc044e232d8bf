// Memory is committed and released in handles, and moves to the addresses that need it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/memory_adaptor.h"
#include "tests/allocator/memory/recording_driver.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;

struct Calls {
  std::vector<std::size_t> commits;
  std::size_t decommits = 0;
  std::size_t moves = 0;
  std::vector<void*> decommitted;
  std::function<void()> during_decommit = [] {};  // called in the next decommit
};

/// Records the calls; moves pages only if the device can.
class Watch : public MemoryAdaptor {
 public:
  Watch(std::unique_ptr<DeviceMemory> inner, Calls& calls, bool movable)
      : MemoryAdaptor(std::move(inner)), calls_(calls), movable_(movable) {}
  bool commit(void* address, std::size_t bytes) override {
    calls_.commits.push_back(bytes);
    return inner().commit(address, bytes);
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    ++calls_.decommits;
    calls_.decommitted.push_back(address);
    std::exchange(calls_.during_decommit, [] {})();
    inner().decommit(address, bytes);
  }
  bool move(void* from, void* to, std::size_t bytes) override {
    ++calls_.moves;
    return movable_ && inner().move(from, to, bytes);
  }

 private:
  Calls& calls_;
  bool movable_;
};

class PageHeapTest : public PoolTest {
 protected:
  CachingAllocator& make_pool(AllocatorConfig config, bool movable = true, std::size_t capacity = 8192 * MiB) {
    pool_ = std::make_unique<CachingAllocator>(std::make_unique<Watch>(memory(capacity), calls_, movable), config);
    return *pool_;
  }

  const ReclaimStatistics& stage(ReclaimStageId id) {
    return (statistics_ = pool_->statistics()).stages[static_cast<std::size_t>(id)];
  }

  // Allocates a comb of pages and frees every other one, `free` in all; returns the live ones.
  std::vector<unsigned char*> comb(std::size_t free) {
    std::vector<unsigned char*> kept;
    std::vector<void*> freed;
    for (std::size_t i = 0; i < free; ++i) {
      freed.push_back(allocate(*pool_, page));
      kept.push_back(static_cast<unsigned char*>(allocate(*pool_, page)));
      if (pool_->device().is_cpu()) std::memset(kept.back(), static_cast<int>(i + 1), page);
    }
    for (void* block : freed) deallocate(*pool_, block, page);
    return kept;
  }

  bool intact(const std::vector<unsigned char*>& kept) {
    if (!pool_->device().is_cpu()) return true;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (std::count(kept[i], kept[i] + page, static_cast<unsigned char>(i + 1)) != static_cast<long>(page))
        return false;
    }
    return true;
  }

  Calls calls_;
  std::unique_ptr<CachingAllocator> pool_;
  Statistics statistics_;
};
INSTANTIATE_TEST_SUITE_P(Devices, PageHeapTest, devices, device_name);

TEST(Handles, AreOnePerGrowthFarFromTheBudget) {
  Calls calls;
  CachingAllocator pool(std::make_unique<Watch>(make_memory("sim", 64 * 1024 * MiB), calls, true));
  allocate(pool, 3 * page);
  allocate(pool, 50 * page);
  EXPECT_THAT(calls.commits, ElementsAre(3 * page, 50 * page));
  EXPECT_EQ(pool.statistics().num_device_alloc, 2u);
  EXPECT_EQ(pool.statistics().driver_calls, 2u);
  expect_invariants(pool);
}

TEST(Handles, AreSmallerNearTheBudget) {
  Calls calls;
  CachingAllocator pool(std::make_unique<Watch>(make_memory("sim", 64 * 1024 * MiB), calls, true),
                        {.budget = 8192 * MiB});
  std::size_t unused = 8192 * MiB;
  while (unused >= 512 * MiB) {
    calls.commits.clear();
    allocate(pool, 512 * MiB);
    unused -= 512 * MiB;
    const std::size_t parts = unused >= 8192 * MiB / 7 * 6 ? 256 : 512;
    for (const std::size_t handle : calls.commits) EXPECT_LE(handle, std::max(page, unused / parts));
  }
  EXPECT_EQ(*std::ranges::max_element(calls.commits), page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 8192 * MiB);
}

TEST(Handles, AreAtMostA64thOfTheUnusedBudgetIfLongLived) {
  Calls calls;
  const std::size_t budget = 8192 * MiB;
  CachingAllocator pool(std::make_unique<Watch>(make_memory("sim", 64 * 1024 * MiB), calls, true), {.budget = budget});
  for (std::size_t unused = budget; unused > 0; unused -= 256 * MiB) {
    calls.commits.clear();
    allocate(pool, 256 * MiB, Category::parameter);
    const std::size_t most = std::max(page, (unused - 256 * MiB) / 64 / page * page);
    EXPECT_EQ(*std::ranges::max_element(calls.commits), most) << unused;
  }
}

TEST(Handles, AreReleasedWhole) {
  CachingAllocator pool(make_memory("sim", 2304 * MiB));
  void* block = allocate(pool, 64 * page);  // handles of four pages
  deallocate(pool, block, 64 * page);
  void* wall = allocate(pool, 100);
  // The wall pins the first handle, and a single page cannot be released.
  EXPECT_EQ(pool.trim(page), 4 * page);
  EXPECT_EQ(pool.trim(), 56 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 4 * page);
  deallocate(pool, wall, 100);
  EXPECT_EQ(pool.trim(), 4 * page);
  expect_invariants(pool);
}

TEST(Handles, AreNotSharedByBlocksOfWholePages) {
  // Every other block is freed and its memory is released.
  CachingAllocator pool(make_memory("sim", 64 * 1024 * MiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(allocate(pool, 2 * page));
  for (std::size_t i = 0; i < 1000; i += 2) deallocate(pool, blocks[i], 2 * page);
  EXPECT_EQ(pool.trim(), 1000 * page);
}

TEST_P(PageHeapTest, GrowsAheadByASixtyFourth) {
  // Blocks that share their last pages with their neighbors.
  make_pool({}, true, 256 * 1024 * MiB);
  const std::size_t bytes = page + page / 2;
  for (std::size_t i = 1; i <= 1000; ++i) {
    allocate(*pool_, bytes);
    EXPECT_LE(pool_->statistics().reserved_bytes.current, i * bytes + i * bytes / 64 + page);
  }
  EXPECT_LT(pool_->statistics().num_device_alloc, 400u);
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, GrowsByTheNeededPagesNearTheBudget) {
  make_pool({.budget = 1500 * page}, true, 256 * 1024 * MiB);
  for (std::size_t i = 0; i < 1000; ++i) allocate(*pool_, page + page / 2);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 1500 * page);
  EXPECT_EQ(pool_->statistics().num_ooms, 0u);
}

TEST(Handles, AreReleasedWhenTheDeviceRefusesOneOfThem) {
  CachingAllocator pool(make_memory("sim", 10 * page), {.budget = 100 * page});
  EXPECT_THROW(allocate(pool, 11 * page), OutOfMemoryError);
  expect_invariants(pool);
  EXPECT_EQ(pool.memory().info().free, 10 * page);
  EXPECT_NO_THROW(allocate(pool, 10 * page));
}

/// Returns the addresses of a random program's blocks as offsets into the pool's windows.
std::vector<std::size_t> places(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config) {
  CachingAllocator pool(std::move(memory), config);
  std::vector<std::pair<void*, std::size_t>> live;
  std::vector<std::uintptr_t> addresses;
  std::uint64_t random = 7;
  const auto below = [&](std::uint64_t limit) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>((random >> 33) % limit);
  };
  for (int step = 0; step < 3000; ++step) {
    const std::size_t bytes =
        below(4) == 0 ? (1 + below(24)) * page - below(3) * 4096 : 1 + below(1 << (10 + below(13)));
    while (live.size() > 60 || below(3) == 0) {
      if (live.empty()) break;
      std::swap(live[below(live.size())], live.back());
      deallocate(pool, live.back().first, live.back().second);
      live.pop_back();
    }
    const auto result = pool.try_allocate({.bytes = bytes,
                                           .stream = stream_of(pool),
                                           .tag = {below(5) == 0 ? Category::parameter : Category::activation, 0}});
    if (void* const* pointer = std::get_if<void*>(&result)) live.emplace_back(*pointer, bytes);
    addresses.push_back(live.empty() ? 0 : reinterpret_cast<std::uintptr_t>(live.back().first));
  }
  EXPECT_GT(pool.statistics().stages[static_cast<std::size_t>(ReclaimStageId::stitch)].bytes, 0u);
  std::vector<std::size_t> offsets;
  const auto blocks = pool.snapshot();
  for (const std::uintptr_t address : addresses) {
    std::size_t offset = 0;
    for (std::size_t i = 0, first = 0; i < blocks.size(); ++i) {
      if (blocks[i].window != blocks[first].window) first = i;
      if (address >= blocks[i].address && address - blocks[i].address < blocks[i].size)
        offset = (blocks[i].window << 40) + address - blocks[first].address;
    }
    offsets.push_back(offset);
  }
  return offsets;
}

TEST(Handles, LieAtTheSamePlacesOnEveryDevice) {
  // Far from the budget and near it.
  for (const std::size_t budget : {std::size_t{64} << 30, 256 * MiB}) {
    const AllocatorConfig config{.budget = budget, .stitch_idle = true, .deterministic = true};
    constexpr std::size_t capacity = std::size_t{64} << 30;
    const auto simulated = places(make_memory("sim", capacity), config);
    EXPECT_EQ(places(std::make_unique<SimulatedMemory>(1, capacity, SimulationOptions{.backed = true}), config),
              simulated);
    EXPECT_EQ(places(std::make_unique<CudaMemory>(0, std::make_unique<RecordingDriver>(capacity)), config), simulated);
  }
}

TEST_P(PageHeapTest, MovesScatteredPagesIntoOneRun) {
  make_pool({.budget = 12 * page});
  const auto kept = comb(6);
  void* large = allocate(*pool_, 6 * page);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 12 * page);
  EXPECT_EQ(calls_.decommits, 0u);
  EXPECT_GT(calls_.moves, 0u);
  EXPECT_GT(stage(ReclaimStageId::stitch).bytes, 0u);
  expect_invariants(*pool_);
  if (pool_->device().is_cpu()) std::memset(large, 0xEE, 6 * page);
  EXPECT_TRUE(intact(kept));
  deallocate(*pool_, large, 6 * page);
  for (unsigned char* block : kept) deallocate(*pool_, block, page);
  EXPECT_EQ(pool_->trim(), 12 * page);
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, MovesOnlyThePagesBeyondTheBudget) {
  make_pool({.budget = 14 * page});
  const auto kept = comb(6);
  void* large = allocate(*pool_, 7 * page);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 14 * page);
  EXPECT_EQ(stage(ReclaimStageId::release).bytes, 0u);
  EXPECT_LE(stage(ReclaimStageId::stitch).bytes, 5 * page);
  EXPECT_TRUE(intact(kept));
  deallocate(*pool_, large, 7 * page);
}

TEST_P(PageHeapTest, MovesIdlePagesBeforeItGrows) {
  // The budget fits all blocks, but 60 pages are idle.
  make_pool({.stitch_idle = true}, true, 64 * 1024 * MiB);
  void* idle = allocate(*pool_, 40 * page);
  void* wall = allocate(*pool_, page);
  const auto kept = comb(20);
  deallocate(*pool_, idle, 40 * page);
  void* large = allocate(*pool_, 70 * page);
  EXPECT_EQ(stage(ReclaimStageId::stitch).bytes, 60 * page);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, (1 + 20 + 70) * page);
  EXPECT_EQ(calls_.decommits, 0u);
  expect_invariants(*pool_);
  if (pool_->device().is_cpu()) std::memset(large, 0xEE, 70 * page);
  EXPECT_TRUE(intact(kept));
  deallocate(*pool_, large, 70 * page);
  deallocate(*pool_, wall, page);
}

TEST_P(PageHeapTest, MovesNoIdlePagesFarFromTheBudget) {
  make_pool({});
  const auto kept = comb(60);
  void* large = allocate(*pool_, 50 * page);
  EXPECT_EQ(calls_.moves, 0u);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, (120 + 50) * page);
  deallocate(*pool_, large, 50 * page);
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, MovesPagesWithTheFewestCalls) {
  make_pool({.stitch_idle = true}, true, 64 * 1024 * MiB);
  void* idle = allocate(*pool_, 40 * page);
  void* wall = allocate(*pool_, page);
  const auto kept = comb(40);  // released first
  deallocate(*pool_, idle, 40 * page);
  void* large = allocate(*pool_, 45 * page);
  EXPECT_EQ(calls_.moves, 1u + 5u);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, (40 + 1 + 80) * page);
  expect_invariants(*pool_);
  EXPECT_TRUE(intact(kept));
  deallocate(*pool_, large, 45 * page);
  deallocate(*pool_, wall, page);
}

TEST_P(PageHeapTest, TakesPagesOfTheOtherArena) {
  make_pool({.budget = 8 * page});
  void* parameter = allocate(*pool_, 6 * page, Category::parameter);
  void* wall = allocate(*pool_, page);
  deallocate(*pool_, parameter, 6 * page);
  void* large = allocate(*pool_, 7 * page);
  EXPECT_EQ(calls_.decommits, 0u);
  EXPECT_GT(calls_.moves, 0u);
  deallocate(*pool_, large, 7 * page);
  deallocate(*pool_, wall, page);
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, PutsTransientsIntoAnArenaWithMuchFreeMemory) {
  make_pool({});
  void* wall = allocate(*pool_, page, Category::parameter);
  void* parameter = allocate(*pool_, 64 * page, Category::parameter);
  deallocate(*pool_, parameter, 64 * page);
  void* long_lived = allocate(*pool_, page, Category::parameter);
  const std::size_t reserved = pool_->statistics().reserved_bytes.current;
  std::vector<void*> blocks;
  for (int i = 0; i < 31; ++i) blocks.push_back(allocate(*pool_, page));
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, reserved) << "more than 64 MiB lie free there";
  blocks.push_back(allocate(*pool_, 2 * page));
  EXPECT_GT(pool_->statistics().reserved_bytes.current, reserved) << "the last 64 MiB stay";
  expect_invariants(*pool_);
  deallocate(*pool_, long_lived, page);
  deallocate(*pool_, wall, page);
}

TEST_P(PageHeapTest, ReleasesAndCommitsWhereMemoryCannotMove) {
  make_pool({.budget = 12 * page}, false);
  const auto kept = comb(6);
  EXPECT_NO_THROW(allocate(*pool_, 6 * page));
  EXPECT_EQ(calls_.moves, 1u);
  EXPECT_GT(calls_.decommits, 0u);
  EXPECT_TRUE(intact(kept));
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, MovesNoPagesWithoutStitching) {
  make_pool({.budget = 12 * page, .stitch = false});
  comb(6);
  EXPECT_NO_THROW(allocate(*pool_, 6 * page));
  EXPECT_EQ(calls_.moves, 0u);
}

TEST_P(PageHeapTest, ReplacesSmallRunsWithoutMoves) {
  make_pool({.budget = 6 * page});
  comb(3);
  EXPECT_NO_THROW(allocate(*pool_, 3 * page));
  EXPECT_EQ(calls_.moves, 0u);
}

TEST_P(PageHeapTest, NeverFailsWhileThePagesSuffice) {
  // Large blocks of changing sizes fill a budget: only the number of pages matters, not their place.
  make_pool({.budget = 64 * page});
  std::vector<std::pair<void*, std::size_t>> live;
  std::size_t held = 0;
  std::uint64_t random = 1;
  for (int step = 0; step < 2000; ++step) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const std::size_t bytes = (1 + (random >> 33) % 20) * page;
    while (held + bytes > 64 * page) {
      std::swap(live[(random >> 40) % live.size()], live.back());
      deallocate(*pool_, live.back().first, live.back().second);
      held -= live.back().second;
      live.pop_back();
    }
    live.emplace_back(allocate(*pool_, bytes), bytes);
    held += bytes;
  }
  EXPECT_EQ(pool_->statistics().num_ooms, 0u);
  EXPECT_EQ(pool_->statistics().reserved_bytes.peak, 64 * page);
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, HoldsALivePeakCloseToItsBudget) {
  make_pool({.budget = 45 * page});
  std::vector<void*> blocks;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 11; ++i) blocks.push_back(allocate(*pool_, 8 * MiB - 4096 * static_cast<std::size_t>(i)));
    for (std::size_t i = 0; i < 11; ++i) deallocate(*pool_, blocks[i], 8 * MiB - 4096 * i);
    blocks.clear();
  }
  EXPECT_EQ(pool_->statistics().num_ooms, 0u);
}

TEST_P(PageHeapTest, ReleasesPagesUnusedForLong) {
  make_pool({.decay = 20});
  void* block = allocate(*pool_, 8 * page);
  void* wall = allocate(*pool_, page / 2);
  deallocate(*pool_, block, 8 * page);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 9 * page);
  for (int i = 0; i < 15; ++i) deallocate(*pool_, allocate(*pool_, 100 * KiB), 100 * KiB);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, page) << "what is old goes though all requests hit";
  void* large = allocate(*pool_, 10 * page);
  EXPECT_LE(pool_->statistics().reserved_bytes.current, 12 * page);
  deallocate(*pool_, large, 10 * page);
  deallocate(*pool_, wall, page / 2);
  expect_invariants(*pool_);
}

// Frees 8 pages. `gone`: whether the cache hit after `age` more allocations and frees releases them.
void expect_decay_at(CachingAllocator& pool, std::uint64_t age, bool gone) {
  void* block = allocate(pool, 8 * page);
  void* wall = allocate(pool, page / 2);
  deallocate(pool, allocate(pool, page / 4), page / 4);
  deallocate(pool, block, 8 * page);
  for (std::uint64_t i = 1; i < age; i += 2) {
    EXPECT_EQ(pool.statistics().reserved_bytes.current, 9 * page) << i << " of " << age;
    deallocate(pool, allocate(pool, page / 4), page / 4);
  }
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 9 * page);
  void* hit = allocate(pool, page / 4);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, gone ? page : 9 * page);
  EXPECT_EQ(pool.statistics().num_device_alloc, 2u) << "all were hits";
  deallocate(pool, hit, page / 4);
  deallocate(pool, wall, page / 2);
  expect_invariants(pool);
}

TEST_P(PageHeapTest, ReleasesPagesOfExactlyTheAgeLimit) {
  make_pool({.magazines = false, .decay = 7});
  expect_decay_at(*pool_, 7, true);
  make_pool({.magazines = false, .decay = 8});
  expect_decay_at(*pool_, 7, false);
}

TEST_P(PageHeapTest, KeepsPagesForeverAtTheLargestAgeLimit) {
  make_pool({.magazines = false, .decay = SIZE_MAX});
  expect_decay_at(*pool_, 101, false);
}

TEST_P(PageHeapTest, ReleasesOldPagesWhileMagazinesServeAllRequests) {
  make_pool({.decay = 500});
  void* block = allocate(*pool_, 8 * page);
  void* wall = allocate(*pool_, page / 2);
  deallocate(*pool_, block, 8 * page);
  for (int i = 0; i < 3000; ++i) deallocate(*pool_, allocate(*pool_, 1 * KiB), 1 * KiB);
  const Statistics statistics = pool_->statistics();
  EXPECT_LE(statistics.reserved_bytes.current, page);
  EXPECT_GT(statistics.magazine_hits, 2000u);
  deallocate(*pool_, wall, page / 2);
}

TEST_P(PageHeapTest, ReleasesPagesWithTime) {
  make_pool({.magazines = false, .decay_ms = 20});
  void* block = allocate(*pool_, 8 * page);
  void* wall = allocate(*pool_, page / 2);
  deallocate(*pool_, block, 8 * page);
  deallocate(*pool_, allocate(*pool_, 1 * KiB), 1 * KiB);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  deallocate(*pool_, allocate(*pool_, 1 * KiB), 1 * KiB);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, page);
  deallocate(*pool_, wall, page / 2);
  for (const std::size_t age : {std::size_t{3'600'000}, SIZE_MAX / 1'000'000, SIZE_MAX}) {
    make_pool({.magazines = false, .decay = age, .decay_ms = age});
    for (int i = 0; i < 3; ++i) {
      deallocate(*pool_, allocate(*pool_, 8 * page), 8 * page);
      deallocate(*pool_, allocate(*pool_, 1 * KiB), 1 * KiB);
      EXPECT_EQ(pool_->statistics().reserved_bytes.current, 8 * page) << age;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

TEST_P(PageHeapTest, ReleasesPagesWithTimeWhileMagazinesServeMostRequests) {
  make_pool({.decay_ms = 20});
  void* block = allocate(*pool_, 8 * page);
  void* wall = allocate(*pool_, page / 2);
  deallocate(*pool_, block, 8 * page);
  const auto hit = [&](int pairs) {
    for (int i = 0; i < pairs; ++i) deallocate(*pool_, allocate(*pool_, 1 * KiB), 1 * KiB);
  };
  hit(3000);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  hit(3000);
  const Statistics statistics = pool_->statistics();
  EXPECT_LE(statistics.reserved_bytes.current, page) << "each 1024th hit looks at the clock";
  EXPECT_GT(statistics.magazine_hits, 5000u);
  deallocate(*pool_, wall, page / 2);
}

TEST_P(PageHeapTest, ReleasesPagesBesideAReusedSmallBlock) {
  for (const bool by_time : {false, true}) {
    for (const bool magazines : {false, true}) {
      make_pool(
          {.budget = 128 * page, .magazines = magazines, .decay = by_time ? 0u : 100u, .decay_ms = by_time ? 10u : 0u});
      deallocate(*pool_, allocate(*pool_, 50 * page), 50 * page);
      const auto come_and_go = [&] {
        for (int i = 0; i < 3000; ++i) deallocate(*pool_, allocate(*pool_, 64), 64);
      };
      come_and_go();
      if (by_time) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      come_and_go();
      EXPECT_LE(pool_->statistics().reserved_bytes.current, 2 * page) << by_time << magazines;
      expect_invariants(*pool_);
    }
  }
}

TEST_P(PageHeapTest, KeepsRecentlyUsedPages) {
  make_pool({.budget = 128 * page, .magazines = false, .decay = 50});
  deallocate(*pool_, allocate(*pool_, 50 * page), 50 * page);
  for (int i = 0; i < 100; ++i) deallocate(*pool_, allocate(*pool_, 20 * page), 20 * page);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 20 * page);
  EXPECT_EQ(pool_->statistics().num_device_alloc, 1u);
  for (int i = 0; i < 30; ++i) deallocate(*pool_, allocate(*pool_, 3 * page), 3 * page);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 3 * page);
  expect_invariants(*pool_);
}

TEST_P(PageHeapTest, ReleasesTheLeastRecentlyUsedPagesOfBothArenas) {
  for (const bool transient_first : {false, true}) {
    make_pool({.budget = 4 * page});
    void* transient = allocate(*pool_, page, Category::activation);
    void* lasting = allocate(*pool_, page, Category::parameter);
    const auto release = [&](bool which) { deallocate(*pool_, which ? transient : lasting, page); };
    release(transient_first);
    release(!transient_first);
    EXPECT_EQ(pool_->trim(page), page);
    EXPECT_EQ(pool_->statistics().reserved_bytes.current, page);
    // The younger one is still there, in its own arena.
    const Category younger = transient_first ? Category::parameter : Category::activation;
    allocate(*pool_, page, younger);
    EXPECT_EQ(pool_->statistics().num_device_alloc, 2u);
  }
}

TEST_P(PageHeapTest, ReleasesBlocksInTheOrderOfTheirFrees) {
  constexpr std::size_t count = 12;
  make_pool({.budget = 2 * count * page});
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    const Category category = i % 3 == 0 ? Category::parameter : Category::activation;
    blocks.push_back(allocate(*pool_, page, category));
    allocate(*pool_, page, category);  // a wall behind it
  }
  std::vector<void*> order;
  for (std::size_t i = 0; i < count; ++i) order.push_back(blocks[i * 5 % count]);
  for (void* block : order) deallocate(*pool_, block, page);
  EXPECT_EQ(pool_->trim(4 * page + 1), 5 * page);
  EXPECT_THAT(calls_.decommitted, ::testing::ElementsAreArray(order.begin(), order.begin() + 5));
  EXPECT_EQ(pool_->trim(), (count - 5) * page);
  EXPECT_EQ(calls_.decommitted, order);
}

TEST_P(PageHeapTest, SeesAllocationsAndFreesDuringARelease) {
  make_pool({.budget = 8 * page});
  std::array<void*, 4> blocks{};
  for (void*& block : blocks) {
    block = allocate(*pool_, page);
    allocate(*pool_, page);
  }
  for (const std::size_t i : {0u, 1u, 2u}) deallocate(*pool_, blocks[i], page);
  calls_.during_decommit = [&] {
    EXPECT_EQ(allocate(*pool_, page), blocks[1]);
    deallocate(*pool_, blocks[3], page);
  };
  EXPECT_EQ(pool_->trim(), 3 * page);
  EXPECT_THAT(calls_.decommitted, ElementsAre(blocks[0], blocks[2], blocks[3]));
  expect_invariants(*pool_);
}

// 2^40 bytes of addresses would hold one window for each of only the first few.
TEST(PageHeap, ReturnsAddressesWithoutMemory) {
  constexpr std::size_t GiB = 1024 * MiB;
  for (const std::size_t first : {std::size_t{70}, std::size_t{130}}) {
    CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 512 * GiB));
    void* small = allocate(pool, 64, Category::parameter);
    for (std::size_t bytes = first * GiB; bytes < 500 * GiB; bytes += 7 * GiB) {
      for (const Category category : {Category::activation, Category::parameter}) {
        deallocate(pool, allocate(pool, bytes, category), bytes);
      }
    }
    pool.trim();
    EXPECT_EQ(pool.statistics().reserved_bytes.current, page);
    deallocate(pool, allocate(pool, 511 * GiB), 511 * GiB);
    EXPECT_TRUE(pool.owns(small));
    EXPECT_FALSE(pool.owns(reinterpret_cast<void*>(0x7f0000000000 - 1)));
    deallocate(pool, small, 64);
    expect_invariants(pool);
  }
}

// On a device without free addresses, the report says so.
TEST(PageHeap, ReportsWhenAddressesRunOut) {
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, std::size_t{1} << 41));
  const auto result = pool.try_allocate({.bytes = (std::size_t{1} << 40) + 1, .stream = stream_of(pool)});
  ASSERT_TRUE(std::holds_alternative<std::string>(result));
  EXPECT_THAT(std::get<std::string>(result), ::testing::HasSubstr("contiguous addresses left"));
}

TEST_P(PageHeapTest, AlignsWithoutWastingPages) {
  make_pool({.budget = 4 * page});
  void* block = pool_->allocate(4 * page, page, stream_of(*pool_));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % page, 0u);
  EXPECT_EQ(pool_->statistics().reserved_bytes.current, 4 * page);
  pool_->deallocate(block, 4 * page, page, stream_of(*pool_));
  void* again = pool_->allocate(4 * page, page, stream_of(*pool_));
  EXPECT_EQ(again, block);
  expect_invariants(*pool_);
}

}  // namespace
}  // namespace poolgrad::testing
