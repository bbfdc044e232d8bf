// Matrix products, row-major. Floating dtypes; f16 and bf16 accumulate in f32.
#pragma once

#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// (..., m, k) x (..., k, n) -> (..., m, n). Batch dimensions broadcast. A one-dimensional operand is a vector, as in
/// NumPy; two vectors give a scalar (). Transposed, sliced and broadcast views are read in place if rows or columns
/// have stride 1. Throws ShapeError if inner dimensions differ or batches do not broadcast.
Tensor matmul(TensorArg a, const Tensor& b);
/// Returns x weight^T + bias for x (..., in), weight (out, in) and optional bias (out). One product, with the bias in
/// its epilogue. The backward is one product each for dx and dweight over all rows, without copies.
Tensor linear(TensorArg x, const Tensor& weight, const Tensor& bias = {});
/// Sums of products by letters, as NumPy's einsum: einsum("bqhd,bkhd->bhqk", {q, k}). A letter names a dimension.
/// Letters missing in the result are summed over; a letter named twice in one operand is its diagonal. "..." stands for
/// the unnamed dimensions, which broadcast. Without "->" the result has the "..." and then the letters that occur once,
/// in alphabetical order, upper case first.
/// Operands are combined from left to right: by matmul over shared letters that no later operand needs, otherwise by an
/// elementwise product. Throws ValueError for a bad equation and ShapeError if sizes differ.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands, CallSite = {});

}  // namespace poolgrad
