// Elementwise functions of one tensor. Floating dtypes (DTypeError); neg, abs, sign, square, clamp, floor, ceil and
// round also accept integers. All are twice differentiable away from kinks.
#pragma once

#include <cstdint>

#include "kernels/functors/attention_term.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad {

Tensor neg(TensorArg x);
/// Subgradient 0 at 0.
Tensor abs(TensorArg x);
/// Gradient 0. NaN for NaN.
Tensor sign(TensorArg x);
Tensor square(TensorArg x);
Tensor sqrt(TensorArg x);
Tensor rsqrt(TensorArg x);
Tensor reciprocal(TensorArg x);
Tensor exp(TensorArg x);
Tensor expm1(TensorArg x);
Tensor log(TensorArg x);
Tensor log1p(TensorArg x);
Tensor log2(TensorArg x);
Tensor log10(TensorArg x);
Tensor exp2(TensorArg x);
Tensor sin(TensorArg x);
Tensor cos(TensorArg x);
Tensor tan(TensorArg x);
/// NaN outside [-1, 1], with infinite gradient at -1 and 1, like acos.
Tensor asin(TensorArg x);
Tensor acos(TensorArg x);
Tensor atan(TensorArg x);
Tensor sinh(TensorArg x);
Tensor cosh(TensorArg x);
Tensor tanh(TensorArg x);
Tensor sigmoid(TensorArg x);
Tensor erf(TensorArg x);
/// Subgradient 0 at 0, gradient 1 at NaN.
Tensor relu(TensorArg x);
Tensor leaky_relu(TensorArg x, double negative_slope = 0.01);
/// GELU (Hendrycks & Gimpel 2016): x * Phi(x), exact (erf) or by the tanh approximation.
enum class GeluKind { exact, tanh };
Tensor gelu(TensorArg x, GeluKind kind = GeluKind::exact);
/// x * sigmoid(x).
Tensor silu(TensorArg x);
/// x * tanh(softplus(x)) (Misra 2020).
Tensor mish(TensorArg x);
/// x above 0, alpha * (e^x - 1) elsewhere (Clevert et al. 2016). Gradient alpha at 0, as in PyTorch.
Tensor elu(TensorArg x, double alpha = 1.0);
Tensor softplus(TensorArg x);
/// The gradient is 1 inside [low, high] and at NaN, 0 outside. An infinite bound is no bound. For integers, bounds must
/// be whole i64 numbers (ValueError); bounds beyond the range of i32 and u8 act as its ends.
Tensor clamp(TensorArg x, double low, double high);
/// Returns minimum(maximum(x, low), high). Bounds broadcast; an undefined bound is no bound. Where low > high the
/// result is high. Gradients are those of maximum() and minimum().
Tensor clamp(TensorArg x, const Tensor& low, const Tensor& high);
/// Gradient 0.
Tensor floor(TensorArg x);
Tensor ceil(TensorArg x);
Tensor round(TensorArg x);
/// Return bool tensors without gradient.
Tensor isnan(TensorArg x);
Tensor isfinite(TensorArg x);
/// Returns SwiGLU's product silu(gate) * up in one pass (Shazeer 2020). Shapes must be equal.
Tensor silu_mul(TensorArg gate, const Tensor& up);

/// Returns a * sigmoid(b) for the halves a and b of x along dim (Dauphin et al. 2017). Throws ShapeError for an odd
/// size.
Tensor glu(TensorArg x, std::int64_t dim = -1);

// Dropout by counter.

/// Zeroes each element with probability p in [0, 1) and scales the rest by 1 / (1 - p). The mask is a function of the
/// generator's range: nothing is stored, and recomputation gives the same bits. p == 0 returns x.
Tensor dropout(TensorArg x, double p, Generator& generator = default_generator());

/// The part of a batch of sequences that a tensor (B, n, ...) holds. Its positions are [begin, begin + n) of `whole`,
/// or those of the map if it is not empty. Its sequences are [first_row, first_row + B) of `rows`; rows 0 means B.
struct SequencePart {
  std::int64_t begin = 0, whole = 0;
  kernels::PositionMap positions = {};
  std::int64_t first_row = 0, rows = 0;

  /// Returns the positions of `count` steps.
  kernels::PositionMap map(std::int64_t count) const {
    return positions.count > 0 ? positions : kernels::PositionMap::contiguous(count, begin);
  }
};
/// Drops this part of the whole (rows, whole, ...) with the same bits as dropout() of the whole, for a generator in the
/// same state. Takes the generator's range of the whole. Throws ShapeError if x does not fit into the whole.
Tensor dropout(TensorArg x, double p, Generator& generator, SequencePart part);

}  // namespace poolgrad
