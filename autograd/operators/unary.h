// Elementwise functions of one tensor: floating dtypes, DTypeError otherwise; neg, abs, sign, square, clamp, floor,
// ceil and round take integers as well. All are twice differentiable away from their kinks.
#pragma once

#include <cstdint>

#include "kernels/definition/attention_term.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad {

Tensor neg(const Tensor& x);
/// Subgradient 0 at 0.
Tensor abs(const Tensor& x);
/// Gradient 0.
Tensor sign(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor log2(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tan(const Tensor& x);
/// NaN outside [-1, 1], infinite gradient at its ends; so has acos.
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor erf(const Tensor& x);
/// Subgradient 0 at 0.
Tensor relu(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// GELU (Hendrycks & Gimpel 2016): x * Phi(x), exact by erf or its tanh approximation.
enum class GeluKind { exact, tanh };
Tensor gelu(const Tensor& x, GeluKind kind = GeluKind::exact);
/// x * sigmoid(x).
Tensor silu(const Tensor& x);
Tensor softplus(const Tensor& x);
/// Gradient 1 inside [low, high] and 0 outside. An infinite bound is none.
Tensor clamp(const Tensor& x, double low, double high);
/// Gradient 0.
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
/// bool tensors, no gradient.
Tensor is_nan(const Tensor& x);
Tensor is_finite(const Tensor& x);
/// SwiGLU's product silu(gate) * up in one pass (Shazeer 2020). Equal shapes.
Tensor silu_mul(const Tensor& gate, const Tensor& up);

// Dropout by counter.

/// Zeroes each element with probability p in [0, 1) and scales the rest by 1 / (1 - p). The mask is a function of the
/// generator's range, so nothing is stored and recomputation gives the same bits. p == 0 returns x.
Tensor dropout(const Tensor& x, double p, Generator& generator = default_generator(), CallSite = {});

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
/// What dropout() does to this part of the whole (rows, whole, ...) with a generator in the same state, which hands out
/// the range of the whole. Throws ShapeError where x is no such part.
Tensor dropout(const Tensor& x, double p, Generator& generator, SequencePart part, CallSite = {});

}  // namespace poolgrad
