// Tensors put together from the elements of others: parts, repetitions, other orders, diagonals, codes. Results have
// memory of their own unless nothing had to be moved.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// x (..., m, n) with zeros above (tril) or below (triu) the diagonal (i, i + offset). Every dtype.
Tensor tril(Argument x, std::int64_t offset = 0);
Tensor triu(Argument x, std::int64_t offset = 0);
/// A vector (n) on the diagonal (i, i + offset) of a square matrix of zeros; of a matrix, diagonal().
Tensor diag(Argument x, std::int64_t offset = 0);
/// a (m) and b (n): a b^T (m, n).
Tensor outer(Argument a, const Tensor& b);
/// index (...) i64 within [0, classes) -> (..., classes) with a 1 at each index. No gradient. IndexError names the
/// first index outside and its position.
Tensor one_hot(Argument index, std::int64_t classes, DType dtype = DType::f32);

/// Elements move `shift` places along dim; what leaves at one end comes in at the other.
Tensor roll(Argument x, std::int64_t shift, std::int64_t dim);
/// In reverse order along each of the dims. IndexError for one that is named twice.
Tensor flip(Argument x, const Dims& dims);
/// Each element `times` times in a row along dim (NumPy's repeat, PyTorch's repeat_interleave).
Tensor repeat(Argument x, std::int64_t times, std::int64_t dim);
/// All of x counts[d] times along dimension d (NumPy's tile, PyTorch's repeat); the shorter of shape and counts is
/// filled up with ones in front.
Tensor tile(Argument x, const Dims& counts);

}  // namespace poolgrad
