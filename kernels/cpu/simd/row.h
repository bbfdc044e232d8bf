// Building blocks of row kernels: vector loops over one row of any floating storage type. Internal to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/reduction_plan.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/parallel.h"
#include "kernels/view.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {

/// Calls body(row) for all rows in parallel; a range of rows holds about 16 K elements.
template <class Body>
void parallel_rows(const Rows& shape, const Body& body) {
  const std::int64_t rows = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, shape.columns));
  parallel_ranges(shape.rows, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

/// A row in all views of a call; they share the storage type S and n columns.
template <class S>
struct Row {
  std::int64_t number, n;
  S* of(const View& view) const { return view.as<S>() + number * n; }
};
/// Calls body(Row<S>) for all rows of a contiguous view of a floating dtype.
template <class Body>
void for_each_row(const View& view, const Body& body) {
  with_floating_type(view.dtype, [&]<class S>(S) {
    const Rows shape(view);
    parallel_rows(shape, [&](std::int64_t row) { body(Row<S>{row, shape.columns}); });
  });
}

/// Calls body(i, count) for the vectors of [0, n); count is lanes<T>, or less for the last one.
template <class T, class Body>
[[gnu::always_inline]] inline void for_each_vector(std::int64_t n, const Body& body) {
  constexpr std::int64_t width = simd::lanes<T>;
  std::int64_t i = 0;
  for (; i + width <= n; i += width) body(i, width);
  if (i < n) body(i, n - i);
}

/// Folds vector(i, count) over the vectors of [0, n) in four interleaved chains, starting from `identity`. `vector`
/// must fill missing lanes with `identity`. The order depends only on n.
template <class T, class Combine, class Vector>
[[gnu::always_inline]] inline simd::Vec<T> fold_vectors(std::int64_t n, T identity, const Combine& combine,
                                                        const Vector& vector) {
  constexpr std::int64_t width = simd::lanes<T>;
  simd::Vec<T> chain[4];
  for (auto& c : chain) c = simd::broadcast(identity);
  std::int64_t i = 0;
  for (; i + 4 * width <= n; i += 4 * width)
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) chain[c] = combine(chain[c], vector(i + c * width, width));
  for (; i + width <= n; i += width) chain[0] = combine(chain[0], vector(i, width));
  if (i < n) chain[1] = combine(chain[1], vector(i, n - i));
  return combine(combine(chain[0], chain[1]), combine(chain[2], chain[3]));
}

/// Sum of vector(i, count) over the row; missing lanes must be 0.
template <class T, class Vector>
[[gnu::always_inline]] inline T sum_row(std::int64_t n, const Vector& vector) {
  using V = simd::Vec<T>;
  return simd::sum<T>(fold_vectors<T>(
      n, T{}, [](V a, V b) { return a + b; }, vector));
}

/// The largest element; -infinity for an empty row.
template <class T, class S>
inline T max_row(const S* x, std::int64_t n) {
  using V = simd::Vec<T>;
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  return simd::max_lane<T>(fold_vectors<T>(
      n, lowest, [](V a, V b) { return simd::max(a, b); },
      [&](std::int64_t i, std::int64_t count) { return simd::load_partial<T>(x + i, count, lowest); }));
}

/// log(sum(exp(x))) as shift + log(sum). `shift` is the maximum, or 0 if the maximum is -infinity: such a row has sum 0
/// and no NaN. With `infinite`, `shift` is also 0 for a maximum of infinity, and the sum is infinity.
template <class T>
struct ExpSum {
  T shift, sum;
};
template <class T, class S>
inline ExpSum<T> exp_sum(const S* x, std::int64_t n, bool infinite = false) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T largest = max_row<T>(x, n);
  const T shift = largest == lowest || (infinite && largest == -lowest) ? T{} : largest;
  const T sum = sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
    return simd::exp(simd::load_partial<T>(x + i, count, lowest) - shift);
  });
  return {shift, sum};
}

// Sums over rows in a fixed order: each chunk of rows has its own partial row, and partial rows add up pairwise.

/// Combines `count` partial rows of `columns` elements into the first one, pairwise in a binary tree.
template <class T, class Combine>
void combine_partial_rows(T* partial, std::int64_t count, std::int64_t columns, const Combine& combine) {
  parallel_ranges(columns, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t step = 1; step < count; step *= 2)
      for (std::int64_t row = 0; row + step < count; row += 2 * step) {
        T* to = partial + row * columns;
        const T* from = partial + (row + step) * columns;
#pragma GCC ivdep
        for (std::int64_t c = begin; c < end; ++c) to[c] = combine(to[c], from[c]);
      }
  });
}

}  // namespace poolgrad::kernels
