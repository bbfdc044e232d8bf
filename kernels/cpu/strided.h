// Reads and writes strided operands in row-major ranges, for any layout and dtype. Elementwise kernels, reductions and
// copies use it. Internal to kernels/cpu.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"
#include "kernels/view.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {

/// Splits the row-major range [begin, begin + count) of the views, which share a shape, into runs along the last
/// dimension: run(element offsets, strides, length), with one offset and stride per view.
template <std::size_t N, class Run>
void for_each_run(const std::array<View, N>& views, std::int64_t begin, std::int64_t count, const Run& run) {
  const View& shape = views[0];
  const int last = shape.rank - 1;
  std::array<std::int64_t, N> offsets{}, strides{};
  if (last < 0) return run(offsets, strides, count);
  std::int64_t index[max_rank] = {};
  for (int d = last; d >= 0; --d) {
    index[d] = d ? begin % shape.shape[d] : begin;
    begin /= shape.shape[d];
    for (std::size_t v = 0; v < N; ++v) offsets[v] += index[d] * views[v].strides[d];
  }
  for (std::size_t v = 0; v < N; ++v) strides[v] = views[v].strides[last];
  const auto move = [&](int d, std::int64_t steps) {
    for (std::size_t v = 0; v < N; ++v) offsets[v] += steps * views[v].strides[d];
  };
  while (true) {
    const std::int64_t length = std::min(count, shape.shape[last] - index[last]);
    run(offsets, strides, length);
    count -= length;
    if (count == 0) return;
    move(last, -index[last]);
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      move(d, 1);
      if (++index[d] < shape.shape[d]) break;
      move(d, -shape.shape[d]);
      index[d] = 0;
    }
  }
}

/// Elements per iteration of a range loop: all operands fit the first-level cache.
inline constexpr std::int64_t block_size = 1024;

/// Permutes the dimensions of all views (which share a shape) alike, so that the strides of the first one descend.
/// Dimensions of size 1 go to the front.
void sort_dimensions(std::span<View> views);

/// Merges adjacent dimensions that every view can step through as one, and drops those of size 1. The views share a
/// shape.
void merge_dimensions(std::span<View> views);

/// A view with merged dimensions, addressed by row-major index.
class Strided {
 public:
  Strided() = default;
  explicit Strided(View view);

  /// Address of element `begin` if all elements are adjacent in memory, else nullptr. Here and below, `shift` moves the
  /// whole view by that many elements in memory.
  void* direct(std::int64_t begin, std::int64_t shift = 0) const {
    return dense_ ? view_.as<std::byte>() + (begin + shift) * static_cast<std::int64_t>(size_) : nullptr;
  }
  /// Copies elements [begin, begin + count) to `out`, without gaps.
  void read(std::int64_t begin, std::int64_t count, void* out, std::int64_t shift = 0) const;
  /// The inverse: copies `in` to elements [begin, begin + count).
  void write(std::int64_t begin, std::int64_t count, const void* in, std::int64_t shift = 0) const;

  DType dtype() const { return view_.dtype; }

 private:
  View view_;
  std::size_t size_ = 0;  // bytes of an element
  bool dense_ = false;
};

/// T is float, double or int64_t. Converts stored elements to T.
template <class T>
void widen(DType from, const void* in, std::int64_t count, T* out);
/// Converts T to stored elements; to bool is x != 0, float to integer truncates.
template <class T>
void narrow(const T* in, std::int64_t count, DType to, void* out);

/// Reads ranges of a view as T.
template <class T>
class Source {
 public:
  Source() = default;
  explicit Source(const View& view) : strided_(view) {}
  /// Elements [begin, begin + count), count <= block_size: in place if they are contiguous T, else in `buffer`.
  const T* read(std::int64_t begin, std::int64_t count, T* buffer, std::int64_t shift = 0) const {
    const bool same = strided_.dtype() == dtype_of<T>;
    const void* raw = strided_.direct(begin, shift);
    if (same && raw) return static_cast<const T*>(raw);
    if (same) {
      strided_.read(begin, count, buffer, shift);
      return buffer;
    }
    alignas(64) std::int64_t gathered[block_size];
    if (!raw) {
      strided_.read(begin, count, gathered, shift);
      raw = gathered;
    }
    widen<T>(strided_.dtype(), raw, count, buffer);
    return buffer;
  }

 private:
  Strided strided_;
};

/// Writes ranges of a view from T.
template <class T>
class Sink {
 public:
  Sink() = default;
  explicit Sink(const View& view) : strided_(view) {}
  /// Destination for elements from `begin` on: in place if possible, else `buffer`. Call finish() afterwards.
  T* target(std::int64_t begin, T* buffer) const {
    void* place = strided_.dtype() == dtype_of<T> ? strided_.direct(begin) : nullptr;
    return place ? static_cast<T*>(place) : buffer;
  }
  void finish(std::int64_t begin, std::int64_t count, const T* values, std::int64_t shift = 0) const {
    void* place = strided_.direct(begin, shift);
    if (place == values) return;
    if (strided_.dtype() == dtype_of<T>) return strided_.write(begin, count, values, shift);
    if (place) return narrow<T>(values, count, strided_.dtype(), place);
    alignas(64) std::int64_t gathered[block_size];
    narrow<T>(values, count, strided_.dtype(), gathered);
    strided_.write(begin, count, gathered, shift);
  }

 private:
  Strided strided_;
};

}  // namespace poolgrad::kernels
