// Mixing by a recurrent state: the gated delta rule, gated linear attention and a short convolution.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

struct DeltaRuleOptions {
  bool delta = true;        // false: linear attention, u_t = beta_t v_t
  std::int64_t chunk = 64;  // positions computed by products
};

struct RecurrentResult {
  Tensor out, state;
};

/// The gated delta rule (Yang, Kautz, Hatamizadeh 2025), by chunks (Yang et al. 2024):
///
///   S_t = e^gate_t S_{t-1} + k_t u_t^T,  u_t = beta_t (v_t - e^gate_t S_{t-1}^T k_t),  out_t = S_t^T q_t.
///
/// q, k (B, T, H, K), v (B, T, H, V) of one floating dtype; beta, gate (B, T, H) and state (B, H, K, V) in its compute
/// dtype. gate is the logarithm of the decay: 0 keeps, -infinity forgets. `state` is S before the first position; 0 if
/// undefined. Returns out (B, T, H, V) in the dtype of q, and the state after the last position. Differentiable in all
/// operands, twice. The graph keeps the operands alone; the backward pass repeats the forward pass. Throws ShapeError,
/// DTypeError, DeviceError, and ValueError for a chunk below 1. CPUs have a kernel with equal bits for any number of
/// threads; other devices use products.
RecurrentResult gated_delta_rule(TensorArg q, const Tensor& k, const Tensor& v, const Tensor& beta, const Tensor& gate,
                                 const Tensor& state = {}, const DeltaRuleOptions& options = {});

/// Causal convolution of each channel: out_t = sum_i weight_i x_{t - N + 1 + i}. x (B, T, C), weight (C, N), of one
/// floating dtype -> (B, T, C). `before` (B, N - 1, C) holds the inputs before x; zeros if undefined. Differentiable,
/// twice. Throws ShapeError, DTypeError, DeviceError.
Tensor short_convolution(TensorArg x, const Tensor& weight, const Tensor& before = {});

}  // namespace poolgrad
