// Sorting along one dimension. NaN is last in either direction. Sorting is stable, so every device gives the same
// indices. A tensor without dimensions acts as a vector of one element. A dimension out of range throws IndexError.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// Sorted elements and their original indices (i64) along the dimension. The gradient of a value goes to its origin.
/// Second derivatives exist.
struct Sorted {
  Tensor values, indices;
};

/// const auto [values, indices] = sort(x). Every dtype.
Sorted sort(TensorArg x, std::int64_t dim = -1, bool descending = false);
/// Returns only the indices: gather(x, dim, argsort(x, dim)) is sorted.
Tensor argsort(TensorArg x, std::int64_t dim = -1, bool descending = false);
/// Returns the k largest (or smallest) elements along the dimension, the best first. Throws ValueError unless 0 <= k <=
/// its size.
Sorted topk(TensorArg x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

}  // namespace poolgrad
