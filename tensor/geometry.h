// Shapes and strides, where the elements of a view lie in its storage, and how each view operator changes that. Pure
// index algebra: no memory is touched. The differentiable operators of autograd/operators/views.h are these functions
// plus a gradient record.
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

/// A short list of up to eight 64-bit integers, kept inline: a shape (sizes) or strides (in elements).
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  /// A number stands for a list of one: `zeros(5)`, `mean(x, -1)`.
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Dims(Number value) : rank_(1), values_{static_cast<std::int64_t>(value)} {}
  /// Throws ShapeError beyond max_rank dimensions.
  explicit Dims(std::span<const std::int64_t> values);
  /// `rank` copies of `value`.
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

/// Number of elements; throws ShapeError for a negative size or beyond 2^63 - 1.
std::int64_t count(const Shape& shape);
/// Row-major strides.
Strides contiguous_strides(const Shape& shape);
/// "(4, 8)", "(3,)", "()".
std::string to_string(const Dims& dims);
/// `dim` counted from the front, where negative counts from the end; throws IndexError naming `op`, the shape and the
/// dimension.
int normalize_dim(const char* op, std::int64_t dim, const Shape& shape);
/// The index of the element with this row-major number.
Dims unravel(std::int64_t number, const Shape& shape);
/// NumPy broadcasting of two shapes; nothing where they differ in a size that is not 1.
std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);

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
/// True where several elements share one place, as after expanded() or unfolded() with overlapping windows; of
/// interleaved windows that just miss each other too.
bool repeats_elements(const Geometry& x);
/// What kernels take, for a storage that begins at `base` (nullptr stays nullptr).
View view_at(void* base, DType dtype, const Geometry& x);

/// The geometry of a fresh row-major tensor. Throws ShapeError where count() does.
Geometry contiguous_geometry(const Shape& shape);
/// `wanted` with its -1, if any, replaced by what the elements of `present` leave. Throws ShapeError when the counts
/// differ.
Shape infer_shape(const char* op, const Shape& wanted, const Shape& present);
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
/// Elements (i, i + offset) of dim0 and dim1, which disappear; the diagonal is the last dimension, empty where it lies
/// outside. Throws IndexError where both are the same dimension.
Geometry diagonal_of(const Geometry& x, std::int64_t offset, std::int64_t dim0, std::int64_t dim1);
/// Windows of `size` elements of dim, `dilation` apart, which begin every `step` elements: their number takes the place
/// of dim, their elements are a new last dimension. Throws ValueError for numbers below 1, ShapeError where not even
/// one window fits.
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

/// What stands in x[...]: one entry, or several in braces; and the line where it stands.
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

/// [start, stop) of a dimension, NumPy semantics; slice() is all of it.
constexpr Index slice(std::int64_t start = 0, std::int64_t stop = std::numeric_limits<std::int64_t>::max(),
                      std::int64_t step = 1) {
  return {Index::Kind::range, start, stop, step};
}
/// All dimensions that the other entries leave.
inline constexpr Index ellipsis{Index::Kind::ellipsis};
/// A dimension of size 1.
inline constexpr Index new_axis{Index::Kind::new_axis};

}  // namespace poolgrad
