// A small training run on cuda:0, eager or recorded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/training/trainer.h"
#include "tensor/creation.h"

namespace poolgrad::nn {

inline constexpr Device training_device{DeviceType::cuda, 0};
inline constexpr std::int64_t rows = 6;

inline std::unique_ptr<Optimizer> optimizer_of(OptimizerKind kind, const NamedTensors& parameters) {
  switch (kind) {
    case OptimizerKind::sgd:
      return std::make_unique<SGD>(parameters, SGDOptions{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
    case OptimizerKind::lion: return std::make_unique<Lion>(parameters, LionOptions{});
    case OptimizerKind::muon: return std::make_unique<Muon>(parameters, MuonOptions{});
    case OptimizerKind::adamw: break;
  }
  return std::make_unique<AdamW>(parameters, AdamWOptions{.decay_matrices_only = true});
}

/// Two layers with dropout between them on a batch of fixed tensors; `gain` multiplies the loss.
struct Regression : Module {
  explicit Regression(OptimizerKind kind, bool half = false)
      : half_(half),
        up_(12, 33, {}, {.device = training_device, .generator = &generator_}),
        down_(33, 7, {}, {.device = training_device, .generator = &generator_}) {
    add_module("up", up_);
    add_module("down", down_);
    optimizer = optimizer_of(kind, named_parameters());
  }
  void next_batch(int number) {
    Generator data(5, static_cast<std::uint64_t>(number));
    x_.copy_from(randn({rows, 12}, {}, data));
    y_.copy_from(randn({rows, 7}, {}, data));
  }
  Tensor loss() {
    const AutocastScope scope(half_ ? std::optional(DType::f16) : std::nullopt);
    ++calls;
    return sum(square(down_(dropout(gelu(up_(x_)), 0.25, generator_)) - y_)) * gain;
  }
  std::vector<Tensor> numbers() const {
    std::vector<Tensor> all = parameters();
    for (const auto& [name, tensor] : optimizer->state()) all.push_back(tensor);
    return all;
  }

  std::unique_ptr<Optimizer> optimizer;
  Tensor gain = ones({}, {DType::f32, training_device});
  int calls = 0;

 private:
  const bool half_;
  Generator generator_{3};
  Linear up_, down_;
  Tensor x_ = zeros({rows, 12}, {DType::f32, training_device}), y_ = zeros({rows, 7}, {DType::f32, training_device});
};

/// A regression and its step, eager or recorded.
struct Training {
  Training(OptimizerKind kind, bool recorded, double clip = 0.5, std::optional<LossScalerOptions> scale = {})
      : model(kind, scale.has_value()) {
    if (scale) scaler.emplace(training_device, *scale);
    step.emplace(model, *model.optimizer, clip, "regression", scaler ? &*scaler : nullptr);
    if (recorded) step->record();
  }
  StepRecord run(int number) {
    return step->run(
        0.02 / (1 + number % 4), rows, [&] { model.next_batch(number); }, [&] { return model.loss(); });
  }
  Regression model;
  std::optional<LossScaler> scaler;
  std::optional<TrainingStep> step;
};

}  // namespace poolgrad::nn
