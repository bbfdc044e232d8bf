// Loss scaling for f16 (Micikevicius et al. 2018): gradients below 6e-8 vanish in f16, so the loss is multiplied by a
// large number before the backward pass, and the gradients are divided by it in the optimiser.
#pragma once

#include <cstdint>

#include "nn/optimizer.h"
#include "tensor/tensor.h"

namespace poolgrad::nn {

struct LossScalerOptions {
  double initial = 65536;
  double growth = 2;                    // after `growth_interval` steps without a skipped one; 1: a constant scale
  double backoff = 0.5;                 // after a skipped step
  std::int64_t growth_interval = 2000;  // steps
  double least = 1;                     // a scale that would fall below it ends the training
};

/// A dynamic scale: steps whose gradients are not finite are skipped and lower it, many good ones in a row raise it.
///
///   scaler.scaled(loss).backward();
///   scaler.step(optimizer, gradient_norm(parameters), 1.0);  // the norm is the one number read from the device
///   optimizer.zero_grad();
class LossScaler {
 public:
  /// The scale is a number on `device`, () f32, and always one of f32. Throws ValueError for options that do not fit
  /// together.
  explicit LossScaler(Device device = cpu, LossScalerOptions options = {}, CallSite = {});
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  /// loss * scale, differentiable, in the dtype of the loss.
  Tensor scaled(const Tensor& loss, CallSite = {}) const;
  /// The scale that gradients carry until the next step().
  double scale() const { return state_.scale; }
  /// Takes the optimiser's step with the gradients divided by the scale and clipped at the global norm `clip_norm` (0:
  /// never); `scaled_norm` is that of the gradients as they are. Where it is not finite, the step is skipped and the
  /// scale lowered; returns whether it was taken. Throws ValueError, changing nothing, where the scale can go no lower.
  bool step(Optimizer& optimizer, double scaled_norm, double clip_norm = 0.0, CallSite = {});
  /// The same in two halves, for steps that the device takes before anybody reads the norm: what it multiplies
  /// gradients by, NaN for a step to be skipped; and what the norm, once it was read, means for the scale. The
  /// optimiser is told of a skipped step by whoever has read.
  Tensor gradient_scale(const Tensor& scaled_norm, double clip_norm = 0.0, CallSite = {}) const;
  bool settle(double scaled_norm);

  /// What a checkpoint holds.
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;  // since the scale changed
    std::int64_t skipped = 0;     // steps, in all
  };
  const State& state() const { return state_; }
  /// Throws ValueError for a state that no training leads to.
  void load(const State& state);

 private:
  void set_scale(double scale);

  LossScalerOptions options_;
  Tensor scale_;
  State state_;
};

}  // namespace poolgrad::nn
