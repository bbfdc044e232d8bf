// Softmax along one dimension. A slice of -inf gives zeros and zero gradients, never NaN. log_softmax then gives -inf,
// and passes on the gradients of its outputs.
#pragma once

#include <cstdint>

#include "kernels/functors/attention_term.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Returns exp(x) / sum(exp(x)) along dim, stable.
Tensor softmax(TensorArg x, std::int64_t dim = -1);
/// Returns x - log(sum(exp(x))) along dim, stable.
Tensor log_softmax(TensorArg x, std::int64_t dim = -1);

// Normalization over the last dimension. Statistics are f32, or f64 for f64.

/// Returns (x - mean) / sqrt(var + epsilon) * weight + bias (Ba et al. 2016). weight and bias are (C); either may be
/// undefined.
Tensor layer_norm(TensorArg x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5);
/// Returns x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019). weight is (C) or undefined.
Tensor rms_norm(TensorArg x, const Tensor& weight = {}, double epsilon = 1e-6);

// Rotary position embedding (Su et al. 2021).

/// How positions are scaled to a context `factor` times as long as the trained one.
///   linear  divides every frequency by the factor (Chen et al. 2023).
///   ntk     uses base * factor^(D / (D - 2)), so that only the slowest pair is divided by the whole factor.
///   yarn    (Peng et al. 2024) divides by the factor the pairs that turn less than once in the trained context,
///           and keeps the pairs that turn more than 32 times. Between them the ramp is linear in the pair's index.
/// The ends of the ramp are rounded outwards to whole pairs, as in rope_type "yarn" of Hugging Face; in the paper the
/// ramp is linear in the frequency. yarn multiplies queries and keys by 0.1 ln(factor) + 1.
enum class RopeScaling { none, linear, ntk, yarn };

struct RopeOptions {
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;               // at least 1
  std::int64_t trained_context = 0;  // yarn: length of the trained context

  RopeOptions() = default;
  RopeOptions(double plain_base) : base(plain_base) {}
  RopeOptions(double own_base, RopeScaling own_scaling, double own_factor, std::int64_t context = 0)
      : base(own_base), scaling(own_scaling), factor(own_factor), trained_context(context) {}
};

/// Rotates the pairs (d, d + D/2) of x (B, T, H, D) by (position + t) * base^(-2 d / D), or as scaled by the options. D
/// is even. The gradient is the inverse rotation. Throws ValueError for a base that is not positive, a factor below 1,
/// and yarn without a trained context.
Tensor rope(TensorArg x, std::int64_t position = 0, const RopeOptions& options = {});
/// The same with positions.position(t) in place of position + t, for part of a sequence. Throws ShapeError if the
/// number of positions differs from the steps of x.
Tensor rope(TensorArg x, const kernels::PositionMap& positions, const RopeOptions& options = {});
/// The same for the first `heads` heads of x, 0 <= heads <= H; the other heads pass unchanged. Queries, keys and values
/// of one projection then share one result, and the projection can be freed.
Tensor rope_first_heads(TensorArg x, std::int64_t heads, std::int64_t position = 0, const RopeOptions& options = {});
Tensor rope_first_heads(TensorArg x, std::int64_t heads, const kernels::PositionMap& positions,
                        const RopeOptions& options = {});

}  // namespace poolgrad
