// Shapes, strides, the offsets of a view's elements in its storage, and the effect of each view operator on them. Pure
// index algebra without memory access. The differentiable operators of autograd/operators/views.h add a gradient record
// to these functions.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "kernels/view.h"

namespace poolgrad {

/// A list of up to eight 64-bit integers, stored inline: a shape (sizes) or strides (in elements).
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  /// Converts a number to a list of one: `zeros(5)`, `mean(x, -1)`.
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Dims(Number value) : rank_(1), values_{static_cast<std::int64_t>(value)} {}
  /// Throws ShapeError for more than max_rank dimensions.
  explicit Dims(std::span<const std::int64_t> values);
  /// Returns `rank` copies of `value`.
  static Dims filled(int rank, std::int64_t value);

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  std::int64_t& operator[](int d) { return values_[d]; }
  std::int64_t operator[](int d) const { return values_[d]; }
  std::int64_t back() const { return values_[rank_ - 1]; }
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + rank_; }
  std::int64_t* begin() { return values_; }
  std::int64_t* end() { return values_ + rank_; }
  operator std::span<const std::int64_t>() const { return {values_, static_cast<std::size_t>(rank_)}; }

  void append(std::int64_t value);
  void insert(int position, std::int64_t value);
  void erase(int position);

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int d = 0; d < a.rank_; ++d)
      if (a.values_[d] != b.values_[d]) return false;
    return true;
  }

 private:
  int rank_ = 0;
  std::int64_t values_[max_rank] = {};
};

using Shape = Dims;
using Strides = Dims;

/// Returns the number of elements. Throws ShapeError for a negative size or beyond 2^63 - 1.
std::int64_t count(const Shape& shape);
/// Returns row-major strides.
Strides contiguous_strides(const Shape& shape);
/// Returns "(4, 8)", "(3,)", "()".
std::string to_string(const Dims& dims);
/// Returns `dim` counted from the front; a negative one counts from the end. Throws IndexError with `op`, the shape and
/// the dimension.
int normalize_dim(const char* op, std::int64_t dim, const Shape& shape);
/// Returns the index of the element with this row-major number.
Dims unravel(std::int64_t number, const Shape& shape);
/// Returns the NumPy broadcast of two shapes, or none if they differ in a size that is not 1.
std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);

/// Element (i, j, ...) lies at offset + i * strides[0] + j * strides[1] + ..., in elements.
struct Geometry {
  Shape shape;
  Strides strides;
  std::int64_t offset = 0;  // in elements

  /// Returns whether elements are row-major without gaps. Dimensions of size 1 may have any stride; an empty view is
  /// always contiguous.
  bool contiguous() const;

  friend bool operator==(const Geometry&, const Geometry&) = default;
};

/// Offsets of the first and the last element in memory order, both inclusive.
struct Extent {
  std::int64_t first = 0;
  std::int64_t last = -1;  // below `first`: no elements
};

/// Returns the memory range that a view may touch. Offsets saturate at 64 bits, outside every storage.
Extent extent(const Geometry& x);
/// Returns true if several elements share memory, as after expanded() or unfolded() with overlapping windows. May
/// also return true for interleaved windows that do not overlap.
bool repeats_elements(const Geometry& x);
/// Returns the view for kernels on a storage at `base` (nullptr stays nullptr).
View view_at(void* base, DType dtype, const Geometry& x);

/// Returns the geometry of a new row-major tensor. Throws ShapeError as count() does.
Geometry contiguous_geometry(const Shape& shape);
/// Returns `wanted` with its -1, if any, set so that the counts match. Throws ShapeError if they cannot match
/// `present`.
Shape infer_shape(const char* op, const Shape& wanted, const Shape& present);
/// Returns the same elements in row-major order under `shape` (one size may be -1), or none if that needs a copy.
std::optional<Geometry> reshaped(const Geometry& x, const Shape& shape);
/// Dimension d of the result is dimension order[d] of x. Throws ShapeError unless `order` is a permutation.
Geometry permuted(const Geometry& x, const Dims& order);
/// Swaps two dimensions.
Geometry transposed(const Geometry& x, std::int64_t dim0, std::int64_t dim1);
/// Returns [start, stop) with step > 0 along dim, with NumPy semantics (negative counts from the end, clipped). Throws
/// ValueError for another step.
Geometry sliced(const Geometry& x, std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step);
/// Selects element `index` of `dim` (negative counts from the end) and removes the dimension. Throws IndexError.
Geometry selected(const Geometry& x, std::int64_t dim, std::int64_t index);
/// Broadcasts to `shape` with stride 0; -1 keeps a size. Throws ShapeError.
Geometry expanded(const Geometry& x, const Shape& shape);
/// Removes a dimension of size 1. Throws ShapeError for another size.
Geometry squeezed(const Geometry& x, std::int64_t dim);
/// Inserts a dimension of size 1 before `dim`; dim == rank (or -1) appends.
Geometry unsqueezed(const Geometry& x, std::int64_t dim);
/// Replaces dim0 and dim1 by their diagonal (i, i + offset) as the last dimension, empty if outside. Throws IndexError
/// if both are the same dimension.
Geometry diagonal_of(const Geometry& x, std::int64_t offset, std::int64_t dim0, std::int64_t dim1);
/// Windows of `size` elements of dim, `dilation` apart, one every `step` elements. The window count replaces dim; the
/// window elements are a new last dimension. Throws ValueError for numbers below 1, ShapeError if no window fits.
Geometry unfolded(const Geometry& x, std::int64_t dim, std::int64_t size, std::int64_t step, std::int64_t dilation);

/// One entry of x[{...}]: an index, slice(), ellipsis or new_axis.
class Index {
 public:
  enum class Kind : std::uint8_t { one, range, ellipsis, new_axis };

  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Index(Number index) : start(static_cast<std::int64_t>(index)) {}
  constexpr Index(Kind what, std::int64_t from = 0, std::int64_t to = 0, std::int64_t by = 1)
      : kind(what), start(from), stop(to), step(by) {}

  Kind kind = Kind::one;
  std::int64_t start = 0, stop = 0, step = 1;
};

/// The argument of x[...]: one entry, or several in braces, with its source line.
class Indices {
 public:
  Indices(std::initializer_list<Index> list, std::source_location line = std::source_location::current())
      : list_(list), line_(line) {}
  template <std::convertible_to<Index> One>
  Indices(const One& one, std::source_location line = std::source_location::current())
      : list_{Index(one)}, line_(line) {}

  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  std::source_location line() const { return line_; }

 private:
  std::vector<Index> list_;
  std::source_location line_;
};

/// Returns the range [start, stop) of a dimension, NumPy semantics; slice() is the whole dimension.
constexpr Index slice(std::int64_t start = 0, std::int64_t stop = std::numeric_limits<std::int64_t>::max(),
                      std::int64_t step = 1) {
  return {Index::Kind::range, start, stop, step};
}
/// All dimensions without an entry of their own.
inline constexpr Index ellipsis{Index::Kind::ellipsis};
/// A dimension of size 1.
inline constexpr Index new_axis{Index::Kind::new_axis};

}  // namespace poolgrad
