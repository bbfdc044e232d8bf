// Training in half types: the loss scaler, master weights, and a model in f16 that learns as well as in f32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "allocator/caching_allocator.h"
#include "autograd/autocast.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/loss_scaler.h"
#include "nn/training/checkpoint.h"
#include "nn/training/trainer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;

constexpr double infinite = std::numeric_limits<double>::infinity();

/// A parameter at 0 with gradient 1, under SGD at rate 1: its value is minus the number of steps.
struct Counter {
  Tensor parameter = zeros({1}).set_requires_grad();
  SGD optimizer{{{"p", parameter}}, {.learning_rate = 1}};

  bool step(LossScaler& scaler, double norm) {
    parameter.set_grad(full({1}, scaler.scale()));
    return scaler.step(optimizer, norm);
  }
};

TEST(LossScaler, HalvesOnOverflowAndGrowsAfterGoodSteps) {
  Counter model;
  LossScaler scaler(cpu, {.initial = 1024, .growth_interval = 3});
  std::vector<double> scales;
  std::vector<bool> taken;
  for (const double norm : {1.0, infinite, 1.0, std::nan(""), 1.0, 1.0, 1.0, 1.0}) {
    taken.push_back(model.step(scaler, norm));
    scales.push_back(scaler.scale());
  }
  EXPECT_THAT(taken, ElementsAre(true, false, true, false, true, true, true, true));
  EXPECT_THAT(scales, ElementsAre(1024, 512, 512, 256, 256, 256, 512, 512));
  EXPECT_EQ(scaler.state().skipped, 2);
  EXPECT_EQ(model.parameter.item(), -6.0) << "gradients are divided by the scale, and skipped steps change nothing";
  EXPECT_EQ(model.optimizer.steps(), 6);
}

TEST(LossScaler, ScalesTheLossByANumberOnItsDevice) {
  LossScaler scaler(cpu, {.initial = 8, .growth_interval = 1});
  const Tensor x = full({1}, 3.0).set_requires_grad();
  sum(scaler.scaled(x)).backward();
  EXPECT_EQ(x.grad().item(), 8.0);
  Counter().step(scaler, 1.0);
  EXPECT_EQ(scaler.scaled(x).item(), 48.0);
  EXPECT_EQ(scaler.scaled(to(x, DType::f16)).dtype(), DType::f16);
}

TEST(LossScaler, ClipsUnscaledGradients) {
  Counter model;
  LossScaler scaler(cpu, {.initial = 64});
  model.parameter.set_grad(full({1}, 4.0 * 64));
  EXPECT_TRUE(scaler.step(model.optimizer, 4.0 * 64, 0.5));
  EXPECT_EQ(model.parameter.item(), -0.5);
}

TEST(LossScaler, FailsAtTheLeastScale) {
  Counter model;
  LossScaler scaler(cpu, {.initial = 2});
  EXPECT_FALSE(model.step(scaler, infinite));
  EXPECT_EQ(error_of<ValueError>([&] { model.step(scaler, infinite); }),
            "[loss_scaler] gradients are not finite at a scale of 1, and the least is 1");
  EXPECT_TRUE(model.step(scaler, 1.0));
  EXPECT_EQ(scaler.state().skipped, 1);
}

TEST(LossScaler, NeverGrowsBeyondF32) {
  Counter model;
  LossScaler scaler(cpu, {.initial = 0x1p127, .growth_interval = 1});
  EXPECT_TRUE(model.step(scaler, 1.0));
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

TEST(LossScaler, RefusesInvalidOptionsAndStates) {
  const auto refusal = [](const LossScalerOptions& options) {
    return error_of<ValueError>([&] { LossScaler scaler(cpu, options); });
  };
  for (const double initial : {0.0, -1.0, infinite, 1e300, std::nan("")})
    EXPECT_THAT(refusal({.initial = initial}), HasSubstr("scales must be positive f32 numbers")) << initial;
  EXPECT_THAT(refusal({.initial = 2, .least = 4}), HasSubstr("initial 2, least 4"));
  EXPECT_THAT(refusal({.growth = 0.5}), HasSubstr("growth 0.5"));
  EXPECT_THAT(refusal({.backoff = 1}), HasSubstr("backoff 1"));
  EXPECT_THAT(refusal({.growth_interval = 0}), HasSubstr("interval 0"));
  LossScaler scaler;
  EXPECT_THAT(error_of<ValueError>([&] { scaler.load({.scale = 0}); }), HasSubstr("invalid state"));
  EXPECT_EQ(scaler.scale(), 65536);
}

// Master weights.

template <class Optimizer, class Options>
double after_small_steps(DType dtype, Options options) {
  Tensor parameter = to(ones({3}), dtype).set_requires_grad();
  Optimizer optimizer({{"p", parameter}}, options);
  for (int i = 0; i < 100; ++i) {
    parameter.set_grad(to(full({3}, 1.0), dtype));
    optimizer.step(0.5);
  }
  return parameter.to_vector<double>()[2];
}

TEST(MasterWeights, KeepStepsBelowTheLastDigitOfAParameter) {
  const SGDOptions sgd{.learning_rate = 1e-4}, momentum{.learning_rate = 1e-4, .momentum = 0.5};
  const AdamWOptions adamw{.learning_rate = 1e-4, .weight_decay = 0};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const double digit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    EXPECT_NEAR(after_small_steps<SGD>(dtype, sgd), after_small_steps<SGD>(DType::f32, sgd), digit);
    EXPECT_NEAR(after_small_steps<SGD>(dtype, momentum), after_small_steps<SGD>(DType::f32, momentum), digit);
    EXPECT_NEAR(after_small_steps<AdamW>(dtype, adamw), after_small_steps<AdamW>(DType::f32, adamw), digit);
  }
  SGDOptions without = sgd;
  without.master_weights = false;
  EXPECT_EQ(after_small_steps<SGD>(DType::bf16, without), 1.0) << "lost";
}

TEST(MasterWeights, ExistOnlyForHalfParameters) {
  const Tensor half = to(ones({2}), DType::f16).set_requires_grad(), single = ones({2}).set_requires_grad();
  const SGD optimizer({{"half", half}, {"single", single}});
  ASSERT_EQ(optimizer.state().size(), 1u);
  EXPECT_EQ(optimizer.state()[0].first, "half.master");
  EXPECT_EQ(optimizer.state()[0].second.dtype(), DType::f32);
  EXPECT_TRUE(SGD({{"half", half}}, {.master_weights = false}).state().empty());
}

TEST(MasterWeights, FollowWritesToAParameterElementwise) {
  Tensor parameter = to(from_data<double>({1, 1, 1}, {3}), DType::bf16).set_requires_grad();
  SGD optimizer({{"p", parameter}}, {.learning_rate = 1});
  const auto master = [&] { return optimizer.state()[0].second.to_vector<double>(); };
  const auto step = [&] {
    parameter.set_grad(to(full({3}, 0x1p-10), DType::bf16));
    optimizer.step();
  };
  step();
  EXPECT_EQ(parameter.to_vector<double>(), std::vector<double>(3, 1.0)) << "rounded";
  {
    const NoGradGuard no_grad;
    select(parameter, 0, 1).fill(4.0);
  }
  parameter.set_grad({});
  optimizer.step();  // no step is due; the written value is kept
  step();
  EXPECT_EQ(master(), (std::vector<double>{1 - 0x1p-9, 4 - 0x1p-10, 1 - 0x1p-9}));
}

/// A new parameter of one value, written like any other.
Tensor half_parameter(double value) { return full({4}, value, {.dtype = DType::bf16}).set_requires_grad(); }

TEST(MasterWeights, FollowASwappedParameter) {
  Tensor parameter = half_parameter(1), other = half_parameter(8);
  ASSERT_EQ(parameter.storage()->version(), other.storage()->version());
  SGD optimizer({{"p", parameter}}, {.learning_rate = 0.5});
  swap_tensors(parameter, other);
  parameter.set_grad(to(ones({4}), DType::bf16));
  optimizer.step();
  EXPECT_EQ(parameter.to_vector<double>(), std::vector<double>(4, 7.5));

  Linear layer(2, 1, {.bias = false});
  to(layer, DType::bf16);
  AdamW adamw(layer.named_parameters(), {.learning_rate = 0.5, .weight_decay = 0});
  to(layer, DType::f32);
  {
    const NoGradGuard no_grad;
    Tensor(layer.weight()).fill(8);
  }
  to(layer, DType::bf16);
  Tensor(layer.weight()).set_grad(to(ones({1, 2}), DType::bf16));
  adamw.step();
  EXPECT_EQ(layer.weight().to_vector<double>(), std::vector<double>(2, 7.5));
}

TEST(MasterWeights, AreKeptForViews) {
  const Tensor memory = to(ones({2, 3}), DType::bf16);
  Tensor view = memory.alias(transposed(memory.geometry(), 0, 1)).set_requires_grad();
  SGD optimizer({{"p", view}}, {.learning_rate = 1});
  for (int i = 0; i < 4; ++i) {
    view.set_grad(to(full({3, 2}, 0x1p-10), DType::bf16));
    optimizer.step();
  }
  EXPECT_EQ(memory.to_vector<double>(), std::vector<double>(6, 1 - 0x1p-8));
}

// Training.

/// Fits a linear map by tanh features. The loss, and so its gradients, are means over many small numbers.
struct Regression {
  static constexpr std::int64_t rows = 2048, inputs = 16, hidden = 32, outputs = 16;

  explicit Regression(Device device = cpu)
      : up(inputs, hidden, {}, {.device = device, .generator = &generator}),
        down(hidden, outputs, {}, {.device = device, .generator = &generator}),
        x(to(randn({rows, inputs}, {}, data), device)),
        y(to(matmul(to(x, cpu), randn({inputs, outputs}, {}, data)) * 0.0025, device)) {
    model.add("up", up), model.add("down", down);
  }
  Tensor loss(std::optional<DType> low) {
    const AutocastScope scope(low);
    return mse_loss(down(tanh(up(x))) * 0.01, y);
  }

  struct Both : Module {
    void add(const std::string& name, Module& module) { add_module(name, module); }
  };
  Generator generator{21}, data{22};
  Linear up, down;
  Tensor x, y;
  Both model;
};

/// Returns the gradients of all parameters in one row, divided by the scale.
Tensor gradients_of(std::optional<DType> low, double scale) {
  Regression regression;
  LossScaler scaler(cpu, {.initial = scale});
  scaler.scaled(regression.loss(low)).backward();
  std::vector<Tensor> all;
  for (const Tensor& parameter : regression.model.parameters()) all.push_back(reshape(parameter.grad(), {-1}));
  return cat(all) / scale;
}

TEST(F16, LosesGradientsWithoutALossScale) {
  const Tensor exact = gradients_of(std::nullopt, 1);
  EXPECT_GT(relative_error(gradients_of(DType::f16, 1), exact), 0.5);
  EXPECT_LT(relative_error(gradients_of(DType::f16, 65536), exact), 0.01);
  EXPECT_LT(relative_error(gradients_of(DType::bf16, 1), exact), 0.05) << "bf16 has the range of f32";
}

std::vector<StepRecord> train_regression(std::optional<DType> low, std::optional<LossScalerOptions> scale,
                                         Device device = cpu) {
  Regression regression(device);
  SGD optimizer(regression.model.named_parameters(), {.learning_rate = 400});
  std::optional<LossScaler> scaler;
  if (scale) scaler.emplace(device, *scale);
  TrainingStep step(regression.model, optimizer, 0.0, "regression", scaler ? &*scaler : nullptr);
  std::vector<StepRecord> records;
  for (int i = 0; i < 40; ++i) records.push_back(step.run(400, 1, [&] { return regression.loss(low); }));
  return records;
}

TEST(F16, LearnsLikeF32OnlyWithALossScale) {
  const auto exact = train_regression(std::nullopt, std::nullopt);
  const auto scaled = train_regression(DType::f16, LossScalerOptions{});
  const auto unscaled = train_regression(DType::f16, std::nullopt);
  EXPECT_LT(exact.back().loss, 0.7 * exact.front().loss);
  for (std::size_t i = 0; i < exact.size(); ++i)
    EXPECT_NEAR(scaled[i].loss, exact[i].loss, 0.01 * exact[i].loss) << "step " << i + 1;
  EXPECT_GT(unscaled.back().loss, 0.95 * exact.front().loss);
  EXPECT_EQ(scaled.back().skipped_steps, 0);
}

TEST(F16, RecoversFromTooLargeAScaleReproducibly) {
  const LossScalerOptions options{.initial = 0x1p40, .growth_interval = 8};
  const auto first = train_regression(DType::f16, options), second = train_regression(DType::f16, options);
  EXPECT_GT(first.back().skipped_steps, 3);
  EXPECT_EQ(first.front().loss_scale, 0x1p40);
  EXPECT_FALSE(std::isfinite(first.front().gradient_norm));
  EXPECT_EQ(first[1].loss, first[0].loss) << "a skipped step changes nothing";
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].loss, second[i].loss);
    EXPECT_EQ(first[i].loss_scale, second[i].loss_scale);
  }
  EXPECT_LT(first.back().loss, 0.9 * first.front().loss);
}

TEST(LossScaler, DividesByTheSameF32Scale) {
  const double third = 1.0 / 3;
  const LossScaler scaler(cpu, {.initial = third, .least = third});
  EXPECT_EQ(scaler.scale(), scaler.scaled(ones({})).item()) << "a number of f32";
  for (const double norm : {0.1, 7.0, 1e30}) {
    const Tensor there = full({}, norm, {.dtype = DType::f64});
    EXPECT_EQ(scaler.gradient_scale(there, 0.5).item(), clip_scale(norm / scaler.scale(), 0.5) / scaler.scale());
  }
  EXPECT_TRUE(std::isnan(scaler.gradient_scale(full({}, infinite, {.dtype = DType::f64})).item()));
}

TEST(TrainingStepWithAScaler, FailsWhenTheLossIsNotFinite) {
  Regression regression;
  SGD optimizer(regression.model.named_parameters());
  LossScaler scaler;
  TrainingStep step(regression.model, optimizer, 1.0, "regression", &scaler);
  EXPECT_THAT(error_of<ValueError>([&] { step.run(0.1, 1, [&] { return regression.loss(DType::f16) * infinite; }); }),
              HasSubstr("[regression] step 1 diverged: loss inf"));
  EXPECT_EQ(scaler.state().skipped, 0);
}

TEST(TrainingStepWithAScaler, OnASimulatedDeviceTakesEveryStep) {
  const auto records = train_regression(DType::f16, LossScalerOptions{}, {DeviceType::sim, 61});
  EXPECT_EQ(records.back().skipped_steps, 0);
  EXPECT_EQ(records.back().loss_scale, 65536);
}

TEST(TrainingState, KeepsTheScaleAndTheMasters) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  Generator generator(1), other(2);
  Linear saved(3, 2, {}, {.dtype = DType::bf16, .generator = &generator});
  Linear loaded(3, 2, {}, {.dtype = DType::bf16, .generator = &other});
  AdamW from(saved.named_parameters(), {.learning_rate = 1e-4}), to_resume(loaded.named_parameters(), {});
  for (Tensor parameter : saved.parameters()) parameter.set_grad(to(ones(parameter.shape()), DType::bf16));
  from.step();
  save_training_state(path, saved, from, {.loss_scale = LossScaler::State{0.1 * 65536, 7, 3}});
  const TrainingState state = load_training_state(path, loaded, to_resume);
  ASSERT_TRUE(state.loss_scale);
  EXPECT_EQ(state.loss_scale->scale, 0.1 * 65536) << "to the bit";
  EXPECT_EQ(state.loss_scale->good_steps, 7);
  EXPECT_EQ(state.loss_scale->skipped, 3);
  to_resume.set_learning_rate(1e-4);
  for (int i = 0; i < 3; ++i) {
    for (const Linear* model : {&saved, &loaded})
      for (Tensor parameter : model->parameters()) parameter.set_grad(to(ones(parameter.shape()), DType::bf16));
    from.step(), to_resume.step();
  }
  for (std::size_t i = 0; i < from.state().size(); ++i)
    EXPECT_TRUE(bit_equal(from.state()[i].second, to_resume.state()[i].second)) << from.state()[i].first;
  save_training_state(path, saved, from, {});
  EXPECT_FALSE(load_training_state(path, loaded, to_resume).loss_scale);
}

}  // namespace
}  // namespace poolgrad::nn
