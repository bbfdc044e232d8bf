// Every call to the device fails once, in every place: nothing leaks, and the next call works.
#include <random>

#include "allocator/failing_memory.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class FaultInjectionTest : public PoolTest {
 protected:
  struct Live {
    void* pointer;
    std::size_t bytes;
    std::uint64_t stream;
  };

  // 200 operations that reach every kind of call: growth, cross-stream frees and takes, release, trim.
  void run_script(CachingAllocator& pool) {
    std::mt19937_64 random(42);
    std::vector<Live> live;
    const auto release = [&] {
      std::swap(live[random() % live.size()], live.back());
      deallocate(pool, live.back().pointer, live.back().bytes, random() % 3 == 0 ? random() % 2 : live.back().stream);
      live.pop_back();
    };
    for (int step = 0; step < 200; ++step) {
      if (step % 40 == 39) {
        pool.trim(page);
      } else if (live.size() < 6 && random() % 3 != 0) {
        const std::size_t bytes = 1 + random() % (2 * page);
        const std::uint64_t stream = random() % 2;
        try {
          live.push_back({allocate(pool, bytes, Category::activation, stream), bytes, stream});
        } catch (const Error&) {
          ++refused_;
        }
      } else if (!live.empty()) {
        release();
      }
      expect_invariants(pool);
      if (HasFatalFailure()) return;
    }
    while (!live.empty()) release();
  }

  std::size_t refused_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Devices, FaultInjectionTest, devices, device_name);

TEST_P(FaultInjectionTest, SurvivesTheFailureOfAnyOneCall) {
  std::uint64_t calls = 0;
  for (std::uint64_t k = 0; k == 0 || k <= calls; ++k) {
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(calls));
    auto failing = std::make_unique<FailingMemory>(memory(64 * page));
    FailingMemory* device = failing.get();
    CachingAllocator pool(std::move(failing), {.budget = 7 * page});
    if (k != 0) device->fail_call(k);
    run_script(pool);
    ASSERT_FALSE(HasFatalFailure());
    if (k == 0) calls = device->calls();
    device->fail_call(0, 0);
    // Everything comes back, and the whole budget is usable.
    pool.set_budget(7 * page);
    void* all = allocate(pool, 7 * page);
    deallocate(pool, all, 7 * page);
    EXPECT_EQ(pool.statistics().active_bytes.current, 0u);
    pool.trim();
    expect_invariants(pool);
    EXPECT_EQ(device->info().free, device->info().total);
  }
  EXPECT_GT(calls, 50u);
}

TEST_P(FaultInjectionTest, FailsCleanlyWhenTheDeviceRefusesEverything) {
  auto failing = std::make_unique<FailingMemory>(memory(64 * page));
  FailingMemory* device = failing.get();
  CachingAllocator pool(std::move(failing));
  device->fail_call(1, 1000);
  for (int i = 0; i < 10; ++i) EXPECT_THROW(allocate(pool, page), OutOfMemoryError);
  device->fail_call(0, 0);
  EXPECT_NO_THROW(allocate(pool, page));
  expect_invariants(pool);
}

}  // namespace
}  // namespace poolgrad::testing
