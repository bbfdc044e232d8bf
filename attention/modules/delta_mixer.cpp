#include "attention/modules/delta_mixer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "autograd/recurrence.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

namespace {

std::int64_t checked_head_dim(std::int64_t width, std::int64_t heads, const DeltaMixerOptions& options) {
  if (width < 1 || heads < 1 || options.chunk < 1 || options.convolution < 1 || width % heads != 0)
    throw ValueError(
        fmt::format("[delta_mixer] sizes must be at least 1 and heads divide width: width {}, heads {}, "
                    "chunk {}, convolution {}",
                    width, heads, options.chunk, options.convolution));
  return width / heads;
}

/// Sets the bias of each head for a decay of e^-rate, with rates from 1/2 to 1/512 in equal ratios.
void set_rates(const Tensor& bias) {
  const NoGradGuard no_grad;
  const std::int64_t heads = bias.size(0);
  const double step = heads > 1 ? -std::log(256.0) / static_cast<double>(heads - 1) : 0.0;
  const Tensor rates =
      exp(affine(arange(std::int64_t{0}, heads, std::int64_t{1}, bias.options()), step, std::log(0.5)));
  Tensor(bias).copy_from(log(expm1(rates)));  // the inverse of softplus
}

}  // namespace

DeltaMixer::DeltaMixer(std::int64_t width, std::int64_t heads, const DeltaMixerOptions& options,
                       const nn::ParameterOptions& parameters, CallSite)
    : options_(options),
      heads_(heads),
      head_dim_(checked_head_dim(width, heads, options)),
      projection_(width, 3 * width, {.bias = options.bias}, parameters),
      gates_(width, 2 * heads, {.bias = false}, parameters),
      norm_(head_dim_, 1e-6, parameters),
      output_(width, width, {.bias = options.bias, .deviation = options.output_deviation}, parameters) {
  add_module("projection", projection_);
  add_module("gates", gates_);
  convolution_ = normal_parameter("convolution", {3 * width, options.convolution},
                                  1.0 / std::sqrt(static_cast<double>(options.convolution)), parameters);
  decay_bias_ = constant_parameter("decay_bias", {heads}, 0.0, parameters);
  set_rates(decay_bias_);
  add_module("norm", norm_);
  add_module("output", output_);
}

Tensor DeltaMixer::forward(const Tensor& x, nn::SequenceState* state) {
  const std::int64_t width = heads_ * head_dim_, taps = options_.convolution;
  check_floating("delta_mixer", {{"x", x}});
  if (x.dim() != 3 || x.size(2) != width)
    fail<ShapeError>("delta_mixer", fmt::format("x must be (B, T, {})", width), {{"x", x}});
  const std::int64_t batch = x.size(0), length = x.size(1);
  const DType wide = compute_dtype(x.dtype());
  const bool continued = state && !state->tensors.empty();
  const Tensor before = continued ? state->tensors[0] : Tensor();
  const Tensor packed = projection_(x);
  const Tensor mixed = silu(short_convolution(packed, parameter_for("linear", convolution_, packed), before));
  const std::vector<Tensor> parts = split(reshape(mixed, {batch, length, 3 * heads_, head_dim_}), 3, 2);
  const double size = std::sqrt(static_cast<double>(head_dim_));
  const Tensor q = rms_norm(parts[0]) * (1.0 / (size * size));  // length 1 / sqrt(D)
  const Tensor k = rms_norm(parts[1]) * (1.0 / size);           // length 1
  const std::vector<Tensor> gates = split(to(gates_(x), wide), 2, 2);
  const RecurrentResult result =
      gated_delta_rule(q, k, parts[2], sigmoid(gates[0]), -softplus(gates[1] + to(decay_bias_, wide)),
                       continued ? state->tensors[1] : Tensor(), {.delta = options_.delta, .chunk = options_.chunk});
  const Tensor out = output_(flatten(norm_(result.out), 2, 3));
  if (state) {
    const MemoryScope scope("state", Category::cache);
    const Tensor seen = length >= taps - 1 ? packed
                        : before.defined() ? cat({before, packed}, 1)
                                           : pad(packed, 1, taps - 1, 0);
    const Tensor last = slice(seen, 1, seen.size(1) - (taps - 1));
    state->tensors = {grad_enabled() ? last : last.copy(), result.state};
    state->length += length;
  }
  return out;
}

}  // namespace poolgrad::attention
