// The step of all trainers, and training with the library alone; examples/train tests the rest.
#include "nn/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "autograd/operators.h"
#include "nn/text/byte_source.h"
#include "nn/training/sampler.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/process_guards.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::WorkingFolder;

/// A layer with its optimizer; both runs start from equal values.
struct SmallModel {
  Generator generator{7};
  Linear layer{3, 2, {}, {.dtype = DType::f64, .generator = &generator}};
  SGD optimizer{layer.named_parameters(), {.learning_rate = 0.5}};
  Tensor input = ones({4, 3}, {.dtype = DType::f64});

  Tensor loss() { return sum(square(layer(input))); }
};

TEST(TrainingStep, ASummedLossGivesTheStepOfTheMean) {
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

TEST(TrainingStep, AccumulatesPassesToTheBitsOfOneLargerBatchWhereSumsAreExact) {
  SmallModel whole, parts;
  TrainingStep at_once(whole.layer, whole.optimizer), accumulated(parts.layer, parts.optimizer);
  accumulated.accumulate(2);
  const auto loss_of = [](SmallModel& model, std::int64_t begin, std::int64_t end) {
    const std::vector<double> whole_numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const Tensor rows = from_data(whole_numbers, {4, 3});  // gradients are exact sums
    return sum(model.layer(slice(rows, 0, begin, end)));
  };
  for (int i = 0; i < 3; ++i) {
    std::int64_t row = 0;
    const StepRecord a = at_once.run(0.1, 4, [&] { return loss_of(whole, 0, 4); });
    const StepRecord b = accumulated.run(0.1, 4, [&] {
      row += 2;
      return loss_of(parts, row - 2, row);
    });
    EXPECT_EQ(row, 4) << "two passes";
    EXPECT_NEAR(a.loss, b.loss, 1e-12);
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
  }
  EXPECT_TRUE(bit_equal(whole.layer.weight(), parts.layer.weight()));
  EXPECT_EQ(error_of<ValueError>([&] { accumulated.accumulate(0); }),
            "[train] a step must accumulate at least 1 pass, but is given 0");
}

TEST(TrainingStep, UpdatesByAtMostTheRateTimesTheClipNorm) {
  SmallModel model;
  const Tensor before = model.layer.weight().copy(), bias = model.layer.bias().copy();
  TrainingStep step(model.layer, model.optimizer, 0.25);
  const StepRecord record = step.run(2.0, 1, [&] { return model.loss() * 1e3; });
  EXPECT_GT(record.gradient_norm, 0.25);
  const double moved =
      sum(square(model.layer.weight() - before)).item() + sum(square(model.layer.bias() - bias)).item();
  EXPECT_NEAR(std::sqrt(moved), 0.5, 1e-12);
}

TEST(TrainingStep, NamesADivergedStepAndUpdatesNothing) {
  SmallModel model;
  const Tensor before = model.layer.weight().copy();
  TrainingStep step(model.layer, model.optimizer, 1.0, "my program");
  step.set_steps(8);
  EXPECT_THAT(error_of<ValueError>(
                  [&] { step.run(0.1, 1, [&] { return model.loss() * std::numeric_limits<double>::infinity(); }); }),
              HasSubstr("[my program] step 9 diverged: loss inf"));
  EXPECT_EQ(step.steps(), 8);
  EXPECT_TRUE(bit_equal(model.layer.weight(), before));
  EXPECT_FALSE(model.layer.weight().grad().defined()) << "the next step begins anew";
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
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 3000; ++i) text.push_back(static_cast<std::uint8_t>("abcab\n"[i % 6]));
  const Text train(text);
  return {train, train.part(0, 300)};
}

/// Twelve steps of a small model with its own generator.
struct SmallTraining {
  explicit SmallTraining(OptimizerKind by = OptimizerKind::adamw, Corpus learned = small_text(), double decay = 0)
      : optimizer(by), corpus(std::move(learned)), ema(decay) {}
  OptimizerKind optimizer;
  Corpus corpus;
  double ema;
  Generator generator{3};
  Trainer trainer{
      std::make_unique<LanguageModel>(
          LanguageModelConfig{
              .vocabulary = corpus.of_bytes() ? 256 : 260, .context = 32, .layers = 1, .width = 16, .dropout = 0.1},
          [](const auto&...) { return std::make_unique<OneBack>(); }, ParameterOptions{.generator = &generator}),
      corpus,
      {.batch = 2, .steps = 12, .learning_rate = 0.02, .generator = &generator, .optimizer = optimizer, .ema = ema}};
};

SmallTraining averaging(double decay) { return SmallTraining(OptimizerKind::adamw, small_text(), decay); }

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

TEST(Trainer, DefaultsToTheRateOfItsOptimizer) {
  EXPECT_EQ(SmallTraining().trainer.options().learning_rate, 0.02);
  const auto rate_of = [](OptimizerKind optimizer) {
    Generator generator(3);
    Trainer trainer(
        std::make_unique<LanguageModel>(
            LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
            [](const auto&...) { return std::make_unique<OneBack>(); }, ParameterOptions{.generator = &generator}),
        small_text(), {.steps = 2, .optimizer = optimizer});
    return trainer.step().learning_rate;
  };
  EXPECT_EQ(rate_of(OptimizerKind::sgd), 0.1);
  EXPECT_EQ(rate_of(OptimizerKind::muon), 2e-2);
}

TEST(Trainer, ReportsTheValidationLossByPosition) {
  SmallTraining small;
  for (int i = 0; i < 6; ++i) small.trainer.step();
  const std::vector<double> losses = small.trainer.loss_by_position(3).by_position;
  ASSERT_EQ(losses.size(), 32u);
  double sum = 0, first = 0;
  for (const double loss : losses) sum += loss;
  EXPECT_NEAR(sum / 32, small.trainer.validate(3).loss, 1e-5);
  small.trainer.model().eval();
  for (const std::int64_t start : {0, 53, 106, 160, 213, 267}) {  // six windows, evenly spread
    const TextWindows window = windows_of(small.trainer.corpus().texts[0].validation, {start}, 32);
    first += small.trainer.model().losses(window.tokens, window.targets).to_vector<double>()[0] / 6;
  }
  EXPECT_NEAR(losses[0], first, 1e-6);
}

TEST(Trainer, ValidatesAndSamplesWithItsAverage) {
  SmallTraining plain, averaged = averaging(0.8);
  EMA average(plain.trainer.model(), {.decay = 0.8, .ramp = true});
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(averaged.trainer.step().loss, plain.trainer.step().loss);
    average.update();
  }
  EXPECT_NE(averaged.trainer.validate(3).loss, plain.trainer.validate(3).loss);
  {
    const Substitution by_hand(plain.trainer.model(), average.tensors());
    EXPECT_EQ(averaged.trainer.validate(3).loss, plain.trainer.validate(3).loss);
    EXPECT_EQ(averaged.trainer.loss_by_position(3).by_position, plain.trainer.loss_by_position(3).by_position);
  }
  EXPECT_EQ(averaged.trainer.step().loss, plain.trainer.step().loss) << "the model is itself again";
  std::ostringstream out;
  SmallTraining whole = averaging(0.8);
  const TrainResult result = train(whole.trainer, out);
  const auto averages = whole.trainer.averaged();
  whole.trainer.model().eval();
  const std::vector<std::int64_t> prompt(result.prompt.begin(), result.prompt.end());
  EXPECT_EQ(sample_text(whole.trainer.model(), prompt, std::ssize(result.sample), {.seed = 1}), result.sample);
  EXPECT_EQ(plain.trainer.averaged(), nullptr);
  EXPECT_EQ(error_of<ValueError>([] { averaging(1.0); }), "[ema] the decay must be in [0, 1), but is 1.000000");
}

TEST(Trainer, ResumesItsAverageBitForBit) {
  const TemporaryFolder folder;
  const std::string path = folder.file("average.safetensors"), without = folder.file("without.safetensors");
  SmallTraining whole = averaging(0.8), resumed = averaging(0.8), other = averaging(0.9), plain;
  for (int i = 0; i < 5; ++i) whole.trainer.step();
  whole.trainer.save(path);
  plain.trainer.save(without);
  EXPECT_EQ(error_of<ValueError>([&] { other.trainer.resume(path); }),
            "[train] the checkpoint " + path + " has an average of decay 0.8, but the run has one of 0.9 (--ema)");
  EXPECT_EQ(error_of<ValueError>([&] { plain.trainer.resume(path); }),
            "[train] the checkpoint " + path + " has an average of decay 0.8, but the run has none (--ema)");
  EXPECT_EQ(error_of<ValueError>([&] { other.trainer.resume(without); }),
            "[train] the checkpoint " + without + " has no average, but the run has one of 0.9 (--ema)");
  resumed.trainer.resume(path);
  load_trained_model(path, plain.trainer.model());
  EXPECT_EQ(plain.trainer.validate(3).loss, whole.trainer.validate(3).loss) << "its weights are the averages";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(resumed.trainer.step().loss, whole.trainer.step().loss);
  EXPECT_EQ(resumed.trainer.validate(3).loss, whole.trainer.validate(3).loss);
}

TEST(Trainer, ReportsOctaveLossesThatAverageToTheLoss) {
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

TEST(Trainer, ShowsTheProgressOfTheFinalValidation) {
  class Slow : public OneBack {
   public:
    Tensor forward(const Tensor& x, SequenceState* state) override {
      if (!training()) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return OneBack::forward(x, state);
    }
  };
  Trainer trainer(std::make_unique<LanguageModel>(LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
                                                  [](const auto&...) { return std::make_unique<Slow>(); }),
                  small_text(), {.batch = 2, .steps = 12});
  std::ostringstream out;
  train(trainer, out, {.report = 100, .sample = 0, .live = true});
  EXPECT_THAT(out.str(), ::testing::ContainsRegex("step 12/12 [^\n]*ETA 0:01\n")) << "3 batches, 0.6 s";
  EXPECT_THAT(out.str(), HasSubstr("] validation: 0 of 3 batches\r"));
  EXPECT_THAT(out.str(), HasSubstr("] validation: 2 of 3 batches  ETA 0:00\r"));
}

TEST(Trainer, ReportsAfterEachLineAndTracesItsSecondStep) {
  SmallTraining small;
  std::ostringstream out;
  std::vector<std::int64_t> shown;
  const TrainResult result = train(
      small.trainer, out, {.report = 5, .trace_step = true, .reported = [&](Trainer&, TrainResult& r, bool finished) {
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
            "[train] the configuration of the report is not JSON: {width");
  EXPECT_EQ(small.trainer.steps_done(), 0);
  train(small.trainer, out, {.json = path, .config = R"({"width": 16})", .quiet = true});
  EXPECT_THAT(read_bytes(path), HasSubstr("\"width\": 16"));
  EXPECT_EQ(out.str(), "");
}

TEST(Trainer, RefusesInvalidMetadataBeforeTraining) {
  const TemporaryFolder folder;
  SmallTraining small;
  std::ostringstream out;
  EXPECT_EQ(error_of<ValueError>([&] {
              train(small.trainer, out, {.save = folder.file("a.safetensors"), .metadata = {{"source", "caf\xe9"}}});
            }),
            "[train] metadata of the checkpoint are not UTF-8: source");
  EXPECT_EQ(small.trainer.steps_done(), 0);
}

TEST(Trainer, ReadsTheTextForItsFingerprintOnce) {
  struct Counting : ByteSource {
    explicit Counting(std::size_t bytes) : bytes(bytes) {}
    std::size_t size() const override { return bytes; }
    void read(std::size_t, std::span<std::uint8_t> into) const override {
      std::ranges::fill(into, std::uint8_t{'a'});
      was_read += into.size();
    }
    void release(std::size_t, std::size_t) const override {}
    std::size_t bytes;
    mutable std::size_t was_read = 0;
  };
  const TemporaryFolder folder;
  const auto text = std::make_shared<const Counting>(3000);
  SmallTraining small(OptimizerKind::adamw, Corpus(Text(text), Text(std::vector<std::uint8_t>(300, 'a'))));
  small.trainer.save(folder.file("a"));
  const std::size_t once = text->was_read;
  EXPECT_GE(once, 3000u);
  small.trainer.step();
  const std::size_t with_a_step = text->was_read;
  small.trainer.save(folder.file("b"));
  EXPECT_EQ(text->was_read, with_a_step);
}

TEST(Trainer, EstimatesTheTimeToItsStop) {
  const TemporaryFolder folder;
  Generator generator(3);
  Trainer trainer(
      std::make_unique<LanguageModel>(
          LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
          [](const auto&...) { return std::make_unique<OneBack>(); }, ParameterOptions{.generator = &generator}),
      small_text(), {.batch = 2, .steps = 1000000, .generator = &generator});
  std::ostringstream out;
  train(trainer, out, {.report = 1, .stop_after = 3, .save = folder.file("a.safetensors")});
  EXPECT_THAT(out.str(), ::testing::ContainsRegex("step +3/1000000 [^\n]*ETA 0:00\n"));
}

TEST(Trainer, CountsTheValidationBatchesOfAllTexts) {
  Corpus three = small_text();
  three.texts.resize(3, three.texts.front());
  Generator generator(3);
  Trainer trainer(
      std::make_unique<LanguageModel>(
          LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
          [](const auto&...) { return std::make_unique<OneBack>(); }, ParameterOptions{.generator = &generator}),
      three, {.batch = 2, .steps = 4, .generator = &generator});
  std::ostringstream out;
  train(trainer, out, {.report = 100, .sample = 0, .live = true});
  EXPECT_THAT(out.str(), HasSubstr("validation: 3 of 3 batches"));
}

TEST(Trainer, SavesNothingWithSaveUnaskedOff) {
  const TemporaryFolder folder;
  const WorkingFolder here(folder.file(""));
  std::ostringstream out;
  SmallTraining small;
  EXPECT_TRUE(train(small.trainer, out, {.stop_after = 5, .save_unasked = false}).interrupted);
  EXPECT_TRUE(std::filesystem::is_empty("."));
}

TEST(Trainer, SavesUnderADefaultNameWhenStopped) {
  const TemporaryFolder folder;
  const WorkingFolder here(folder.file(""));
  std::ostringstream out;
  SmallTraining half, rest;
  const TrainResult result = train(half.trainer, out, {.stop_after = 5});
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(std::filesystem::exists("poolgrad-train.safetensors"));
  rest.trainer.resume("poolgrad-train.safetensors");
  EXPECT_EQ(rest.trainer.steps_done(), 5);
}

TEST(Trainer, SavesElsewhereWhenTheFolderIsGone) {
  const TemporaryFolder folder, temporary;
  const WorkingFolder here(folder.file(""));
  const testing_support::EnvironmentVariable environment("TMPDIR", temporary.file(""));
  const std::string there = temporary.file("poolgrad-train.safetensors");
  std::ostringstream out;
  SmallTraining small, rest;
  std::filesystem::create_directory("goes");
  const auto reported = [](Trainer&, TrainResult&, bool) { std::filesystem::remove_all("goes"); };
  const std::string reason = error_of<FileError>(
      [&] { train(small.trainer, out, {.stop_after = 5, .save = "goes/a.safetensors", .reported = reported}); });
  EXPECT_THAT(reason, HasSubstr("goes/a.safetensors"));
  EXPECT_THAT(reason, testing::EndsWith("; the checkpoint is poolgrad-train.safetensors instead"));
  rest.trainer.resume("poolgrad-train.safetensors");
  EXPECT_EQ(rest.trainer.steps_done(), 5);

  EXPECT_THAT(error_of<FileError>([&] {
                small.trainer.save("goes/a.safetensors", {}, {"goes/b.safetensors", there});
              }),
              testing::EndsWith("; the checkpoint is " + there + " instead"));
  EXPECT_TRUE(std::filesystem::exists(there));
  EXPECT_THAT(error_of<FileError>([&] { small.trainer.save("goes/a.safetensors", {}, {"goes/b.safetensors"}); }),
              testing::Not(HasSubstr("instead")));
}

TEST(Trainer, SavesTemporaryCheckpointsUnderARandomName) {
  const TemporaryFolder folder, temporary;
  std::filesystem::create_directory(folder.file("run"));
  const WorkingFolder here(folder.file("run"));
  const testing_support::EnvironmentVariable environment("TMPDIR", temporary.file(""));
  for (const char* name : {"poolgrad-train.safetensors", "poolgrad-train-2.safetensors"})
    std::filesystem::create_symlink(temporary.file("victim"), temporary.file(name));
  std::ostringstream out;
  SmallTraining small, rest;
  const auto reported = [&](Trainer&, TrainResult&, bool) { std::filesystem::remove_all(folder.file("run")); };
  const std::string reason = error_of<FileError>([&] {
    train(small.trainer, out, {.stop_after = 5, .save = folder.file("run/a.safetensors"), .reported = reported});
  });
  EXPECT_THAT(reason, testing::ContainsRegex("; the checkpoint is .*/poolgrad-train-[0-9a-f]+.safetensors instead$"));
  const std::size_t begin = reason.find(temporary.file("")), end = reason.rfind(" instead");
  ASSERT_NE(begin, std::string::npos);
  const std::string place = reason.substr(begin, end - begin);
  EXPECT_EQ(std::filesystem::status(place).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  rest.trainer.resume(place);
  EXPECT_EQ(rest.trainer.steps_done(), 5);
  EXPECT_THAT(error_of<FileError>([&] {
                small.trainer.save("goes/a.safetensors", {}, {temporary.file("poolgrad-train.safetensors")});
              }),
              testing::Not(HasSubstr("instead")));
  EXPECT_FALSE(std::filesystem::exists(temporary.file("victim"))) << "no link is followed";
}

TEST(Trainer, RefusesToStartARunItCannotSave) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("gone"));
  const WorkingFolder here(folder.file("gone"));
  std::filesystem::remove(folder.file("gone"));
  std::ostringstream out;
  SmallTraining small;
  EXPECT_THAT(error_of<FileError>([&] { train(small.trainer, out, {.stop_after = 5}); }),
              HasSubstr("poolgrad-train.safetensors"));
  EXPECT_EQ(small.trainer.steps_done(), 0);
}

TEST(Trainer, ContinuesBitForBitAfterAFailedStep) {
  static int passes = 0;
  class Failing : public OneBack {
   public:
    Tensor forward(const Tensor& x, SequenceState* state) override {
      if (++passes == 4) throw std::runtime_error("the fourth pass fails");
      return OneBack::forward(x, state);
    }
  };
  std::vector<double> losses[2];
  for (const bool fails : {false, true}) {
    passes = fails ? 0 : 4;
    Generator generator(3);
    Trainer trainer(
        std::make_unique<LanguageModel>(
            LanguageModelConfig{.context = 32, .layers = 2, .width = 16, .dropout = 0.1},
            [](const auto&...) { return std::make_unique<Failing>(); }, ParameterOptions{.generator = &generator}),
        small_text(), {.batch = 2, .steps = 12, .generator = &generator});
    for (int tries = 0; trainer.steps_done() < 4; ++tries) {
      if (fails && tries == 1)  // the second layer fails after the first has drawn its dropout mask
        EXPECT_THROW(trainer.step(), std::runtime_error);
      else
        losses[fails].push_back(trainer.step().loss);
    }
  }
  EXPECT_EQ(losses[true], losses[false]);
}

TEST(Trainer, ARefusedResumeChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  SmallTraining saved, small;
  for (int i = 0; i < 12; ++i) saved.trainer.step();
  saved.trainer.save(path);
  Generator generator(4);
  Trainer shorter(
      std::make_unique<LanguageModel>(
          LanguageModelConfig{.context = 32, .layers = 1, .width = 16, .dropout = 0.1},
          [](const auto&...) { return std::make_unique<OneBack>(); }, ParameterOptions{.generator = &generator}),
      small_text(), {.steps = 5, .generator = &generator, .optimizer = OptimizerKind::adamw});
  const Tensor before = shorter.model().parameters()[0].copy();
  EXPECT_EQ(error_of<ValueError>([&] { shorter.resume(path); }),
            "[train] the checkpoint " + path + " has done 12 steps, --steps is 5");
  EXPECT_TRUE(bit_equal(shorter.model().parameters()[0], before));
  EXPECT_EQ(shorter.steps_done(), 0);
}

TEST(Trainer, RestoresTrainingModeAfterASample) {
  SmallTraining small;
  std::ostringstream out;
  EXPECT_TRUE(small.trainer.model().training());
  train(small.trainer, out, {.sample = 4, .quiet = true});
  EXPECT_TRUE(small.trainer.model().training()) << "with dropout";
}

TEST(Trainer, ResumesBitForBit) {
  const TemporaryFolder folder;
  std::ostringstream out;
  SmallTraining whole, half, rest;
  const TrainResult expected = train(whole.trainer, out);
  const std::string path = folder.file("half.safetensors"), metrics = folder.file("half.csv");
  EXPECT_TRUE(train(half.trainer, out, {.stop_after = 5, .save = path, .metrics = metrics, .metadata = {{"by", "me"}}})
                  .interrupted);
  EXPECT_EQ(read_training_metadata(path)["by"], "me");
  EXPECT_THAT(read_bytes(metrics),
              HasSubstr("step,context,loss,gradient_norm,learning_rate,milliseconds,tokens_per_second,"));
  rest.trainer.resume(path);
  EXPECT_EQ(rest.trainer.steps_done(), 5);
  const TrainResult resumed = train(rest.trainer, out);
  EXPECT_EQ(resumed.steps.back().loss, expected.steps.back().loss);
  EXPECT_EQ(resumed.validation_loss, expected.validation_loss);
  EXPECT_EQ(resumed.sample, expected.sample);
}

/// A text in tokens of two bytes each.
Corpus text_of_pairs() {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 3000; ++i) text.push_back(static_cast<std::uint8_t>("abcaca"[i % 6]));
  const Text train(text);
  Corpus corpus(train, train.part(0, 300));
  tokenize(corpus,
           std::make_shared<const Tokenizer>(std::vector<Tokenizer::Merge>{{'a', 'b'}, {'c', 'a'}, {'x', 'y'}}));
  return corpus;
}

TEST(Trainer, ReportsLossesInNatsPerByteForAnyTokens) {
  SmallTraining small(OptimizerKind::adamw, text_of_pairs());
  ASSERT_EQ(small.trainer.corpus().texts[0].train_tokens.size(), 1500);
  // The head is 0 at first, so all 260 tokens have equal probability.
  const double expected = std::log(260.0) / 2;
  const ValidationLoss at_once = small.trainer.validate(2), by_position = small.trainer.loss_by_position(2);
  EXPECT_NEAR(at_once.loss, expected, 1e-6);
  EXPECT_NEAR(by_position.loss, expected, 1e-6);
  EXPECT_EQ(at_once.bytes, 2 * 2 * 32 * 2) << "two batches of two windows of 32 tokens";
  EXPECT_EQ(by_position.bytes, at_once.bytes);
  ASSERT_EQ(by_position.by_position.size(), 32u);
  for (const double loss : by_position.by_position) EXPECT_NEAR(loss, expected, 1e-6);
  EXPECT_NEAR(small.trainer.step().loss, expected, 1e-6);
}

TEST(Trainer, ResumesWithTheTokenizerOfItsCheckpoint) {
  const TemporaryFolder folder;
  const std::string path = folder.file("half.safetensors");
  std::ostringstream out;
  SmallTraining whole(OptimizerKind::adamw, text_of_pairs()), half(OptimizerKind::adamw, text_of_pairs()), bytes;
  const TrainResult expected = train(whole.trainer, out);
  train(half.trainer, out, {.stop_after = 5, .save = path});
  Corpus again = text_of_pairs();
  tokenize(again, std::make_shared<const Tokenizer>(load_tokenizer(path)));
  SmallTraining rest(OptimizerKind::adamw, again);
  rest.trainer.resume(path);
  const TrainResult resumed = train(rest.trainer, out);
  EXPECT_EQ(resumed.steps.back().loss, expected.steps.back().loss);
  EXPECT_EQ(resumed.validation_loss, expected.validation_loss);
  EXPECT_EQ(resumed.sample, expected.sample);
  EXPECT_EQ(error_of<ValueError>([&] { bytes.trainer.resume(path, true); }),
            "[train] the checkpoint " + path + " has another tokenizer than the text");
}

TEST(Trainer, WeightsTextsAndSavesTheWeights) {
  const TemporaryFolder folder;
  const std::string path = folder.file("weighted.safetensors");
  const auto corpus = [](double first, double second) {
    Corpus texts = small_text();
    const Text other(std::vector<std::uint8_t>(500, 'x'));
    texts.texts.push_back({other, other.part(0, 100), other, other.part(0, 100), second, "other"});
    texts.texts[0].weight = first;
    texts.weighted = true;
    return texts;
  };
  SmallTraining mostly_other(OptimizerKind::adamw, corpus(1, 9)), mostly_first(OptimizerKind::adamw, corpus(9, 1));
  for (SmallTraining* each : {&mostly_other, &mostly_first})
    for (int i = 0; i < 12; ++i) each->trainer.step();
  const ValidationLoss a = mostly_other.trainer.validate(4), b = mostly_first.trainer.validate(4);
  ASSERT_EQ(a.by_text.size(), 2u);
  EXPECT_LT(a.by_text[1] + 0.5, b.by_text[1]) << "what was seen more often is known better";
  EXPECT_DOUBLE_EQ(a.loss, 0.1 * a.by_text[0] + 0.9 * a.by_text[1]);
  const ValidationLoss by_position = mostly_other.trainer.loss_by_position(4);
  double mean = 0;
  for (std::size_t i = 0; i < 32; ++i) mean += by_position.by_position[i] * by_position.shares[i] / 32;
  EXPECT_NEAR(mean, by_position.loss, 1e-12);
  EXPECT_NEAR(by_position.loss, a.loss, 1e-5);
  mostly_other.trainer.save(path);
  EXPECT_EQ(read_training_metadata(path)["text_weights"], "1,9");
  EXPECT_EQ(error_of<ValueError>([&] { mostly_first.trainer.resume(path); }),
            "[train] the checkpoint " + path + " was trained on texts of weights 1,9, not 9,1");
  mostly_first.trainer.resume(path, true);
}

TEST(Trainer, RefusesATextWithUnknownTokens) {
  Generator generator(1);
  EXPECT_EQ(error_of<ValueError>([&] {
              Trainer(std::make_unique<LanguageModel>(
                          LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
                          [](const auto&...) { return std::make_unique<OneBack>(); },
                          ParameterOptions{.generator = &generator}),
                      text_of_pairs());
            }),
            "[train] the text has 259 different tokens, but the model has 256");
}

TEST(Trainer, RefusesANullModel) {
  EXPECT_EQ(error_of<ValueError>([] { Trainer(nullptr, small_text()); }), "[train] there is no model");
}

TEST(Trainer, RefusesTheCheckpointOfAnotherOptimizer) {
  const TemporaryFolder folder;
  const std::string path = folder.file("lion.safetensors");
  SmallTraining lion(OptimizerKind::lion), adamw;
  lion.trainer.step();
  lion.trainer.save(path);
  EXPECT_EQ(read_training_metadata(path)["optimizer"], "lion");
  EXPECT_EQ(read_training_metadata(path)["schedule"], "cosine");
  EXPECT_EQ(error_of<ValueError>([&] { adamw.trainer.resume(path); }),
            "[train] the checkpoint " + path + " was trained by lion, whose state adamw cannot use");
  EXPECT_EQ(adamw.trainer.steps_done(), 0);
}

TEST(Trainer, RefusesTooShortATextAndAnEmptyBatch) {
  Generator generator(1);
  const auto refusal = [&](const Corpus& corpus, std::int64_t batch) {
    return error_of<ValueError>([&] {
      Trainer(
          std::make_unique<LanguageModel>(
              LanguageModelConfig{.context = 32, .layers = 1, .width = 16},
              [](const auto&...) { return std::make_unique<OneBack>(); }, ParameterOptions{.generator = &generator}),
          corpus, {.batch = batch});
    });
  };
  const Corpus corpus = small_text();
  const Text &train = corpus.texts[0].train, &validation = corpus.texts[0].validation;
  EXPECT_EQ(refusal(corpus, 0), "[train] the batch must be at least 1, but is 0");
  EXPECT_EQ(refusal({train, validation.part(0, 1)}, 1), "[train] the text is too short for a validation part");
  EXPECT_THAT(refusal({train.part(0, 32), validation}, 1), HasSubstr("shorter than the context: 32 bytes to train on"));
}

TEST(SampleText, RefusesAnEmptyPrompt) {
  SmallTraining small;
  EXPECT_EQ(error_of<ValueError>([&] { sample_text(small.trainer.model(), "", 3); }),
            "[sample_text] the prompt must not be empty");
}

}  // namespace
}  // namespace poolgrad::nn
