// Loss scaling for f16 (Micikevicius et al. 2018). Gradients below 6e-8 vanish in f16. The loss is multiplied by a
// large number before the backward pass, and the optimizer divides the gradients by it.
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
  double least = 1;                     // a scale that would fall below it throws
};

/// A dynamic scale. A step whose gradients are not finite is skipped and lowers the scale; many good steps in a row
/// raise it.
///
///   scaler.scaled(loss).backward();
///   scaler.step(optimizer, gradient_norm(parameters), 1.0);  // reads one number from the device: the norm
///   optimizer.zero_grad();
class LossScaler {
 public:
  /// The scale is a number on `device`, () f32. Throws ValueError for contradictory options.
  explicit LossScaler(Device device = cpu, LossScalerOptions options = {}, CallSite = {});
  LossScaler(const LossScaler&) = delete;
  LossScaler& operator=(const LossScaler&) = delete;

  /// loss * scale, differentiable, in the dtype of the loss.
  Tensor scaled(const Tensor& loss, CallSite = {}) const;
  /// The scale that gradients carry until the next step().
  double scale() const { return state_.scale; }
  /// Takes the optimizer's step with gradients divided by the scale and clipped at the global norm `clip_norm` (0:
  /// never). `scaled_norm` is the norm of the undivided gradients. If it is not finite, skips the step and lowers the
  /// scale. Returns whether the step was taken. Throws ValueError, changing nothing, if the scale cannot go lower.
  bool step(Optimizer& optimizer, double scaled_norm, double clip_norm = 0.0, CallSite = {});
  /// step() in two halves, for a step that the device takes before the host reads the norm. gradient_scale() returns
  /// the factor for gradients, NaN for a skipped step. settle() later updates the scale by the norm. The caller that
  /// reads the norm tells the optimizer of a skipped step.
  Tensor gradient_scale(const Tensor& scaled_norm, double clip_norm = 0.0, CallSite = {}) const;
  bool settle(double scaled_norm);

  /// The part of the scaler that a checkpoint holds.
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;  // since the scale changed
    std::int64_t skipped = 0;     // steps, in all
  };
  const State& state() const { return state_; }
  /// Throws ValueError for a state that training cannot reach.
  void load(const State& state);

 private:
  void set_scale(double scale);

  LossScalerOptions options_;
  Tensor scale_;
  State state_;
};

}  // namespace poolgrad::nn
