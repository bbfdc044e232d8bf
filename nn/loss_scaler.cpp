#include "nn/loss_scaler.h"

#include <fmt/format.h>

#include <cmath>

#include "allocator/base/count.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

bool is_scale(double x) { return std::isfinite(static_cast<float>(x)) && x > 0; }

const LossScalerOptions& checked(const LossScalerOptions& o) {
  if (!is_scale(o.initial) || !is_scale(o.least) || o.least > o.initial)
    throw ValueError(fmt::format(
        "[loss_scaler] scales must be positive f32 numbers, and the least no more than the first: initial {}, least {}",
        o.initial, o.least));
  if (!(o.growth >= 1 && std::isfinite(o.growth) && o.backoff > 0 && o.backoff < 1) || o.growth_interval < 1)
    throw ValueError(
        fmt::format("[loss_scaler] the scale must grow by 1 or more after at least one step, and fall by a factor "
                    "between 0 and 1: growth {}, interval {}, backoff {}",
                    o.growth, o.growth_interval, o.backoff));
  return o;
}

}  // namespace

LossScaler::LossScaler(Device device, LossScalerOptions options, CallSite) : options_(checked(options)) {
  const MemoryScope scope("loss_scale", Category::optimizer_state);
  scale_ = Tensor::empty({}, {.dtype = DType::f32, .device = device});
  set_scale(options_.initial);
}

Tensor LossScaler::scaled(const Tensor& loss, CallSite) const { return loss * to(scale_, loss.dtype()); }

bool LossScaler::step(Optimizer& optimizer, double scaled_norm, double clip_norm, CallSite) {
  optimizer.step(clip_scale(scaled_norm / state_.scale, clip_norm) / state_.scale);  // skipped for a norm of NaN
  return settle(scaled_norm);
}

Tensor LossScaler::gradient_scale(const Tensor& scaled_norm, double clip_norm, CallSite) const {
  const NoGradGuard no_grad;
  const Tensor scale = to(scale_, DType::f64);
  return clip_scale(scaled_norm / scale, clip_norm) / scale;
}

bool LossScaler::settle(double scaled_norm) {
  if (!std::isfinite(scaled_norm)) {
    const double lower = state_.scale * options_.backoff;
    if (lower < options_.least)
      throw ValueError(fmt::format("[loss_scaler] gradients are not finite at a scale of {}, and the least is {}",
                                   state_.scale, options_.least));
    set_scale(lower);
    count_up(state_.skipped);
    return false;
  }
  const double higher = state_.scale * options_.growth;
  count_up(state_.good_steps);
  if (state_.good_steps >= options_.growth_interval) set_scale(is_scale(higher) ? higher : state_.scale);
  return true;
}

void LossScaler::load(const State& state) {
  const auto is_count = [](std::int64_t count) { return count >= 0 && count <= largest_count; };
  if (!is_scale(state.scale) || !is_count(state.good_steps) || !is_count(state.skipped))
    throw ValueError(fmt::format("[loss_scaler] invalid state: scale {}, good steps {}, skipped {}", state.scale,
                                 state.good_steps, state.skipped));
  set_scale(state.scale);
  state_.good_steps = state.good_steps;
  state_.skipped = state.skipped;
}

void LossScaler::set_scale(double scale) {
  state_.scale = static_cast<float>(scale);  // scales loss and gradients by the same f32 number
  scale_.fill(state_.scale);
  state_.good_steps = 0;
}

}  // namespace poolgrad::nn
