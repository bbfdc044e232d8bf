// Learning rates and contexts over time.
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

TEST(ContextWarmup, HasTheContextOfTheFirstStageThatHasNotEnded) {
  const ContextWarmup warmup = ContextWarmup::parse("128:500,256:1000");
  std::vector<std::int64_t> found;
  for (const std::int64_t step : {1, 500, 501, 1000, 1001, 9000}) found.push_back(warmup.context(step, 4096));
  EXPECT_THAT(found, ElementsAre(128, 128, 256, 256, 4096, 4096));
  EXPECT_EQ(ContextWarmup::parse("none").context(1, 4096), 4096);
}

TEST(ContextWarmup, RefusesStagesThatDoNotRise) {
  const auto refusal = [](const std::string& stages) {
    return error_of<ValueError>([&] { ContextWarmup::parse(stages).check(256); });
  };
  const std::string reason = "[context warm-up] contexts must rise to less than 256, and steps must rise, but ";
  EXPECT_EQ(refusal("64:5,64:9"), reason + "64 up to step 9 follows 64 up to step 5");
  EXPECT_EQ(refusal("64:5,128:5"), reason + "128 up to step 5 follows 64 up to step 5");
  EXPECT_EQ(refusal("256:5"), reason + "256 up to step 5 follows 0 up to step 0");
  EXPECT_EQ(refusal("0:5"), reason + "0 up to step 5 follows 0 up to step 0");
  EXPECT_EQ(refusal("64:0"), reason + "64 up to step 0 follows 0 up to step 0");
  ContextWarmup::parse("128:100").check(256);
}

TEST(ContextWarmup, RefusesTextOfAnotherForm) {
  for (const char* const text : {"", "64", "64:", ":5", "64:5,", "64:5:6", "64:5;128:9", "99999999999999999999:5"})
    EXPECT_EQ(
        error_of<ValueError>([&] { ContextWarmup::parse(text); }),
        std::string("[context warm-up] it must be none or CONTEXT:STEP, such as 128:500,256:1000, but is ") + text);
}

}  // namespace
}  // namespace poolgrad::nn
