// Runs whose first steps have shorter contexts.
#include <gmock/gmock.h>

#include "allocator/error.h"
#include "examples/plan/dry_run.h"
#include "tests/examples/small_run.h"
#include "tests/examples/train_program.h"
#include "tests/threads.h"

namespace poolgrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainWarmup : public SmallRun {
 protected:
  TrainWarmup() {
    options_.context_warmup = "16:3,40:7";
    options_.steps = 12;
    options_.report = 1;
  }
  static std::vector<std::int64_t> contexts(const nn::TrainResult& result) {
    std::vector<std::int64_t> found;
    for (const nn::StepRecord& step : result.steps) found.push_back(step.context);
    return found;
  }
};

TEST_F(TrainWarmup, StepsHaveTheContextOfTheirStage) {
  options_.metrics = folder_.file("metrics.csv");
  const nn::TrainResult result = run();
  EXPECT_EQ(contexts(result), (std::vector<std::int64_t>{16, 16, 16, 40, 40, 40, 40, 96, 96, 96, 96, 96}));
  EXPECT_EQ(result.by_position.back().last, 96) << "validation has the whole context";
  EXPECT_THAT(out_.str(), AllOf(HasSubstr(", contexts 16:3,40:7"), HasSubstr("step  4/12  context 40  loss"),
                                HasSubstr("step  8/12  context 96  loss")));
  const std::string metrics = testing_support::read_bytes(options_.metrics);
  EXPECT_THAT(metrics, AllOf(HasSubstr("step,context,loss,"), HasSubstr("\n3,16,"), HasSubstr("\n4,40,")));
}

TEST_F(TrainWarmup, AShortStepHasTheLossOfTheBeginningsOfItsWindows) {
  options_.dtype = "f64";
  options_.dropout = 0;
  const nn::Corpus corpus = nn::read_corpus(options_.text, options_.seed);
  Generator drawn(options_.seed);
  const auto trainer = options_.make_trainer(corpus, cpu, drawn);
  const nn::WindowPlan plan(corpus, options_.context, options_.batch, options_.seed);
  const nn::TextWindows windows = nn::windows_of({plan.drawn(0), plan.drawn(1)}, 16);
  const double expected = trainer->model().loss(windows.tokens, windows.targets, true).item() / (2 * 16);
  EXPECT_NEAR(trainer->step().loss, expected, 1e-12);
}

TEST_F(TrainWarmup, ResumesWithinAStageBitForBit) {
  options_.metrics = folder_.file("whole.jsonl");
  const nn::TrainResult whole = run();
  for (const std::int64_t stop : {2, 3, 5, 7}) {
    options_.stop_after = stop;
    options_.save = folder_.file("stopped.safetensors");
    options_.metrics = "";
    run();
    TrainOptions rest;
    rest.text = options_.text;
    rest.resume = options_.save;
    rest.sample = options_.sample;
    const nn::TrainResult resumed = run(rest);
    EXPECT_EQ(resumed.steps.front().context, whole.steps[static_cast<std::size_t>(stop)].context);
    EXPECT_EQ(resumed.steps.back().loss, whole.steps.back().loss) << stop;
    EXPECT_EQ(resumed.validation_loss, whole.validation_loss) << stop;
    EXPECT_EQ(resumed.sample, whole.sample) << stop;
  }
}

TEST_F(TrainWarmup, ABudgetKeepsTheBits) {
  const nn::TrainResult free = run();
  TrainOptions tight = options_;
  tight.checkpoint = "budget";
  std::size_t budget = free.peak_reserved_bytes;
  const auto fits = [&](std::size_t bytes) {
    tight.budget = std::to_string(bytes);
    return dry_run(tight, bytes).fits;
  };
  while (fits(budget - budget / 16)) budget -= budget / 16;
  tight.budget = std::to_string(budget + budget / 16);
  const nn::TrainResult bounded = run(tight);
  EXPECT_LE(bounded.peak_reserved_bytes, budget + budget / 16);
  EXPECT_EQ(bounded.steps.back().loss, free.steps.back().loss);
  EXPECT_EQ(bounded.validation_loss, free.validation_loss);
}

TEST_F(TrainWarmup, APlanCoversTheLargestStage) {
  options_.report = 50;
  options_.checkpoint = "none";
  options_.budget = "1GiB";
  TrainOptions constant = options_;
  constant.context_warmup = "none";
  const Threads threads(1);
  const DryRun plan = dry_run(options_, std::size_t{1} << 30), usual = dry_run(constant, std::size_t{1} << 30);
  EXPECT_EQ(plan.peak_live, usual.peak_live);
  options_.device = "sim:1GiB,like=cpu";
  const nlohmann::json real = run_train_program(options_, folder_, "POOLGRAD_THREADS=1");
  EXPECT_EQ(real["peak_live_bytes"], plan.peak_live) << real["error"];
  EXPECT_EQ(real["peak_reserved_bytes"], plan.peak_reserved);
}

TEST_F(TrainWarmup, ANewRunFromWeightsHasNoWarmup) {
  options_.save = folder_.file("first.safetensors");
  run();
  TrainOptions o;
  o.text = options_.text;
  o.init = options_.save;
  o.steps = 2;
  EXPECT_EQ(contexts(run(o)), (std::vector<std::int64_t>{96, 96}));
}

TEST_F(TrainWarmup, RefusesBadWarmupsInOneSentence) {
  const auto refused = [&](const auto& change) {
    TrainOptions o = options_;
    change(o);
    return refusal<ValueError>(o);
  };
  EXPECT_EQ(refused([](auto& o) { o.context_warmup = "16"; }),
            "[--context-warmup] it must be none or CONTEXT:STEP, such as 128:500,256:1000, but is 16");
  EXPECT_EQ(
      refused([](auto& o) { o.context_warmup = "16:5,96:9"; }),
      "[--context-warmup] contexts must rise to less than 96, and steps must rise, but 96 up to step 9 follows 16 "
      "up to step 5");
  EXPECT_EQ(refused([](auto& o) { o.graph = true; }),
            "[train] --graph records one step, but --context-warmup changes its context");
}

}  // namespace
}  // namespace poolgrad::examples
