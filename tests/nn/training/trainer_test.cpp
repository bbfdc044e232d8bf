// The step that trainers share, and training by the library alone; examples/train tests the rest.
#include "nn/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "autograd/operators.h"
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
  Generator generator{3};
  Trainer trainer{std::make_unique<LanguageModel>(
                      LanguageModelConfig{.context = 32, .layers = 1, .width = 16, .dropout = 0.1},
                      [](const auto&, const auto&) { return std::make_unique<OneBack>(); },
                      ParameterOptions{.generator = &generator}),
                  small_text(),
                  {.batch = 2, .steps = 12, .learning_rate = 0.02, .generator = &generator}};
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

TEST(SampleText, RefusesAnEmptyPromptAndATemperatureOfZero) {
  SmallTraining small;
  LanguageModel& model = small.trainer.model();
  EXPECT_EQ(error_of<ValueError>([&] { sample_text(model, "", 3); }), "[sample_text] the prompt must not be empty");
  EXPECT_THAT(error_of<ValueError>([&] { sample_text(model, "a", 3, 0.0); }), HasSubstr("must be positive"));
}

}  // namespace
}  // namespace poolgrad::nn
