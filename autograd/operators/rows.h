// Softmax along one dimension. A slice of -inf gives zeros with zero gradients (log_softmax: -inf, with the gradients
// of the outputs), never NaN.
#pragma once

#include <cstdint>

#include "kernels/definition/attention_term.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// exp(x) / sum(exp(x)) along dim, stable.
Tensor softmax(Argument x, std::int64_t dim = -1);
/// x - log(sum(exp(x))) along dim, stable.
Tensor log_softmax(Argument x, std::int64_t dim = -1);

// Normalisation over the last dimension; statistics in f32 (f64 for f64).

/// (x - mean) / sqrt(var + epsilon) * weight + bias (Ba et al. 2016); weight and bias (C), each may be undefined.
Tensor layer_norm(Argument x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5);
/// x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019); weight (C) may be undefined.
Tensor rms_norm(Argument x, const Tensor& weight = {}, double epsilon = 1e-6);

// Rotary position embedding (Su et al. 2021).

/// How positions are made to fit a context `factor` times as long as a model was trained on. linear: every frequency is
/// divided by the factor (Chen et al. 2023). ntk: the base becomes base * factor^(D / (D - 2)), so that the slowest
/// pair alone is divided by all of it. yarn (Peng et al. 2024): the factor divides pairs that turn less than once in
/// the trained context and leaves pairs that turn more than 32 times. Between both the ramp is linear in the pair's
/// index. Both ends are rounded outwards to whole pairs, as in Hugging Face's rope_type "yarn"; the paper's ramp is
/// linear in the frequency. Queries and keys grow by 0.1 ln(factor) + 1.
enum class RopeScaling { none, linear, ntk, yarn };

struct RopeOptions {
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;               // at least 1
  std::int64_t trained_context = 0;  // yarn: positions that the model was trained on

  RopeOptions() = default;
  RopeOptions(double plain_base) : base(plain_base) {}
  RopeOptions(double own_base, RopeScaling own_scaling, double own_factor, std::int64_t context = 0)
      : base(own_base), scaling(own_scaling), factor(own_factor), trained_context(context) {}
};

/// Rotates the pairs (d, d + D/2) of x (B, T, H, D) by (position + t) * base^(-2 d / D), or as the options scale it. D
/// even. The gradient is the inverse rotation. Throws ValueError for a base that is not positive, a factor below 1, and
/// yarn without a trained context.
Tensor rope(Argument x, std::int64_t position = 0, const RopeOptions& options = {});
/// The same by positions.position(t) in place of position + t, for a part of a sequence. ShapeError where the map has
/// another number of rows than x has steps.
Tensor rope(Argument x, const kernels::PositionMap& positions, const RopeOptions& options = {});
/// The same for the first `heads` heads of x, 0 <= heads <= H; the others are passed on. So that queries, keys and
/// values of one projection stay in one memory and the projection itself can go.
Tensor rope_first_heads(Argument x, std::int64_t heads, std::int64_t position = 0, const RopeOptions& options = {});
Tensor rope_first_heads(Argument x, std::int64_t heads, const kernels::PositionMap& positions,
                        const RopeOptions& options = {});

}  // namespace poolgrad
