// Each line of advice is true: with the setting it names, the same history ends well.
#include "allocator/replay/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A pool that records, on a simulated device.
class AdviceTest : public ::testing::Test {
 protected:
  static constexpr std::size_t device_bytes = 256 * MiB;

  CachingAllocator& make(AllocatorConfig config) {
    config.trace = 1000;
    pool_ = std::make_unique<CachingAllocator>(make_memory("sim", device_bytes), config);
    return *pool_;
  }
  std::vector<std::string> advice(std::size_t bytes) const {
    return checked_advice(pool_->trace(), pool_->config(), device_bytes,
                          {.bytes = bytes, .stream = stream_of(*pool_), .tag = {Category::activation, 0}});
  }

  std::unique_ptr<CachingAllocator> pool_;
};

TEST_F(AdviceTest, NamesTheSmallestBudgetThatIsEnough) {
  CachingAllocator& pool = make({.budget = 64 * MiB});
  allocate(pool, 40 * MiB);
  EXPECT_THROW(allocate(pool, 40 * MiB), OutOfMemoryError);
  EXPECT_THAT(advice(40 * MiB), ElementsAre("budget:80MiB would have served it"));
}

TEST_F(AdviceTest, SaysNothingWhereNothingHelps) {
  CachingAllocator& pool = make({.budget = 64 * MiB});
  allocate(pool, 40 * MiB);
  EXPECT_THAT(advice(300 * MiB), IsEmpty()) << "more than the device has";
}

TEST_F(AdviceTest, SaysNothingIfTheReplayDoesNotFail) {
  CachingAllocator& pool = make({.budget = 64 * MiB});
  allocate(pool, 40 * MiB);
  EXPECT_THAT(advice(8 * MiB), IsEmpty());
}

TEST_F(AdviceTest, SaysNothingAboutATraceThatContradictsItself) {
  make({.budget = 64 * MiB});
  Trace trace = pool_->trace();
  TraceEvent event;
  event.kind = static_cast<TraceKind>(99);
  trace.events.push_back(event);
  EXPECT_THAT(checked_advice(trace, pool_->config(), device_bytes, {.bytes = 100 * MiB, .stream = stream_of(*pool_)}),
              IsEmpty());
}

TEST_F(AdviceTest, NeverNamesASettingThatIsInForce) {
  CachingAllocator& pool = make({.budget = 64 * MiB});
  allocate(pool, 40 * MiB);
  for (const std::string& line : advice(40 * MiB)) {
    EXPECT_THAT(line, Not(HasSubstr("stitch:on")));
    EXPECT_THAT(line, Not(HasSubstr("deterministic:off")));
    EXPECT_THAT(line, Not(HasSubstr("mode:default")));
  }
}

TEST_F(AdviceTest, FindsASmallerAlignment) {
  CachingAllocator& pool = make({.budget = 64 * MiB, .alignment = 2 * MiB});
  for (int i = 0; i < 31; ++i) allocate(pool, 64 * KiB);
  EXPECT_THAT(advice(32 * MiB), ::testing::Contains("alignment:64 would have served it"));
}

TEST_F(AdviceTest, FollowsTheStreamOfTheRequest) {
  CachingAllocator& pool = make({.budget = 64 * MiB});
  allocate(pool, 40 * MiB, Category::activation, 7);
  const Trace trace = pool.trace();
  EXPECT_THAT(checked_advice(trace, pool.config(), device_bytes,
                             {.bytes = 40 * MiB, .stream = stream_of(pool, 9), .tag = {Category::activation, 0}}),
              ElementsAre("budget:80MiB would have served it"));
}

}  // namespace
}  // namespace poolgrad::testing
