// Order along one dimension: NaN is last in either direction, and equal elements stay in the order they have, so that
// every device gives the same places. A tensor without dimensions throws ShapeError, a dimension out of range
// IndexError.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// Elements in order, and where (i64) along the dimension each was. The gradient of a value goes there; second
/// derivatives too.
struct Sorted {
  Tensor values, indices;
};

/// const auto [values, indices] = sort(x); of every dtype.
Sorted sort(Argument x, std::int64_t dim = -1, bool descending = false);
/// The places alone: gather(x, dim, argsort(x, dim)) is in order.
Tensor argsort(Argument x, std::int64_t dim = -1, bool descending = false);
/// The k largest (or smallest) along the dimension, the best first. ValueError unless 0 <= k <= its size.
Sorted topk(Argument x, std::int64_t k, std::int64_t dim = -1, bool largest = true);

}  // namespace poolgrad
