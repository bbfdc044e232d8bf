// Elementwise functions of one tensor: floating dtypes, DTypeError otherwise; neg, abs, sign, square, clamp, floor,
// ceil and round take integers as well. All are twice differentiable away from their kinks.
#pragma once

#include <cstdint>

#include "kernels/definition/attention_term.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad {

Tensor neg(Argument x);
/// Subgradient 0 at 0.
Tensor abs(Argument x);
/// Gradient 0. NaN for NaN.
Tensor sign(Argument x);
Tensor square(Argument x);
Tensor sqrt(Argument x);
Tensor rsqrt(Argument x);
Tensor reciprocal(Argument x);
Tensor exp(Argument x);
Tensor expm1(Argument x);
Tensor log(Argument x);
Tensor log1p(Argument x);
Tensor log2(Argument x);
Tensor log10(Argument x);
Tensor exp2(Argument x);
Tensor sin(Argument x);
Tensor cos(Argument x);
Tensor tan(Argument x);
/// NaN outside [-1, 1], infinite gradient at its ends; so has acos.
Tensor asin(Argument x);
Tensor acos(Argument x);
Tensor atan(Argument x);
Tensor sinh(Argument x);
Tensor cosh(Argument x);
Tensor tanh(Argument x);
Tensor sigmoid(Argument x);
Tensor erf(Argument x);
/// Subgradient 0 at 0, gradient 1 at NaN.
Tensor relu(Argument x);
Tensor leaky_relu(Argument x, double negative_slope = 0.01);
/// GELU (Hendrycks & Gimpel 2016): x * Phi(x), exact by erf or its tanh approximation.
enum class GeluKind { exact, tanh };
Tensor gelu(Argument x, GeluKind kind = GeluKind::exact);
/// x * sigmoid(x).
Tensor silu(Argument x);
/// x * tanh(softplus(x)) (Misra 2020).
Tensor mish(Argument x);
/// x above 0, alpha * (e^x - 1) elsewhere (Clevert et al. 2016). Gradient alpha at 0, as in PyTorch.
Tensor elu(Argument x, double alpha = 1.0);
Tensor softplus(Argument x);
/// Gradient 1 inside [low, high] and at NaN, 0 outside. An infinite bound is none. Bounds of integers are whole numbers
/// of i64 (ValueError); the ends of the range of i32 and u8 stand for those beyond it.
Tensor clamp(Argument x, double low, double high);
/// minimum(maximum(x, low), high): bounds broadcast, an undefined one is none, and where low > high the result is high.
/// Gradients are those of maximum() and minimum().
Tensor clamp(Argument x, const Tensor& low, const Tensor& high);
/// Gradient 0.
Tensor floor(Argument x);
Tensor ceil(Argument x);
Tensor round(Argument x);
/// bool tensors, no gradient.
Tensor is_nan(Argument x);
Tensor is_finite(Argument x);
/// SwiGLU's product silu(gate) * up in one pass (Shazeer 2020). Equal shapes.
Tensor silu_mul(Argument gate, const Tensor& up);

/// a * sigmoid(b), where a and b are the halves of x along dim (Dauphin et al. 2017). ShapeError where it is odd.
Tensor glu(Argument x, std::int64_t dim = -1);

// Dropout by counter.

/// Zeroes each element with probability p in [0, 1) and scales the rest by 1 / (1 - p). The mask is a function of the
/// generator's range, so nothing is stored and recomputation gives the same bits. p == 0 returns x.
Tensor dropout(Argument x, double p, Generator& generator = default_generator());

/// Which part of a batch of sequences a tensor (B, n, ...) holds: positions [begin, begin + n) of `whole`, or those of
/// the map where it has any, in the sequences [first_row, first_row + B) of `rows` (0: of B).
struct SequencePart {
  std::int64_t begin = 0, whole = 0;
  kernels::PositionMap positions = {};
  std::int64_t first_row = 0, rows = 0;

  /// Of `count` steps.
  kernels::PositionMap map(std::int64_t count) const {
    return positions.count > 0 ? positions : kernels::PositionMap::contiguous(count, begin);
  }
};
/// dropout() of this part of the whole (rows, whole, ...), with the bits that dropout() of the whole has for a
/// generator in the same state; takes the generator's range of the whole. Throws ShapeError if x is no such part.
Tensor dropout(Argument x, double p, Generator& generator, SequencePart part);

}  // namespace poolgrad
