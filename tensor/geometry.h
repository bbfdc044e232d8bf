// Where the elements of a view lie in its storage, and how each view operator changes that. Pure index algebra: no
// memory is touched. The differentiable operators of autograd/operators/views.h are these functions plus a gradient
// record.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor/shape.h"

namespace poolgrad {

/// Element (i, j, ...) lies at offset + i * strides[0] + j * strides[1] + ... in units of elements.
struct Geometry {
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;  // in elements

  /// Row-major without gaps; dimensions of size 1 may have any stride, and an empty view is always contiguous.
  bool contiguous() const;

  friend bool operator==(const Geometry&, const Geometry&) = default;
};

/// Offsets of the first and the last element in memory order, both inclusive.
struct Extent {
  std::int64_t first = 0;
  std::int64_t last = -1;  // below `first`: no elements
};

/// What memory a view may touch; what lies beyond 64 bits ends there, outside every storage.
Extent extent(const Geometry& x);
/// True where a stride of 0 makes several elements share one place, as expanded() does.
bool repeats_elements(const Geometry& x);
/// What kernels take, for a storage that begins at `base` (nullptr stays nullptr).
View view_at(void* base, DType dtype, const Geometry& x);

/// The geometry of a fresh row-major tensor. Throws ShapeError where count() does.
Geometry contiguous_geometry(const Shape& shape);
/// `wanted` with its -1, if any, replaced by what `elements` leaves. Throws ShapeError when the counts differ.
Shape infer_shape(const char* op, const Shape& wanted, std::int64_t elements);
/// The same elements in row-major order under `shape` (one size may be -1); nothing when that needs a copy.
std::optional<Geometry> reshaped(const Geometry& x, const Shape& shape);
/// Dimension d of the result is dimension order[d] of x. Throws ShapeError unless `order` is a permutation.
Geometry permuted(const Geometry& x, const Dims& order);
/// Swaps two dimensions.
Geometry transposed(const Geometry& x, std::int64_t dim0, std::int64_t dim1);
/// [start, stop) with step > 0 along dim, NumPy semantics (negative counts from the end, clipped). Throws ValueError
/// for another step.
Geometry sliced(const Geometry& x, std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step);
/// Element `index` of `dim` (negative counts from the end), which disappears. Throws IndexError.
Geometry selected(const Geometry& x, std::int64_t dim, std::int64_t index);
/// Broadcast to `shape` with stride 0; -1 keeps a size. Throws ShapeError.
Geometry expanded(const Geometry& x, const Shape& shape);
/// Removes a dimension of size 1. Throws ShapeError for another size.
Geometry squeezed(const Geometry& x, std::int64_t dim);
/// A new dimension of size 1 before `dim`; dim == rank (or -1) appends.
Geometry unsqueezed(const Geometry& x, std::int64_t dim);

}  // namespace poolgrad
