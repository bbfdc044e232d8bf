// A warm training run asks the device for no memory, and the pool holds little more than the live bytes.
#include <unordered_map>

#include "tests/allocator/pool_testing.h"
#include "tests/allocator/training_trace.h"

namespace poolgrad::testing {
namespace {

class Replay {
 public:
  explicit Replay(CachingAllocator& pool) : pool_(pool) {}

  void run(const std::vector<TraceEvent>& events) {
    for (const TraceEvent& event : events) {
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
  std::unordered_map<std::size_t, std::pair<void*, std::size_t>> live_;
};

class TrainingStepsTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, TrainingStepsTest, devices, device_name);

// Page sizes of GPUs and of the host.
constexpr std::size_t page_sizes[] = {page, 64 * KiB};

constexpr TraceModel models[] = {{12, 64, 128, 4, 4, 65},
                                 {8, 256, 192, 4, 6, 256},
                                 {1, 2048, 128, 4, 4, 256},
                                 {1, 4096, 128, 4, 4, 256},
                                 {8, 512, 256, 6, 4, 256}};

TEST_P(TrainingStepsTest, NeedNoDeviceCallsFromTheThirdOn) {
  for (const std::size_t granularity : page_sizes) {
    for (const TraceModel& model : models) {
      CachingAllocator pool(make_memory(GetParam(), 4096 * MiB, granularity));
      TrainingTrace trace(model);
      Replay replay(pool);
      Statistics warm;
      for (int step = 1; step <= 6; ++step) {
        trace.step();
        replay.run(trace.take());
        if (step == 2) warm = pool.statistics();
      }
      const Statistics end = pool.statistics();
      EXPECT_EQ(end.num_device_alloc, warm.num_device_alloc);
      EXPECT_EQ(end.num_device_free, warm.num_device_free);
      EXPECT_EQ(end.num_alloc_retries, warm.num_alloc_retries);
      EXPECT_EQ(end.events_recorded, 0u);
      EXPECT_LE(static_cast<double>(end.reserved_bytes.peak), 1.10 * static_cast<double>(end.allocated_bytes.peak))
          << "batch " << model.batch << ", context " << model.context << ", pages of " << granularity;
    }
  }
}

TEST_P(TrainingStepsTest, WasteLittleWithATinyModelOnSmallPages) {
  CachingAllocator pool(make_memory(GetParam(), 64 * MiB, 64 * KiB));
  TrainingTrace trace({1, 256, 32, 1, 2, 256});
  Replay replay(pool);
  for (int step = 1; step <= 3; ++step) {
    trace.step();
    replay.run(trace.take());
  }
  const Statistics end = pool.statistics();
  EXPECT_LE(static_cast<double>(end.reserved_bytes.peak), 1.10 * static_cast<double>(end.allocated_bytes.peak));
}

TEST_P(TrainingStepsTest, FitIntoABudgetCloseToTheLivePeak) {
  // The budget is 3 % above the peak of live bytes: release and growth move pages, and no request fails.
  const TraceModel model{8, 512, 256, 6, 4, 256};
  std::size_t peak = 0;
  for (const bool tight : {false, true}) {
    CachingAllocator pool(memory(4096 * MiB), {.budget = tight ? peak / 100 * 103 : 0});
    TrainingTrace trace(model);
    Replay replay(pool);
    for (int step = 1; step <= 4; ++step) {
      trace.step();
      replay.run(trace.take());
    }
    peak = pool.statistics().allocated_bytes.peak;
    EXPECT_LE(pool.statistics().reserved_bytes.peak, pool.budget());
  }
}

}  // namespace
}  // namespace poolgrad::testing
