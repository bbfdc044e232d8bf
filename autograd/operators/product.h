// Matrix products of raw tensors in whatever layout they come: the compute part of matmul, linear and
// linear_cross_entropy.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// out = a b + beta * out (+ bias on every row) for out (..., m, n), a (..., m, k), b (..., k, n). Batch dimensions of
/// a and b broadcast to those of out, which is contiguous in its last dimension. Transposed, sliced and broadcast
/// operands are used where they lie; an operand is copied only if neither of its last two dimensions has stride 1. out
/// (and bias) may be f32 where a and b are f16 or bf16. No checks, no gradient record.
void product(const Tensor& out, const Tensor& a, const Tensor& b, double beta = 0.0, const Tensor& bias = {});

}  // namespace poolgrad
