// Each line of advice is true: with the setting it names, the same requests succeed.
#include "allocator/lab/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "allocator/lab/replay/workload.h"
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

  std::string refusal(std::size_t bytes, std::size_t alignment) const {
    const auto result = pool_->try_allocate({.bytes = bytes, .alignment = alignment, .stream = stream_of(*pool_)});
    return std::holds_alternative<std::string>(result) ? std::get<std::string>(result) : "served";
  }

  std::unique_ptr<CachingAllocator> pool_;
};

TEST_F(AdviceTest, NamesTheSmallestBudgetThatIsEnough) {
  CachingAllocator& pool = make({.budget = 64 * MiB});
  allocate(pool, 40 * MiB);
  EXPECT_THROW(allocate(pool, 40 * MiB), OutOfMemoryError);
  EXPECT_THAT(advice(40 * MiB), ElementsAre("budget:80MiB would have served it"));
}

TEST_F(AdviceTest, SaysNothingWhenNothingHelps) {
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

TEST_F(AdviceTest, NeverNamesACurrentSetting) {
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

TEST_F(AdviceTest, KnowsTheAlignmentOfTheRequest) {
  CachingAllocator& pool = make({.budget = 4 * MiB});
  allocate(pool, 2304 * KiB);
  const std::string report = refusal(3584 * KiB, 2 * MiB);
  EXPECT_THAT(report, HasSubstr("budget:8MiB would have served it"));
  EXPECT_THAT(report, HasSubstr("a budget of 8.00 MiB (8388608 B) would have held this request"));
}

// The same program runs again with each named setting.
TEST_F(AdviceTest, IsTrueForAnyAlignments) {
  struct Act {
    std::size_t block, bytes, alignment;  // 0 bytes: free
    Category category;
  };
  std::size_t pieces = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CounterRandom random(seed);
    AllocatorConfig config{.budget = (8 + random(60)) * MiB, .magazines = random(2) == 0, .stitch = random(3) == 0};
    CachingAllocator& pool = make(config);
    std::vector<Act> acts;
    std::vector<Act> live;
    std::map<std::size_t, void*> blocks;
    const auto carry_out = [](CachingAllocator& other, std::map<std::size_t, void*>& known, const Act& act) {
      if (act.bytes == 0) return true;
      const auto result = other.try_allocate(
          {.bytes = act.bytes, .alignment = act.alignment, .stream = stream_of(other), .tag = {act.category, 0}});
      if (void* const* pointer = std::get_if<void*>(&result)) known[act.block] = *pointer;
      return std::holds_alternative<void*>(result);
    };
    for (std::size_t i = 0; i < 500; ++i) {
      if (!live.empty() && random(100) < 30) {
        std::swap(live[random(live.size())], live.back());
        deallocate(pool, blocks[live.back().block], live.back().bytes);
        acts.push_back({live.back().block, 0, live.back().bytes, {}});
        live.pop_back();
        continue;
      }
      const std::size_t bytes = 1 + (random(3) != 0 ? random(200'000) : random(4 * MiB));
      const Act act{i, bytes, random(4) != 0 ? 64 : std::size_t{64} << random(12),
                    random(6) != 0 ? Category::activation : Category::parameter};
      if (carry_out(pool, blocks, act)) {
        acts.push_back(act);
        live.push_back(act);
        continue;
      }
      for (const std::string& line : checked_advice(
               pool.trace(), pool.config(), device_bytes,
               {.bytes = act.bytes, .alignment = act.alignment, .stream = stream_of(pool), .tag = {act.category, 0}})) {
        ++pieces;
        const std::string setting = line.substr(0, line.find(' '));
        CachingAllocator other(make_memory("sim", device_bytes), AllocatorConfig::parse(config.text() + "," + setting));
        std::map<std::size_t, void*> known;
        bool served = true;
        for (const Act& earlier : acts) {
          if (earlier.bytes == 0) {
            deallocate(other, known[earlier.block], earlier.alignment);
          } else {
            served = served && carry_out(other, known, earlier);
          }
          if (!served) break;
        }
        EXPECT_TRUE(served && carry_out(other, known, act)) << "seed " << seed << ": " << line;
      }
    }
  }
  EXPECT_GT(pieces, 50u);
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
