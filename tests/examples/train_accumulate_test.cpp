// Steps of several batches, and the metrics of a run.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "examples/plan/dry_run.h"
#include "tests/examples/small_run.h"
#include "tests/examples/train_program.h"

namespace poolgrad::examples {
namespace {

using testing_support::read_bytes;

class TrainAccumulate : public SmallRun {
 protected:
  TrainAccumulate() {
    options_.dropout = 0;
    options_.batch = 2;
    options_.accumulate = 3;
  }
};

TEST_F(TrainAccumulate, FollowsABatchSoManyTimesAsLarge) {
  options_.dtype = "f64";
  for (const char* optimizer : {"muon", "adamw"}) {
    options_.optimizer = optimizer;
    const nn::TrainResult accumulated = run();
    TrainOptions large = options_;
    large.batch = 6;
    large.accumulate = 1;
    const nn::TrainResult at_once = run(large);
    ASSERT_EQ(accumulated.steps.size(), 20u);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(accumulated.steps[i].loss, at_once.steps[i].loss, 1e-9) << optimizer << ", step " << i + 1;
      EXPECT_NEAR(accumulated.steps[i].gradient_norm, at_once.steps[i].gradient_norm, 1e-8);
    }
    EXPECT_LT(accumulated.peak_live_bytes, at_once.peak_live_bytes);
  }
}

TEST_F(TrainAccumulate, IsResumedBitForBit) {
  options_.dropout = 0.1;
  options_.save = folder_.file("half.safetensors");
  const nn::TrainResult whole = run();
  options_.stop_after = 9;
  run();
  TrainOptions rest;
  rest.text = options_.text;
  rest.resume = options_.save;
  rest.sample = options_.sample;
  const nn::TrainResult resumed = run(rest);
  EXPECT_EQ(resumed.steps.front().step, 10);
  EXPECT_EQ(resumed.steps.back().loss, whole.steps.back().loss);
  EXPECT_EQ(resumed.validation_loss, whole.validation_loss);
  rest.accumulate = 1;
  rest.given = {"accumulate"};
  EXPECT_EQ(refusal<ValueError>(rest),
            "[train] the checkpoint has another configuration: --accumulate is 3 there, 1 here");
}

TEST_F(TrainAccumulate, TakesThePlannedMemoryToTheByteWithAndWithoutABudget) {
  TrainOptions planned = options_;
  planned.budget = "1GiB";
  const DryRun plan = dry_run(planned, std::size_t{1} << 30);
  for (const std::size_t budget : {std::size_t{1} << 30, plan.peak_reserved}) {
    options_.budget = std::to_string(budget);
    const nlohmann::json report = run_train_program(options_, folder_);
    EXPECT_EQ(report["peak_live_bytes"], plan.peak_live) << budget;
    EXPECT_EQ(report["peak_reserved_bytes"], plan.peak_reserved) << budget;
  }
}

TEST_F(TrainAccumulate, MetricsOfAResumedRunAreThoseOfARunThatWasNeverStopped) {
  const auto steps_and_losses = [](const std::string& path) {
    std::vector<std::pair<std::int64_t, double>> found;
    std::istringstream lines(read_bytes(path));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      found.emplace_back(json["step"].get<std::int64_t>(), json["validation_loss"].get<double>());
    }
    return found;
  };
  options_.metrics = folder_.file("whole.jsonl");
  const nn::TrainResult whole = run();
  EXPECT_EQ(steps_and_losses(options_.metrics), whole.validations);
  options_.metrics = folder_.file("halves.jsonl");
  options_.save = folder_.file("half.safetensors");
  options_.stop_after = 10;
  run();
  EXPECT_THAT(out_.str(), ::testing::HasSubstr("wrote    metrics " + options_.metrics));
  TrainOptions rest;
  rest.text = options_.text;
  rest.resume = options_.save;
  rest.metrics = options_.metrics;
  rest.report = 10;
  run(rest);
  auto expected = whole.validations;  // of steps 1, 5, 10, 15 and 20, and of the first resumed step in place of 15
  ASSERT_EQ(expected.size(), 5u);
  auto found = steps_and_losses(options_.metrics);
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[3].first, 11);
  found.erase(found.begin() + 3);
  expected.erase(expected.begin() + 3);
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace poolgrad::examples
