// Tensors made from the elements of others: parts, repetitions, reorderings, diagonals, one-hot codes. A result has its
// own memory unless it equals its input.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// Returns x (..., m, n) with zeros above (tril) or below (triu) the diagonal (i, i + offset). Every dtype.
Tensor tril(TensorArg x, std::int64_t offset = 0);
Tensor triu(TensorArg x, std::int64_t offset = 0);
/// Returns a square matrix with the vector x (n) on the diagonal (i, i + offset) and zeros elsewhere. For a matrix,
/// returns diagonal().
Tensor diag(TensorArg x, std::int64_t offset = 0);
/// Returns a b^T (m, n) for vectors a (m) and b (n).
Tensor outer(TensorArg a, const Tensor& b);
/// index (...) i64 in [0, classes) -> (..., classes) with a 1 at each index. No gradient. Throws IndexError with the
/// first index out of range and its position.
Tensor one_hot(TensorArg index, std::int64_t classes, DType dtype = DType::f32);

/// Moves elements by `shift` along dim; elements that leave at one end enter at the other.
Tensor roll(TensorArg x, std::int64_t shift, std::int64_t dim);
/// Reverses the order along each of the dims. Throws IndexError for a dimension named twice.
Tensor flip(TensorArg x, const Dims& dims);
/// Repeats each element `times` times along dim (NumPy's repeat, PyTorch's repeat_interleave).
Tensor repeat(TensorArg x, std::int64_t times, std::int64_t dim);
/// Repeats the whole of x counts[d] times along dimension d (NumPy's tile, PyTorch's repeat). The shorter of shape and
/// counts is padded with ones in front.
Tensor tile(TensorArg x, const Dims& counts);

}  // namespace poolgrad
