// The step that trainers share, and training by the library alone; examples/train tests the rest.
#include "nn/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "autograd/operators.h"
#include "nn/training/sampler.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;

/// A layer with its optimiser; both runs begin alike.
struct SmallModel {
  Generator generator{7};
  Linear layer{3, 2, {}, {.dtype = DType::f64, .generator = &generator}};
  SGD optimizer{layer.named_parameters(), {.learning_rate = 0.5}};
  Tensor input = ones({4, 3}, {.dtype = DType::f64});

  Tensor loss() { return sum(square(layer(input))); }
};

TEST(TrainingStep, OfASumOverTokensIsThatOfTheirMean) {
  SmallModel summed, mean;
  TrainingStep by_sum(summed.layer, summed.optimizer), by_mean(mean.layer, mean.optimizer);
  for (int i = 0; i < 3; ++i) {
    const StepRecord a = by_sum.run(0.1, 4, [&] { return summed.loss(); });
    const StepRecord b = by_mean.run(0.1, 1, [&] { return mean.loss() / 4.0; });
    EXPECT_EQ(a.step, i + 1);
    EXPECT_NEAR(a.loss, b.loss, 1e-12);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-12);
  }
  EXPECT_LT(relative_error(summed.layer.weight(), mean.layer.weight()), 1e-12);
  EXPECT_FALSE(summed.layer.weight().grad().defined()) << "gradients are dropped";
}

TEST(TrainingStep, UpdatesByNoMoreThanRateTimesTheNormItClipsAt) {
  SmallModel model;
  const Tensor before = model.layer.weight().copy(), bias = model.layer.bias().copy();
  TrainingStep step(model.layer, model.optimizer, 0.25);
  const StepRecord record = step.run(2.0, 1, [&] { return model.loss() * 1e3; });
  EXPECT_GT(record.gradient_norm, 0.25);
  const double moved =
      sum(square(model.layer.weight() - before)).item() + sum(square(model.layer.bias() - bias)).item();
  EXPECT_NEAR(std::sqrt(moved), 0.5, 1e-12);
}

TEST(TrainingStep, SaysWhichStepOfWhatDivergedAndUpdatesNothing) {
  SmallModel model;
  const Tensor before = model.layer.weight().copy();
  TrainingStep step(model.layer, model.optimizer, 1.0, "my program");
  step.set_steps(8);
  EXPECT_THAT(error_of<ValueError>(
                  [&] { step.run(0.1, 1, [&] { return model.loss() * std::numeric_limits<double>::infinity(); }); }),
              HasSubstr("[my program] step 9 diverged: loss inf"));
  EXPECT_EQ(step.steps(), 8);
  EXPECT_TRUE(bit_equal(model.layer.weight(), before));
}

/// Each position sees itself and the one before.
class OneBack : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState* state) override {
    const Tensor first = state && state->length > 0 ? state->tensors.at(0) : zeros({x.size(0), 1, x.size(2)});
    if (state) {
      state->tensors = {slice(x, 1, x.size(1) - 1, x.size(1))};
      state->length += x.size(1);
    }
    return (x + slice(cat({first, x}, 1), 1, 0, x.size(1))) / 2.0;
  }
};

Corpus small_text() {
  Corpus corpus;
  for (int i = 0; i < 3000; ++i) corpus.train.push_back(static_cast<std::uint8_t>("abcab\n"[i % 6]));
  corpus.validation.assign(corpus.train.begin(), corpus.train.begin() + 300);
  return corpus;
}

/// Twelve steps of a small model, on a generator of its own.
struct SmallTraining {
  explicit SmallTraining(OptimizerKind by = OptimizerKind::adamw) : optimizer(by) {}
  OptimizerKind optimizer;
  Generator generator{3};
  Trainer trainer{std::make_unique<LanguageModel>(
                      LanguageModelConfig{.context = 32, .layers = 1, .width = 16, .dropout = 0.1},
                      [](const auto&, const auto&) { return std::make_unique<OneBack>(); },
                      ParameterOptions{.generator = &generator}),
                  small_text(),
                  {.batch = 2, .steps = 12, .learning_rate = 0.02, .generator = &generator, .optimizer = optimizer}};
};

TEST(Trainer, RunsToItsReportWithoutOptions) {
  SmallTraining small;
  std::ostringstream out;
  const TrainResult result = train(small.trainer, out);
  EXPECT_EQ(result.steps.size(), 12u);
  EXPECT_LT(result.validation_loss, result.steps.front().loss - 0.5);
  EXPECT_EQ(result.prompt.size() + result.sample.size(), 32u);
  for (const char* part : {"step  1/12", "step 12/12", "held out", "trigram", "| "})
    EXPECT_THAT(out.str(), HasSubstr(part));
  EXPECT_EQ(out.str().find("wrote"), std::string::npos);
}

TEST(Trainer, ScoresThePositionsOfTheHeldOutText) {
  SmallTraining small;
  for (int i = 0; i < 6; ++i) small.trainer.step();
  const std::vector<double> losses = small.trainer.loss_by_position(3);
  ASSERT_EQ(losses.size(), 32u);
  double sum = 0, first = 0;
  for (const double loss : losses) sum += loss;
  EXPECT_NEAR(sum / 32, small.trainer.validate(3), 1e-5);
  small.trainer.model().eval();
  for (const std::int64_t start : {0, 53, 106, 160, 213, 267}) {  // six windows, evenly spread
    const TextWindows window = windows_of(small.trainer.corpus().validation, {start}, 32);
    first += small.trainer.model().losses(window.tokens, window.targets).to_vector<double>()[0] / 6;
  }
  EXPECT_NEAR(losses[0], first, 1e-6);
}

TEST(Trainer, ReportsTheLossByOctavesOfTheContextWhoseMeanIsTheLoss) {
  const TemporaryFolder folder;
  SmallTraining small;
  std::ostringstream out;
  const std::string path = folder.file("report.json");
  const TrainResult result = train(small.trainer, out, {.json = path});
  std::vector<std::int64_t> lasts;
  double sum = 0;
  for (const PositionLoss& octave : result.by_position) {
    EXPECT_EQ(octave.first, lasts.empty() ? 1 : lasts.back() + 1);
    lasts.push_back(octave.last);
    sum += octave.loss * static_cast<double>(octave.last - octave.first + 1);
  }
  EXPECT_EQ(lasts, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32}));
  EXPECT_NEAR(sum / 32, result.validation_loss, 1e-12);
  EXPECT_THAT(out.str(), HasSubstr(" after 1 byte, "));
  EXPECT_THAT(out.str(), HasSubstr(" after 17 to 32\n"));
  EXPECT_THAT(read_bytes(path), HasSubstr("\"first\": 17,\n      \"last\": 32,"));
}

TEST(Trainer, ShowsTheRunAfterEachLineAndTracesItsSecondStep) {
  SmallTraining small;
  std::ostringstream out;
  std::vector<std::int64_t> shown;
  const TrainResult result =
      train(small.trainer, out, {.report = 5, .trace_step = true, .reported = [&](TrainResult& r, bool finished) {
                                   shown.push_back(finished ? -1 : r.steps.back().step);
                                   EXPECT_EQ(r.step_trace.has_value(), r.steps.size() > 1);
                                   EXPECT_GT(r.baselines.unigram, 0);
                                 }});
  EXPECT_EQ(shown, (std::vector<std::int64_t>{1, 5, 10, 12, -1}));
  const auto steps = std::count_if(result.step_trace->events.begin(), result.step_trace->events.end(),
                                   [](const TraceEvent& event) { return event.kind == TraceKind::step; });
  EXPECT_EQ(steps, 1);
  EXPECT_FALSE(small.trainer.pool().tracing());
}

TEST(Trainer, PutsTheCallersConfigurationIntoTheReport) {
  const TemporaryFolder folder;
  SmallTraining small;
  std::ostringstream out;
  const std::string path = folder.file("report.json");
  EXPECT_EQ(error_of<ValueError>([&] { train(small.trainer, out, {.json = path, .config = "{width"}); }),
            "[train] the configuration of the report is no JSON: {width");
  EXPECT_EQ(small.trainer.steps_done(), 0);
  train(small.trainer, out, {.json = path, .config = R"({"width": 16})", .quiet = true});
  EXPECT_THAT(read_bytes(path), HasSubstr("\"width\": 16"));
  EXPECT_EQ(out.str(), "");
}

TEST(Trainer, GoesOnFromItsCheckpointBitForBit) {
  const TemporaryFolder folder;
  std::ostringstream out;
  SmallTraining whole, half, rest;
  const TrainResult expected = train(whole.trainer, out);
  const std::string path = folder.file("half.safetensors"), csv = folder.file("half.csv");
  EXPECT_TRUE(
      train(half.trainer, out, {.stop_after = 5, .save = path, .csv = csv, .metadata = {{"by", "me"}}}).interrupted);
  EXPECT_EQ(read_training_metadata(path)["by"], "me");
  EXPECT_THAT(read_bytes(csv), HasSubstr("step,loss,gradient_norm,learning_rate,milliseconds,tokens_per_second,"));
  rest.trainer.resume(path);
  EXPECT_EQ(rest.trainer.steps_done(), 5);
  const TrainResult resumed = train(rest.trainer, out);
  EXPECT_EQ(resumed.steps.back().loss, expected.steps.back().loss);
  EXPECT_EQ(resumed.validation_loss, expected.validation_loss);
  EXPECT_EQ(resumed.sample, expected.sample);
}

TEST(Trainer, RefusesTheCheckpointOfAnotherOptimiser) {
  const TemporaryFolder folder;
  const std::string path = folder.file("lion.safetensors");
  SmallTraining lion(OptimizerKind::lion), adamw;
  lion.trainer.step();
  lion.trainer.save(path);
  EXPECT_EQ(read_training_metadata(path)["optimizer"], "lion");
  EXPECT_EQ(read_training_metadata(path)["schedule"], "cosine");
  EXPECT_EQ(error_of<ValueError>([&] { adamw.trainer.resume(path); }),
            "[train] the checkpoint " + path + " was trained by lion, whose state adamw cannot go on with");
  EXPECT_EQ(adamw.trainer.steps_done(), 0);
}

TEST(Trainer, RefusesATextThatIsTooShortAndABatchOfNothing) {
  Generator generator(1);
  const auto refusal = [&](const Corpus& corpus, std::int64_t batch) {
    return error_of<ValueError>([&] {
      Trainer(std::make_unique<LanguageModel>(
                  LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
                  [](const auto&, const auto&) { return std::make_unique<OneBack>(); },
                  ParameterOptions{.generator = &generator}),
              corpus, {.batch = batch});
    });
  };
  Corpus corpus = small_text();
  EXPECT_EQ(refusal(corpus, 0), "[train] the batch must be at least 1, but is 0");
  corpus.validation.resize(1);
  EXPECT_EQ(refusal(corpus, 1), "[train] the text is too short to hold any of it out");
  corpus.train.resize(32);
  EXPECT_THAT(refusal(corpus, 1), HasSubstr("shorter than the context: 32 bytes to train on"));
}

TEST(SampleText, RefusesAnEmptyPrompt) {
  SmallTraining small;
  EXPECT_EQ(error_of<ValueError>([&] { sample_text(small.trainer.model(), "", 3); }),
            "[sample_text] the prompt must not be empty");
}

}  // namespace
}  // namespace poolgrad::nn
