// Matrix products, row-major; floating dtypes; f16 and bf16 accumulate in f32.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// (..., m, k) x (..., k, n) -> (..., m, n); batch dimensions broadcast. A one-dimensional operand is a vector, as in
/// NumPy. Transposed, sliced and broadcast views are used where they lie, so long as rows or columns have stride 1.
/// ShapeError where inner dimensions differ or batches do not broadcast.
Tensor matmul(const Tensor& a, const Tensor& b, CallSite = {});
/// x (..., in) with weight (out, in) and optional bias (out): x weight^T + bias. One product, bias in its epilogue; the
/// backward is one product for each of dx and dweight over all rows, without copies.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, CallSite = {});

}  // namespace poolgrad
