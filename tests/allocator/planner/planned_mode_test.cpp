// Mode `planned` of the pool: the plan serves steps that repeat, the pool serves other requests, and live blocks never
// share memory.
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "tests/allocator/pool_testing.h"
#include "tests/allocator/training_trace.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

constexpr AllocatorConfig planned{.mode = AllocatorMode::planned};

/// Runs recorded steps of a small transformer.
class Training {
 public:
  Training(CachingAllocator& pool, TraceModel model = {2, 64, 64, 2, 2, 256}) : pool_(pool), trace_(model) {}

  void step() {
    pool_.begin_step();
    trace_.step();
    for (const TraceEvent& event : trace_.take()) {
      if (event.allocates) {
        live_[event.id] = {allocate(pool_, event.bytes, event.category), event.bytes};
      } else {
        const auto [pointer, bytes] = live_.at(event.id);
        deallocate(pool_, pointer, bytes);
        live_.erase(event.id);
      }
    }
  }

 private:
  CachingAllocator& pool_;
  TrainingTrace trace_;
  std::map<std::size_t, std::pair<void*, std::size_t>> live_;
};

class PlannedModeTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, PlannedModeTest, devices, device_name);

TEST_P(PlannedModeTest, ServesEveryTransientOfARepeatedStepFromThePlan) {
  CachingAllocator pool(memory(), planned);
  Training training(pool);
  for (int step = 0; step < 3; ++step) training.step();
  const Statistics warm = pool.statistics();
  ASSERT_EQ(warm.plans, 1u);
  for (int step = 0; step < 5; ++step) {
    training.step();
    expect_invariants(pool);
  }
  const Statistics end = pool.statistics();
  EXPECT_EQ(end.planned_hits - warm.planned_hits, end.requests - warm.requests);
  EXPECT_EQ(end.plan_divergences, warm.plan_divergences);
  EXPECT_EQ(end.num_device_alloc, warm.num_device_alloc);
  EXPECT_EQ(end.events_recorded, 0u);
}

TEST_P(PlannedModeTest, CountsBytesAsTheDefaultModeDoes) {
  CachingAllocator plain(memory());
  CachingAllocator pool(memory(), planned);
  Training a(plain);
  Training b(pool);
  for (int step = 0; step < 6; ++step) {
    a.step();
    b.step();
  }
  const Statistics x = plain.statistics();
  const Statistics y = pool.statistics();
  EXPECT_EQ(x.allocated_bytes.current, y.allocated_bytes.current);
  EXPECT_EQ(x.allocated_bytes.peak, y.allocated_bytes.peak);
  EXPECT_EQ(x.active_bytes.peak, y.active_bytes.peak);
  EXPECT_EQ(x.requested_bytes.allocated, y.requested_bytes.allocated);
  for (std::size_t i = 0; i < category_count; ++i) EXPECT_EQ(x.category_bytes[i].peak, y.category_bytes[i].peak);
  EXPECT_EQ(plain.sequence_hash(), pool.sequence_hash());
}

TEST_P(PlannedModeTest, ReservesLittleMoreThanThePlan) {
  CachingAllocator pool(memory(4096 * MiB), planned);
  Training training(pool, {8, 256, 192, 4, 6, 256});
  for (int step = 0; step < 4; ++step) training.step();
  pool.reset_peaks();
  for (int step = 0; step < 3; ++step) training.step();
  const Statistics end = pool.statistics();
  EXPECT_LE(static_cast<double>(end.reserved_bytes.peak), 1.05 * static_cast<double>(end.allocated_bytes.peak));
}

TEST_P(PlannedModeTest, FallsBackForAStepThatDiffers) {
  CachingAllocator pool(memory(), planned);
  Training training(pool);
  Training larger(pool, {3, 64, 64, 2, 2, 256});
  for (int step = 0; step < 4; ++step) training.step();
  const std::uint64_t before = pool.statistics().plan_divergences;
  larger.step();
  expect_invariants(pool);
  EXPECT_GT(pool.statistics().plan_divergences, before);
}

TEST_P(PlannedModeTest, PlansAgainAfterALastingChange) {
  CachingAllocator pool(memory(), planned);
  Training training(pool);
  Training larger(pool, {3, 64, 64, 2, 2, 256});
  for (int step = 0; step < 4; ++step) training.step();
  for (int step = 0; step < 12; ++step) larger.step();
  EXPECT_EQ(pool.statistics().plans, 2u);
  const Statistics warm = pool.statistics();
  for (int step = 0; step < 3; ++step) larger.step();
  EXPECT_EQ(pool.statistics().planned_hits - warm.planned_hits, pool.statistics().requests - warm.requests);
}

TEST_P(PlannedModeTest, DropsThePlanRatherThanFail) {
  CachingAllocator pool(memory(64 * MiB), planned);
  const auto step = [&] {
    pool.begin_step();
    deallocate(pool, allocate(pool, 40 * MiB), 40 * MiB);
  };
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(pool.statistics().planned_hits, 2u);
  void* large = allocate(pool, 60 * MiB);  // does not fit beside the slab
  expect_invariants(pool);
  deallocate(pool, large, 60 * MiB);
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
}

TEST_P(PlannedModeTest, TrimsItsSlab) {
  CachingAllocator pool(memory(), planned);
  Training training(pool, {8, 256, 192, 4, 6, 256});
  for (int step = 0; step < 4; ++step) training.step();
  EXPECT_GT(pool.trim(), 0u);
  expect_invariants(pool);
  training.step();
  training.step();
  expect_invariants(pool);
}

TEST_P(PlannedModeTest, ExcludesBlocksOfSeveralStreamsFromSlabs) {
  CachingAllocator pool(memory(), planned);
  for (int step = 0; step < 6; ++step) {
    pool.begin_step();
    void* a = allocate(pool, 4 * MiB, Category::activation, 0);
    void* b = allocate(pool, 4 * MiB, Category::activation, 1);
    // From the fourth step on, a planned block is used on another stream.
    if (step >= 3) pool.use(a, stream_of(pool, 1));
    expect_invariants(pool);
    deallocate(pool, a, 4 * MiB, 0);
    deallocate(pool, b, 4 * MiB, step == 4 ? 0 : 1);
    expect_invariants(pool);
  }
}

TEST_P(PlannedModeTest, ServesEachStreamFromItsOwnSlab) {
  CachingAllocator pool(memory(), planned);
  for (int step = 0; step < 5; ++step) {
    pool.begin_step();
    void* a = allocate(pool, 3 * MiB, Category::activation, 0);
    void* b = allocate(pool, 5 * MiB, Category::activation, 1);
    deallocate(pool, a, 3 * MiB, 0);
    deallocate(pool, b, 5 * MiB, 1);
  }
  EXPECT_EQ(pool.statistics().planned_hits, 8u);
  EXPECT_EQ(pool.statistics().plan_divergences, 0u);
}

TEST_P(PlannedModeTest, PlansNoSlabOnAStreamDestroyedWhileRecorded) {
  CachingAllocator pool(memory(), planned);
  const auto step_on = [&](std::uint64_t stream) {
    pool.begin_step();
    deallocate(pool, allocate(pool, 3 * MiB, Category::activation, stream), 3 * MiB, stream);
  };
  step_on(1);
  pool.stream_destroyed(stream_of(pool, 1));
  step_on(0);
  EXPECT_EQ(pool.statistics().plans, 0u) << "the step that was recorded is of a stream that is gone";
  for (int step = 0; step < 3; ++step) step_on(0);
  EXPECT_EQ(pool.statistics().plans, 1u);
  EXPECT_GT(pool.statistics().planned_hits, 0u);
}

TEST(PlannedMode, NeverMixesUpTheValuesOfTwoBlocks) {
  const auto seed = static_cast<unsigned>(seed_or(std::random_device{}()));
  SCOPED_TRACE("POOLGRAD_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return random() % n; };
  CachingAllocator pool(make_memory("host", 256 * MiB, 64 * KiB), planned);
  struct Live {
    unsigned char* bytes;
    std::size_t size;
    unsigned char value;
    std::uint64_t stream;
  };
  std::vector<Live> live;
  const auto check_and_free = [&](std::size_t i) {
    for (std::size_t at = 0; at < live[i].size; at += 97) ASSERT_EQ(live[i].bytes[at], live[i].value);
    deallocate(pool, live[i].bytes, live[i].size, live[i].stream);
    live[i] = live.back();
    live.pop_back();
  };
  std::vector<std::size_t> sizes(60);
  for (std::size_t& size : sizes) size = 1 + below(200 * KiB);
  unsigned char value = 0;
  for (int step = 0; step < 40; ++step) {
    pool.begin_step();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      // Mostly the same; sometimes one more, one fewer, another order of frees, or no free.
      if (below(40) == 0) continue;
      const std::size_t size = below(40) == 0 ? 1 + below(300 * KiB) : sizes[i];
      const std::uint64_t stream = i % 7 == 0 ? 1 : 0;
      auto* bytes = static_cast<unsigned char*>(allocate(pool, size, Category::activation, stream));
      std::memset(bytes, ++value, size);
      live.push_back({bytes, size, value, stream});
      while (live.size() > 20) check_and_free(below(10) == 0 ? below(live.size()) : 0);
    }
    if (below(10) == 0) pool.trim();
    if (step % 8 == 7) expect_invariants(pool);
    if (below(3) != 0) {
      while (!live.empty()) check_and_free(live.size() - 1);
    }
  }
  EXPECT_GT(pool.statistics().planned_hits, 100u);
}

TEST(PlannedMode, LetsThreadsAllocateWhileThePlanIsDropped) {
  CachingAllocator pool(make_memory("host", 256 * MiB, 64 * KiB), planned);
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (unsigned char id = 1; id <= 3; ++id) {
    threads.emplace_back([&, id] {
      while (!done) {
        std::vector<unsigned char*> blocks;
        for (std::size_t i = 1; i <= 8; ++i) {
          blocks.push_back(static_cast<unsigned char*>(allocate(pool, i * 4 * KiB)));
          std::memset(blocks.back(), id, i * 4 * KiB);
        }
        for (std::size_t i = 1; i <= 8; ++i) {
          if (blocks[i - 1][0] != id || blocks[i - 1][i * 4 * KiB - 1] != id) ++wrong;
          deallocate(pool, blocks[i - 1], i * 4 * KiB);
        }
      }
    });
  }
  for (int step = 0; step < 200; ++step) {
    pool.begin_step();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (step % 50 == 49) pool.trim();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  expect_invariants(pool);
  EXPECT_EQ(pool.statistics().allocated_bytes.current, 0u);
}

}  // namespace
}  // namespace poolgrad::testing
