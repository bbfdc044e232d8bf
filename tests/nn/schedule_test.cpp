// Learning rates over time.
#include "nn/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "allocator/error.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using testing_support::error_of;

TEST(Schedule, CosineWarmsUpThenFallsToItsFloor) {
  const Schedule schedule{.peak = 2.0, .warmup = 4, .steps = 12, .floor = 0.1};
  EXPECT_DOUBLE_EQ(schedule.rate(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.rate(4), 2.0);
  EXPECT_DOUBLE_EQ(schedule.rate(8), 2.0 * 0.55);
  EXPECT_DOUBLE_EQ(schedule.rate(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule.rate(100), 0.2);
}

TEST(Schedule, BeginsAtItsPeakWithoutWarmUp) {
  const Schedule schedule{.peak = 2.0, .warmup = 0, .steps = 9, .floor = 0.1};
  EXPECT_DOUBLE_EQ(schedule.rate(1), 2.0);
  EXPECT_DOUBLE_EQ(schedule.rate(5), 2.0 * 0.55);
  EXPECT_DOUBLE_EQ(schedule.rate(9), 0.2);
  EXPECT_EQ(schedule.rate(0), 0.0) << "before the first step";
  EXPECT_DOUBLE_EQ((Schedule{.peak = 2.0, .warmup = 0, .steps = 1}.rate(1)), 2.0);
}

TEST(Schedule, ShortensAWarmUpLongerThanTheRun) {
  for (const auto kind :
       {Schedule::Kind::cosine, Schedule::Kind::linear, Schedule::Kind::constant, Schedule::Kind::wsd})
    for (const std::int64_t step : {10, 15, 20, 30})
      EXPECT_DOUBLE_EQ((Schedule{.kind = kind, .peak = 2.0, .warmup = 20, .steps = 10}.rate(step)), 1.0);
}

/// Returns the rates of steps 1 to 11 in hundredths; the schedule has 10 steps, 2 of them warm-up.
std::vector<int> rates(Schedule::Kind kind, double decay = 0.2) {
  const Schedule schedule{.kind = kind, .peak = 1.0, .warmup = 2, .steps = 10, .floor = 0.2, .decay = decay};
  std::vector<int> found;
  for (int step = 1; step <= 11; ++step) found.push_back(static_cast<int>(100 * schedule.rate(step) + 0.5));
  return found;
}

TEST(Schedule, LinearFallsEvenly) {
  EXPECT_THAT(rates(Schedule::Kind::linear), ElementsAre(50, 100, 90, 80, 70, 60, 50, 40, 30, 20, 20));
}

TEST(Schedule, ConstantStaysAtItsPeak) {
  EXPECT_THAT(rates(Schedule::Kind::constant), ElementsAre(50, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100));
}

TEST(Schedule, WarmUpStableDecayFallsInItsLastPart) {
  EXPECT_THAT(rates(Schedule::Kind::wsd, 0.4), ElementsAre(50, 100, 100, 100, 100, 100, 80, 60, 40, 20, 20));
  EXPECT_THAT(rates(Schedule::Kind::wsd, 1.0), ElementsAre(50, 100, 90, 80, 70, 60, 50, 40, 30, 20, 20))
      << "no longer than what the warm-up leaves";
  EXPECT_THAT(rates(Schedule::Kind::wsd, 0.0), ElementsAre(50, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100));
}

TEST(Schedule, RoundTripsThroughItsName) {
  for (const char* name : {"cosine", "linear", "constant", "wsd"}) EXPECT_EQ(to_string(Schedule::parse(name)), name);
  EXPECT_EQ(error_of<ValueError>([] { Schedule::parse("step"); }),
            "[schedule] it must be cosine, linear, constant or wsd, but is step");
}

}  // namespace
}  // namespace poolgrad::nn
