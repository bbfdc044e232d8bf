// Softmax along one dimension. A slice of -inf gives zeros with zero gradients (log_softmax: -inf, with the gradients
// of the outputs), never NaN.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// exp(x) / sum(exp(x)) along dim, stable.
Tensor softmax(const Tensor& x, std::int64_t dim = -1, CallSite = {});
/// x - log(sum(exp(x))) along dim, stable.
Tensor log_softmax(const Tensor& x, std::int64_t dim = -1, CallSite = {});

// Normalisation over the last dimension; statistics in f32 (f64 for f64).

/// (x - mean) / sqrt(var + epsilon) * weight + bias (Ba et al. 2016); weight and bias (C), each may be undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5,
                  CallSite = {});
/// x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019); weight (C) may be undefined.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-6, CallSite = {});

// Rotary position embedding (Su et al. 2021).

/// Rotates the pairs (d, d + D/2) of x (B, T, H, D) by (position + t) * base^(-2 d / D). D even. The gradient is the
/// inverse rotation.
Tensor rope(const Tensor& x, std::int64_t position = 0, double base = 10000.0, CallSite = {});
/// The same for the first `heads` heads of x, 0 <= heads <= H; the others are passed on. So that queries, keys and
/// values of one projection stay in one memory and the projection itself can go.
Tensor rope_first_heads(const Tensor& x, std::int64_t heads, std::int64_t position = 0, double base = 10000.0,
                        CallSite = {});

}  // namespace poolgrad
