// Where the elements of a view lie in its storage, and how each view operator changes that. Pure index algebra: no
// memory is touched. The differentiable operators of autograd/views.h are these functions plus a gradient record.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor/shape.h"

namespace poolgrad {

struct Geometry {
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;  // in elements

  bool contiguous() const;
};

/// The geometry of a fresh row-major tensor.
Geometry contiguous_geometry(const Shape& shape);
/// One size may be -1. Throws ShapeError when the counts differ.
Shape infer_shape(const char* op, const Shape& wanted, std::int64_t elements);
/// The same elements in row-major order under `shape`; nothing when that needs a copy.
std::optional<Geometry> reshaped(const Geometry& x, const Shape& shape);
Geometry permuted(const Geometry& x, const Dims& order);
Geometry transposed(const Geometry& x, std::int64_t dim0, std::int64_t dim1);
/// [start, stop) with step > 0 along dim, NumPy semantics (negative counts from the end, clipped).
Geometry sliced(const Geometry& x, std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step);
/// Element `index` of `dim`, which disappears.
Geometry selected(const Geometry& x, std::int64_t dim, std::int64_t index);
/// Broadcast to `shape` with stride 0; -1 keeps a size.
Geometry expanded(const Geometry& x, const Shape& shape);
Geometry squeezed(const Geometry& x, std::int64_t dim);
Geometry unsqueezed(const Geometry& x, std::int64_t dim);

}  // namespace poolgrad
