// Matrix products, row-major; floating dtypes; f16 and bf16 accumulate in f32.
#pragma once

#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// (..., m, k) x (..., k, n) -> (..., m, n); batch dimensions broadcast. A one-dimensional operand is a vector, as in
/// NumPy: two of them give a number, (). Transposed, sliced and broadcast views are used where they lie, so long as
/// rows or columns have stride 1. ShapeError where inner dimensions differ or batches do not broadcast.
Tensor matmul(Argument a, const Tensor& b);
/// x (..., in) with weight (out, in) and optional bias (out): x weight^T + bias. One product, bias in its epilogue; the
/// backward is one product for each of dx and dweight over all rows, without copies.
Tensor linear(Argument x, const Tensor& weight, const Tensor& bias = {});
/// Sums of products by letters, as NumPy's einsum: einsum("bqhd,bkhd->bhqk", {q, k}). A letter is a dimension; one that
/// the result does not name is summed over, one that an operand names twice is its diagonal, and "..." are the
/// dimensions that no letter names, broadcast. Without "->" the result has the "..." and then, in alphabetical order
/// (upper case first), the letters that occur once. Operands are combined from left to right: by matmul over shared
/// letters that no later operand needs, else by a product. ValueError for a bad equation, ShapeError if sizes differ.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands, CallSite = {});

}  // namespace poolgrad
