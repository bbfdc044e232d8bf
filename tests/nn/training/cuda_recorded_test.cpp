// Training steps that are recorded once and replayed have the bits of eager ones, on a GPU or the emulated device. This
// holds for clipping, skipped steps, random numbers and every optimizer, and beside eager work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/training/trainer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/nn/training/recorded_regression.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;

void expect_alike(const StepRecord& found, const StepRecord& expected, const std::string& what) {
  EXPECT_EQ(found.step, expected.step) << what;
  EXPECT_EQ(found.loss, expected.loss) << what;
  EXPECT_EQ(std::isfinite(found.gradient_norm), std::isfinite(expected.gradient_norm)) << what;
  if (std::isfinite(expected.gradient_norm)) {
    EXPECT_EQ(found.gradient_norm, expected.gradient_norm) << what;
  }
  EXPECT_EQ(found.loss_scale, expected.loss_scale) << what;
  EXPECT_EQ(found.skipped_steps, expected.skipped_steps) << what;
}

void expect_alike(const Training& found, const Training& expected, const std::string& what) {
  const std::vector<Tensor> a = found.model.numbers(), b = expected.model.numbers();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bit_equal(a[i], b[i])) << what << ", number " << i;
  EXPECT_EQ(found.model.optimizer->steps(), expected.model.optimizer->steps()) << what;
  EXPECT_EQ(found.model.optimizer->parameter_steps(), expected.model.optimizer->parameter_steps()) << what;
}

class RecordedStep : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(RecordedStep, HasTheBitsOfAnEagerStep) {
  for (const double clip : {0.0, 0.5, 1e9}) {
    Training eager(GetParam(), false, clip), recorded(GetParam(), true, clip);
    for (int i = 0; i < 12; ++i)
      expect_alike(recorded.run(i), eager.run(i), "step " + std::to_string(i) + ", clip " + std::to_string(clip));
    expect_alike(recorded, eager, to_string(GetParam()));
    EXPECT_EQ(recorded.model.calls, 2) << "one that runs, one that is recorded";
  }
}

TEST_P(RecordedStep, ADivergedStepUpdatesAndCountsNothing) {
  const auto set_gain = [](Training& training, double gain) { training.model.gain.fill(gain); };
  Training eager(GetParam(), false), recorded(GetParam(), true);
  for (int i = 0; i < 3; ++i) eager.run(i), recorded.run(i);
  // Either the loss overflows or only its gradient does.
  for (const double gain : {std::numeric_limits<double>::infinity(), 1e37}) {
    std::string said[2];
    for (Training* const each : {&eager, &recorded}) {
      set_gain(*each, gain);
      said[each == &recorded] = error_of<ValueError>([&] { each->run(3); });
      set_gain(*each, 1.0);
    }
    EXPECT_THAT(said[1], HasSubstr("[regression] step 4 diverged: loss "));
    EXPECT_EQ(said[1], said[0]);
    expect_alike(recorded, eager, "after a step that diverged");
  }
  for (int i = 3; i < 6; ++i) expect_alike(recorded.run(i), eager.run(i), "going on");
  expect_alike(recorded, eager, "at the end");
}

INSTANTIATE_TEST_SUITE_P(Optimizers, RecordedStep,
                         ::testing::Values(OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::lion,
                                           OptimizerKind::muon),
                         [](const auto& info) { return to_string(info.param); });

TEST(RecordedStepWithAScaler, SkipsTheStepsThatEagerTrainingSkips) {
  const LossScalerOptions options{.initial = 0x1p40, .growth = 3, .backoff = 0.3, .growth_interval = 3};
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    Training eager(kind, false, 0.5, options), recorded(kind, true, 0.5, options);
    StepRecord last;
    for (int i = 0; i < 40; ++i) {
      const StepRecord expected = eager.run(i);
      expect_alike(last = recorded.run(i), expected, "step " + std::to_string(i));
    }
    EXPECT_GT(last.skipped_steps, 3) << "both while it falls and when it has grown too far";
    EXPECT_LT(last.skipped_steps, 30);
    expect_alike(recorded, eager, to_string(kind));
    EXPECT_EQ(recorded.model.optimizer->steps(), 40 - last.skipped_steps);
  }
}

TEST(RecordedStep, MakesNoRequestFromTheThirdStepOn) {
  Training recorded(OptimizerKind::adamw, true);
  for (int i = 0; i < 3; ++i) recorded.run(i);
  const std::uint64_t requests = recorded.step->recorded_memory().requests;
  EXPECT_GT(requests, 20u);
  for (int i = 3; i < 6; ++i) {
    const StepRecord record = recorded.run(i);
    EXPECT_EQ(record.device_allocations, 0u);
    EXPECT_GE(record.reserved_bytes, recorded.step->recorded_memory().reserved_bytes.current);
  }
  EXPECT_EQ(recorded.step->recorded_memory().requests, requests);
}

TEST(RecordedStep, RefusesUnrecordableStepsWithoutChanges) {
  Regression here(OptimizerKind::adamw);
  Linear on_cpu(2, 2);
  SGD sgd(on_cpu.named_parameters());
  TrainingStep step(on_cpu, sgd, 1.0, "regression");
  EXPECT_EQ(error_of<ValueError>([&] { step.record(); }),
            "[regression] steps can be recorded only on CUDA devices, but the model is on cpu");

  Training eager(OptimizerKind::adamw, false), recorded(OptimizerKind::adamw, true);
  eager.run(0), recorded.run(0);
  EXPECT_EQ(error_of<DeviceError>([&] {
              recorded.step->run(0.1, rows, [&] {
                const Tensor loss = recorded.model.loss();
                return loss * loss.item();
              });
            }),
            "[copy] a recorded step on cuda:0 cannot be read by the host");
  expect_alike(recorded, eager, "after a step that cannot be recorded");
  EXPECT_EQ(error_of<ValueError>([&] { recorded.step->run(0.1, rows + 1, [&] { return recorded.model.loss(); }); }),
            "[regression] recorded steps have 6 tokens, not 7");
}

/// Each position sees itself and the one before.
class OneBack : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState*) override {
    return (x + slice(cat({zeros({x.size(0), 1, x.size(2)}, x.options()), x}, 1), 1, 0, x.size(1))) / 2.0;
  }
};

/// Twelve steps of a small language model, with all options of a run.
struct Expressions {
  Expressions(OptimizerKind kind, bool graph, Checkpointing checkpointing = {}, std::int64_t accumulate = 1)
      : trainer(
            [&] {
              auto model = std::make_unique<LanguageModel>(
                  LanguageModelConfig{.context = 24, .layers = 2, .width = 16, .dropout = 0.1},
                  [](const auto&...) { return std::make_unique<OneBack>(); },
                  ParameterOptions{.device = training_device, .generator = &generator});
              model->set_checkpointing(checkpointing);
              return model;
            }(),
            text(),
            {.batch = 2,
             .accumulate = accumulate,
             .steps = 12,
             .learning_rate = 0.02,
             .generator = &generator,
             .optimizer = kind,
             .ema = 0.9,
             .graph = graph}) {}
  static Corpus text() {
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < 2000; ++i) bytes.push_back(static_cast<std::uint8_t>("abcab\n"[i * i % 6]));
    const Text train(bytes);
    return {train, train.part(0, 300)};
  }
  /// Returns losses, norms and rates up to step `last`, and validation losses, which are computed eagerly between
  /// steps.
  std::vector<double> run_to(std::int64_t last) {
    std::vector<double> found;
    while (trainer.steps_done() < last) {
      const StepRecord record = trainer.step();
      found.insert(found.end(), {record.loss, record.gradient_norm, record.learning_rate});
      if (record.step % 4 == 0) found.push_back(trainer.validate(2).loss);
    }
    return found;
  }
  Generator generator{3};
  Trainer trainer;
};

TEST(RecordedTrainer, HasTheBitsOfAnEagerTrainer) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon, OptimizerKind::sgd}) {
    Expressions eager(kind, false), recorded(kind, true);
    EXPECT_EQ(recorded.run_to(12), eager.run_to(12)) << to_string(kind);
    EXPECT_GT(recorded.trainer.recorded_memory().reserved_bytes.current, 0u);
  }
}

TEST(RecordedTrainer, ResumesBitForBit) {
  const TemporaryFolder folder;
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
    Expressions whole(kind, false), half(kind, true), rest(kind, true);
    const std::vector<double> all = whole.run_to(12);
    std::vector<double> found = half.run_to(5);
    half.trainer.save(folder.file("half"));
    rest.trainer.resume(folder.file("half"));
    const std::vector<double> then = rest.run_to(12);
    found.insert(found.end(), then.begin(), then.end());
    EXPECT_EQ(found, all) << to_string(kind);
    // A run that has already been recorded can return to the checkpoint too.
    half.run_to(9);
    half.trainer.resume(folder.file("half"));
    EXPECT_EQ(half.run_to(12), then) << to_string(kind);
  }
}

TEST(RecordedTrainer, SupportsActivationCheckpoints) {
  Expressions kept(OptimizerKind::adamw, false), again(OptimizerKind::adamw, true, Checkpointing::parse("block"));
  EXPECT_EQ(again.run_to(6), kept.run_to(6));
}

TEST(RecordedTrainer, AddsUpPassesWithTheBitsOfEagerSteps) {
  Expressions eager(OptimizerKind::adamw, false, {}, 3), recorded(OptimizerKind::adamw, true, {}, 3);
  const std::vector<double> found = recorded.run_to(6);
  EXPECT_EQ(found, eager.run_to(6));
  EXPECT_NE(found, Expressions(OptimizerKind::adamw, true).run_to(6)) << "of one pass";
}

TEST(RecordedTrainer, RefusesTheCpu) {
  Generator generator(3);
  EXPECT_EQ(error_of<ValueError>([&] {
              Trainer(std::make_unique<LanguageModel>(
                          LanguageModelConfig{.context = 24, .layers = 1, .width = 16},
                          [](const auto&...) { return std::make_unique<OneBack>(); },
                          ParameterOptions{.generator = &generator}),
                      Expressions::text(), {.graph = true});
            }),
            "[train] steps can be recorded only on CUDA devices, but the model is on cpu");
}

}  // namespace
}  // namespace poolgrad::nn
