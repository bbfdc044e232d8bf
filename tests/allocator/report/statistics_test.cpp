// Figures under PyTorch's names, figures of several threads, and hashes that do not depend on the order of threads.
#include "allocator/report/statistics.h"

#include <functional>
#include <map>
#include <thread>

#include "allocator/memory/memory_adaptor.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class StatisticsTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, StatisticsTest, devices, device_name);

TEST_P(StatisticsTest, HavePyTorchsNames) {
  CachingAllocator pool(memory());
  void* kept = allocate(pool, 1000, Category::gradient);
  deallocate(pool, allocate(pool, 3000), 3000);
  const auto list = named_statistics(pool.statistics());
  const std::map<std::string, std::uint64_t> named(list.begin(), list.end());
  EXPECT_EQ(named.size(), list.size()) << "no name twice";
  EXPECT_EQ(named.at("allocation.all.current"), 1u);
  EXPECT_EQ(named.at("allocation.all.allocated"), 2u);
  EXPECT_EQ(named.at("allocated_bytes.all.current"), 1024u);
  EXPECT_EQ(named.at("allocated_bytes.all.peak"), 1024u + 3008u);
  EXPECT_EQ(named.at("allocated_bytes.all.freed"), 3008u);
  EXPECT_EQ(named.at("requested_bytes.all.current"), 1000u);
  EXPECT_EQ(named.at("reserved_bytes.all.current"), page);
  EXPECT_EQ(named.at("active_bytes.all.current"), 1024u);
  EXPECT_EQ(named.at("inactive_split_bytes.all.current"), page - 1024u) << "one live block pins the page";
  EXPECT_EQ(named.at("segment.all.current"), 1u);
  EXPECT_EQ(named.at("num_ooms"), 0u);
  EXPECT_EQ(named.at("num_alloc_retries"), 0u) << "new memory was there when it was asked for";
  EXPECT_EQ(named.at("category_bytes.gradient.current"), 1000u);
  EXPECT_EQ(named.at("stream.0.live_bytes"), 1024u);
  EXPECT_EQ(named.at("stream.0.cached_bytes"), page - 1024u);
  deallocate(pool, kept, 1000);
}

TEST_P(StatisticsTest, CountARetryForEachRequestRefusedNewMemory) {
  CachingAllocator pool(memory(), {.budget = 4 * page, .stitch = false});
  void* low = allocate(pool, 2 * page);
  void* wall = allocate(pool, page);
  deallocate(pool, low, 2 * page);
  deallocate(pool, allocate(pool, 2 * page), 2 * page);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
  EXPECT_THROW(allocate(pool, 4 * page), OutOfMemoryError);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u) << "one, however often the stages run";
  deallocate(pool, allocate(pool, 2 * page), 2 * page);
  void* large = allocate(pool, 3 * page);  // two cached pages are released
  EXPECT_EQ(pool.statistics().num_alloc_retries, 2u);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  deallocate(pool, large, 3 * page);
  deallocate(pool, wall, page);
}

std::uint64_t bytes_moved(const CachingAllocator& pool) {
  const Statistics statistics = pool.statistics();
  const auto stitch = std::ranges::find(statistics.stages, to_string(ReclaimStageId::stitch), &ReclaimStatistics::name);
  return stitch == statistics.stages.end() ? 0 : stitch->bytes;
}

TEST_P(StatisticsTest, CountARetryWhenCachedPagesMove) {
  constexpr std::size_t part = 8 * MiB;  // the smallest move
  CachingAllocator pool(memory(), {.budget = 4 * part});
  void* low = allocate(pool, 2 * part);
  void* wall = allocate(pool, part);
  deallocate(pool, low, 2 * part);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
  void* large = allocate(pool, 3 * part);  // one part is new, two are moved
  EXPECT_EQ(bytes_moved(pool), 2 * part);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 1u);
  EXPECT_THROW(allocate(pool, part), OutOfMemoryError);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 2u);
  deallocate(pool, large, 3 * part);
  deallocate(pool, wall, part);
}

TEST_P(StatisticsTest, CountNoRetryForMovesOfIdlePagesByChoice) {
  // Every other block is freed: they exceed the pool's limit of idle bytes.
  constexpr std::size_t part = 8 * MiB;
  CachingAllocator pool(memory(), {.stitch_idle = true});
  std::vector<void*> parts;
  for (int i = 0; i < 24; ++i) parts.push_back(allocate(pool, part));
  for (std::size_t i = 0; i < parts.size(); i += 2) deallocate(pool, parts[i], part);
  void* large = allocate(pool, 4 * part);
  EXPECT_GT(bytes_moved(pool), 0u);
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u) << "new memory would have been there";
  deallocate(pool, large, 4 * part);
  for (std::size_t i = 1; i < parts.size(); i += 2) deallocate(pool, parts[i], part);
}

TEST_P(StatisticsTest, CountHitsAndMissesByCategory) {
  CachingAllocator pool(memory());
  for (int i = 0; i < 5; ++i) deallocate(pool, allocate(pool, 1000, Category::scores), 1000);
  const Statistics statistics = pool.statistics();
  const auto scores = static_cast<std::size_t>(Category::scores);
  EXPECT_EQ(statistics.category_hits[scores], 4u);
  EXPECT_EQ(statistics.category_misses[scores], 1u);
  EXPECT_EQ(statistics.requests, 5u);
  EXPECT_EQ(statistics.pool_hits, 4u);
  EXPECT_GT(statistics.magazine_hits, 0u);
  EXPECT_EQ(statistics.category_bytes[scores].peak, 1000u);
}

TEST_P(StatisticsTest, HaveTheExactPeaksOfOneThread) {
  CachingAllocator pool(memory());
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
  std::vector<void*> live;
  for (int i = 0; i < 3000; ++i) {  // up, in waves, and down again
    if (i * 7919 % 13 < (i < 2000 ? 7 : 3) || live.empty()) {
      live.push_back(allocate(pool, 200));
      peak = std::max(peak, now += 200);
    } else {
      deallocate(pool, live.back(), 200);
      live.pop_back();
      now -= 200;
    }
  }
  EXPECT_EQ(pool.statistics().requested_bytes.peak, peak);
  EXPECT_EQ(pool.statistics().allocation.peak, peak / 200);
  EXPECT_EQ(pool.statistics().category_bytes[static_cast<std::size_t>(Category::activation)].peak, peak);
  EXPECT_EQ(pool.statistics().active_bytes.peak, peak / 200 * 256);
}

// Calls a function on each request for memory, and counts commits and releases.
class CountingMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;
  bool commit(void* address, std::size_t bytes) override {
    while_asked();
    if (!inner().commit(address, bytes)) return false;
    committed.add(bytes);
    return true;
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    committed.subtract(bytes);
    inner().decommit(address, bytes);
  }

  std::function<void()> while_asked = [] {};
  Gauge committed;
};

TEST_P(StatisticsTest, ExcludeMemoryThatTheDeviceRefused) {
  auto counting = std::make_unique<CountingMemory>(memory(4 * page));
  CountingMemory* device = counting.get();
  CachingAllocator pool(std::move(counting), {.budget = 64 * page});
  void* kept = allocate(pool, page);
  int asked = 0;
  device->while_asked = [&] {
    EXPECT_EQ(pool.statistics().reserved_bytes.current, page) << "before the device has given all of it";
    EXPECT_THROW(pool.set_budget(8 * page), ValueError) << "which may be less than there is in a moment";
    ++asked;
  };
  EXPECT_THROW(allocate(pool, 16 * page), OutOfMemoryError);
  EXPECT_GT(asked, 0);
  const Gauge reserved = pool.statistics().reserved_bytes;
  EXPECT_EQ(reserved.current, page);
  EXPECT_LE(reserved.peak, 4 * page) << "what the device has; where memory comes in handles, it gives some of them";
  EXPECT_EQ(reserved.peak, device->committed.peak);
  EXPECT_EQ(reserved.allocated, device->committed.allocated);
  EXPECT_EQ(reserved.freed, device->committed.freed);
  pool.set_budget(8 * page);
  deallocate(pool, kept, page);
}

TEST_P(StatisticsTest, HaveThePeaksByCategoryOfMagazineHits) {
  CachingAllocator pool(memory());
  const auto step = [&] {
    void* one = allocate(pool, 1000, Category::gradient);
    void* two = allocate(pool, 2000, Category::gradient);
    void* three = allocate(pool, 500, Category::temp);
    deallocate(pool, one, 1000);
    deallocate(pool, two, 2000);
    deallocate(pool, three, 500);
  };
  for (int i = 0; i < 200; ++i) step();
  pool.reset_peaks();
  const Statistics before = pool.statistics();
  EXPECT_EQ(before.requested_bytes.peak, 0u);
  for (int i = 0; i < 200; ++i) step();
  deallocate(pool, allocate(pool, 500, Category::temp), 500);  // lower, and read before it is summed
  const Statistics after = pool.statistics();
  EXPECT_GT(after.magazine_hits, before.magazine_hits + 500);
  EXPECT_EQ(after.allocation.peak, 3u);
  EXPECT_EQ(after.requested_bytes.peak, 3500u);
  EXPECT_EQ(after.allocated_bytes.peak, 1024u + 2048u + 512u);
  EXPECT_EQ(after.active_bytes.peak, 1024u + 2048u + 512u);
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::gradient)].peak, 3000u);
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::temp)].peak, 500u);
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::activation)].peak, 0u);
  EXPECT_EQ(after.allocation.allocated - before.allocation.allocated, 601u);
  EXPECT_EQ(after.requested_bytes.freed - before.requested_bytes.freed, 200u * 3500u + 500u);
}

TEST_P(StatisticsTest, ResetThePeakOfEachCategoryToItsCurrentBytes) {
  CachingAllocator pool(memory());
  const auto peak = [&](Category category) {
    return pool.statistics().category_bytes[static_cast<std::size_t>(category)].peak;
  };
  void* gradient = allocate(pool, 1000, Category::gradient);
  deallocate(pool, allocate(pool, 3000, Category::activation), 3000);
  deallocate(pool, allocate(pool, 700, Category::gradient), 700);
  ASSERT_EQ(peak(Category::gradient), 1700u);
  ASSERT_EQ(peak(Category::activation), 3000u);
  pool.reset_peaks();
  EXPECT_EQ(peak(Category::gradient), 1000u);
  EXPECT_EQ(peak(Category::activation), 0u);
  deallocate(pool, allocate(pool, 500, Category::activation), 500);
  EXPECT_EQ(peak(Category::activation), 500u);
  EXPECT_EQ(peak(Category::gradient), 1000u);
  deallocate(pool, gradient, 1000);
}

TEST_P(StatisticsTest, MeasureFragmentation) {
  CachingAllocator pool(memory());
  EXPECT_EQ(pool.statistics().utilisation(), 1.0);
  EXPECT_EQ(pool.statistics().bfc_fragmentation(), 0.0);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(pool, page));
  deallocate(pool, blocks[0], page);
  deallocate(pool, blocks[2], page);
  const Statistics statistics = pool.statistics();
  EXPECT_EQ(statistics.utilisation(), 1.0);
  EXPECT_EQ(statistics.internal_fragmentation(), 0.0);
  EXPECT_EQ(statistics.external_fragmentation(), 0.5);
  EXPECT_EQ(statistics.stranded_fragmentation(), 0.0);
  EXPECT_EQ(statistics.bfc_fragmentation(), 0.5);
}

TEST_P(StatisticsTest, AddUpOverThreads) {
  CachingAllocator pool(memory());
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) deallocate(pool, allocate(pool, 300), 300);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Statistics statistics = pool.statistics();
  EXPECT_EQ(statistics.requests, 4000u);
  EXPECT_EQ(statistics.allocation.allocated, 4000u);
  EXPECT_EQ(statistics.requested_bytes.freed, 4000u * 300u);
  EXPECT_EQ(statistics.requested_bytes.current, 0u);
  EXPECT_LE(statistics.requested_bytes.peak, 4u * 300u);
}

TEST_P(StatisticsTest, HashRequestsInAnyOrderOfThreads) {
  const auto run = [&](bool swapped) {
    CachingAllocator pool(memory());
    const auto work = [&](std::size_t bytes) {
      for (int i = 0; i < 10; ++i) deallocate(pool, allocate(pool, bytes), bytes);
    };
    std::thread([&] { work(swapped ? 2000 : 1000); }).join();
    std::thread([&] { work(swapped ? 1000 : 2000); }).join();
    return pool.sequence_hash();
  };
  EXPECT_EQ(run(false), run(true));
}

}  // namespace
}  // namespace poolgrad::testing
