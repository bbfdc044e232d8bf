// Layout helpers of operators that work on rows, the last dimension.
#pragma once

#include "autograd/operators/views.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Row-major: x itself where it already is, else a copy without a gradient record.
inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : x.copy(); }

/// The shape without its last dimension.
inline Shape row_shape(const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(shape.rank() - 1);
  return shape;
}

/// Differentiable views that move dimension `dim` to the end, and the last one back to `dim`.
inline Tensor moved_to_end(const Tensor& x, int dim) {
  Dims order;
  for (int d = 0; d < x.rank(); ++d)
    if (d != dim) order.append(d);
  order.append(dim);
  return permute(x, order);
}
inline Tensor moved_from_end(const Tensor& x, int dim) {
  Dims order;
  for (int d = 0; d + 1 < x.rank(); ++d) order.append(d);
  order.insert(dim, x.rank() - 1);
  return permute(x, order);
}

}  // namespace poolgrad
