// Shapes and strides: up to eight 64-bit dimensions, kept inline.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "kernels/view.h"

namespace poolgrad {

/// A short list of 64-bit integers: a shape (sizes) or strides (in elements).
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
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

}  // namespace poolgrad
