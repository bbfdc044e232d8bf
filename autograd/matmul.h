// Matrix products, row-major; floating dtypes; f16 and bf16 accumulate in f32.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// (..., m, k) x (..., k, n) -> (..., m, n); batch dimensions broadcast. A one-dimensional operand is a vector, as in
/// NumPy. Transposed views are used without a copy.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x (..., in) with weight (out, in) and optional bias (out): x weight^T + bias. One product, bias in its epilogue.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace poolgrad
