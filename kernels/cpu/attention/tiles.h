// Building blocks of the forward and backward attention kernels. A tile of scores is stored by key: row = key, lanes =
// queries. Softmax statistics are then vertical vector arithmetic, and every product below reads its operands in memory
// order.
//
//   scores (keys x queries) = K panels * packed queries      score_block
//   out   (queries x D)    += scores^T * V rows              add_product<by query>
//   dV    (keys x D)       += scores * dO rows               add_product<by key>
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>

#include "kernels/attention.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/view.h"

namespace poolgrad::kernels::attention {

using simd::Compute;
using simd::lanes;
using simd::Vec;

/// Rows of every register block: keys of a score block, rows of a product. Blocks are two vectors wide, so 16 or 24
/// sums and the loop's operands fit the registers. It need not divide lanes<T>. Buffers of scores and results therefore
/// have rows and columns up to a multiple of rows_step. rows_step rows of a product may span two groups of a score
/// block's queries.
inline constexpr int rows_step = simd::vector_bytes == 64 ? 8 : 6;
template <class T>
inline constexpr int group_lanes = 2 * lanes<T>;  // queries of a score block
/// Queries in whole score blocks and whole rows_steps.
template <class T>
inline constexpr int group_step = 3 * group_lanes<T>;
/// Offset of the v-th vector of a row.
template <class T>
constexpr std::int64_t vector_offset(std::size_t v) {
  return static_cast<std::int64_t>(v) * lanes<T>;
}

constexpr std::int64_t round_down(std::int64_t n, std::int64_t step) { return n / step * step; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }
/// Keys in one packed tile of the forward pass: 128, rounded up to whole rows_steps.
inline constexpr std::int64_t key_tile = round_up(128, rows_step);

using Range = Interval;
inline bool empty(Range range) { return range.empty(); }

/// Rows of one head of one batch entry, with stride 1 within a row.
template <class S>
struct Head {
  S* data;
  std::int64_t stride;
  S* row(std::int64_t i) const { return data + i * stride; }
};
template <class S>
Head<S> head_of(const View& view, std::int64_t batch, std::int64_t head) {
  return {view.as<S>() + batch * view.strides[0] + head * view.strides[2], view.strides[1]};
}
/// The rows of a progression: row t of the result is row rows.row + t * rows.stride.
template <class S>
Head<S> gather(Head<S> head, const Progression& rows) {
  return {head.row(rows.row), head.stride * rows.stride};
}

/// The largest x that exp_bounded() supports.
template <class T>
inline constexpr T highest_exponent = sizeof(T) == 4 ? T(88) : T(709);
/// e^x for x <= highest_exponent; 0 below the smallest normal number. Relative error 1.5e-7 + 1e-8 |x| (f32), 1e-15 +
/// 1e-16 |x| (f64), with fused products. The factor log2(e) costs nothing, because fma replaces the additions.
template <class T>
[[gnu::always_inline]] inline Vec<T> exp_bounded(Vec<T> x) {
  using C = simd::detail::ExpConstants<T>;
  using Int = simd::detail::Int<T>;
  // The rounder leaves the biased exponent in the low bits. It is 0 for the lowest x.
  constexpr T rounder = C::rounder + C::bias, log2e = static_cast<T>(std::numbers::log2e);
  constexpr T lowest = -C::bias * static_cast<T>(std::numbers::ln2);
  x = simd::max(simd::broadcast(lowest), x);  // this order keeps a NaN
  const Vec<T> shifted = x * log2e + rounder;
  const Vec<T> r = x * log2e - (shifted - rounder);  // x log2(e) minus its integer part
  Vec<T> p;
  if constexpr (sizeof(T) == 4) {
    p = r * 0.0013264726388025111f + 0.00967151303175852396f;
    p = p * r + 0.055507337504901997f;
    p = p * r + 0.240222420768540822f;
    p = p * r + 0.693146977588262753f;
  } else {
    constexpr double c[] = {4.43476993840838341e-10, 7.07378327708312461e-9, 1.01781995804348242e-7,
                            1.32154352821932817e-6,  1.52527334931103795e-5, 1.54035304571122282e-4,
                            1.33335581467746298e-3,  9.61812910759412003e-3, 5.55041086648200833e-2,
                            2.40226506959101313e-1,  6.93147180559945326e-1};
    p = simd::broadcast(c[0]);
    for (int i = 1; i < 11; ++i) p = p * r + c[i];
  }
  return (p * r + T(1)) * reinterpret_cast<Vec<T>>(reinterpret_cast<Vec<Int>>(shifted) << C::mantissa);
}

/// Copies rows [range) of a head as rows of `padded` >= columns elements in the compute type; the rest is 0.
template <class T, class S>
void copy_rows(T* out, Head<S> from, Range range, std::int64_t columns, std::int64_t padded) {
  for (std::int64_t i = range.begin; i < range.end; ++i, out += padded) {
    const S* row = from.row(i);
    for (std::int64_t j = 0; j < padded; j += lanes<T>)
      simd::store(out + j, simd::load_partial<T>(row + j, columns - j));
  }
}

/// Packs keys [range) in panels of rows_step keys for score_block(): panel, then depth, then key. May write
/// panel_slack<T> elements past the last panel.
template <class T, class S>
void pack_keys(T* out, Head<S> from, Range range, std::int64_t columns) {
  for (std::int64_t i = range.begin; i < range.end; i += rows_step, out += rows_step * columns)
    pack_panel<rows_step>(out, from.row(i), from.stride, true, std::min<std::int64_t>(rows_step, range.end - i),
                          columns);
}

/// Packs queries [range) in groups of group_lanes: group, then depth, then query; each times `scale`.
template <class T, class S>
void pack_queries(T* out, Head<S> from, Range range, std::int64_t columns, T scale) {
  constexpr std::int64_t width = group_lanes<T>;
  for (std::int64_t i = range.begin; i < range.end; i += width, out += width * columns) {
    pack_panel<static_cast<int>(width)>(out, from.row(i), from.stride, true, std::min(width, range.end - i), columns);
    for (std::int64_t j = 0; j < width * columns; j += lanes<T>) simd::store(out + j, scale * simd::load<T>(out + j));
  }
}

/// sum[r][v] = <key r of the block, query of lane>: rows_step keys by Vectors vectors of queries. `key` counts from the
/// first packed key and is a multiple of rows_step. If `start` is not null, adds start[key + r].
template <class T, std::size_t Vectors>
[[gnu::always_inline]] inline void score_block(Vec<T> (&sum)[rows_step][Vectors], const T* keys, std::int64_t key,
                                               const T* queries, std::int64_t depth, const T* start = nullptr) {
  const T* panel = keys + key * depth;
#pragma GCC unroll 8
  for (int r = 0; r < rows_step; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < Vectors; ++v) sum[r][v] = start ? simd::broadcast(start[key + r]) : Vec<T>{};
  multiply_add<T, rows_step, Vectors, 1, rows_step>(sum, depth, panel, queries, group_lanes<T>);
}

/// score_block() from products in memory, row by row, `width` apart. Adds start[r] if `start` is not null.
template <class T>
[[gnu::always_inline]] inline void load_scores(Vec<T> (&sum)[rows_step][2], const T* products, std::int64_t width,
                                               T scale, const T* start = nullptr) {
#pragma GCC unroll 8
  for (int r = 0; r < rows_step; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v)
      sum[r][v] = scale * simd::load<T>(products + r * width + vector_offset<T>(v)) + (start ? start[r] : T{});
}

/// Packs rows [range) of a head for add_product, in panels of group_lanes<T> columns: panel, then row, then column. A
/// panel takes `panel` elements. `out` has columns up to a multiple of group_lanes<T>. Columns from `columns` to a
/// multiple of lanes<T> are 0.
template <class T, class S>
void pack_rows(T* out, Head<S> from, Range range, std::int64_t columns, std::int64_t panel) {
  constexpr std::int64_t width = group_lanes<T>;
  // One panel at a time: a single stream of stores, and independent loads.
  for (std::int64_t j = 0; j < columns; j += width, out += panel) {
    const S* row = from.row(range.begin) + j;
    T* to = out;
    if (j + width <= columns) {
#pragma GCC unroll 4
      for (std::int64_t i = range.begin; i < range.end; ++i, row += from.stride, to += width)
        for (std::size_t v = 0; v < 2; ++v)
          simd::store(to + vector_offset<T>(v), simd::load<T>(row + vector_offset<T>(v)));
    } else {
      for (std::int64_t i = range.begin; i < range.end; ++i, row += from.stride, to += width)
        for (std::int64_t at = 0; j + at < columns; at += lanes<T>)
          simd::store(to + at, simd::load_partial<T>(row + at, columns - j - at));
    }
  }
}

/// c[r][j] = factor[r] * c[r][j] + sum over p < depth of a(r, p) * b(p, j), for rows_step rows and `columns` (a
/// multiple of lanes<T>) columns. a(r, p) is a[r * RowStride + p * DepthStride]. b has rows of b_stride elements; the
/// next group_lanes<T> columns are b_panel elements later. A null `factor` means 1.
template <class T, int RowStride, int DepthStride>
void add_product(T* c, std::int64_t c_stride, std::int64_t columns, std::int64_t depth, const T* a, const T* b,
                 std::int64_t b_stride, const T* factor, std::int64_t b_panel = group_lanes<T>) {
  const auto block = [&]<std::size_t Vectors>(std::integral_constant<std::size_t, Vectors>, std::int64_t j) {
    Vec<T> sum[rows_step][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < Vectors; ++v) {
        sum[r][v] = simd::load<T>(c + r * c_stride + j + vector_offset<T>(v));
        if (factor) sum[r][v] *= factor[r];
      }
    }
    multiply_add<T, rows_step, Vectors, RowStride, DepthStride>(sum, depth, a, b, b_stride);
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r)
#pragma GCC unroll 2
      for (std::size_t v = 0; v < Vectors; ++v) simd::store(c + r * c_stride + j + vector_offset<T>(v), sum[r][v]);
  };
  std::int64_t j = 0;
  for (; j + 2 * lanes<T> <= columns; j += 2 * lanes<T>, b += b_panel)
    block(std::integral_constant<std::size_t, 2>{}, j);
  if (j < columns) block(std::integral_constant<std::size_t, 1>{}, j);
}

/// Gradual prefetch of rows that will be packed next.
struct Prefetch {
  const char* rows = nullptr;
  std::int64_t stride = 0, bytes = 0, count = 0;

  template <class S>
  static Prefetch make(Head<const S> head, const Progression& run, std::int64_t columns) {
    head = gather(head, run);
    constexpr std::int64_t size = sizeof(S);
    return {reinterpret_cast<const char*>(head.data), head.stride * size, columns * size, run.count};
  }
  void fetch(std::int64_t most) {
    constexpr std::int64_t line = 64;
    for (most = std::min(most, count), count -= most; most > 0; --most, rows += stride)
      for (std::int64_t at = 0; at < bytes; at += line) __builtin_prefetch(rows + at, 0, 2);
  }
};

// Rows with a NaN or an infinity. A weight of 0 hides a finite row from queries that do not see it, but 0 times NaN is
// NaN. In a partly visible tile, such rows are 0 in the packed operand. They are added one by one to the queries that
// see them.

/// Indices of these rows in a tile, ascending.
struct WildRows {
  static constexpr std::int64_t most = 192;
  std::int64_t count;
  std::int16_t row[most];
};

template <class S>
bool all_finite(Head<const S> from, std::int64_t count, std::int64_t columns) {
  using T = Compute<S>;
  Vec<T> sum[2] = {};  // 0 x is 0, or NaN
  for (std::int64_t i = 0; i < count; ++i) {
    const S* row = from.row(i);
    std::int64_t j = 0;
    for (; j + 2 * lanes<T> <= columns; j += 2 * lanes<T>)
      for (int v = 0; v < 2; ++v) sum[v] += T{} * simd::load<T>(row + j + v * lanes<T>);
    for (; j < columns; j += lanes<T>) sum[0] += T{} * simd::load_partial<T>(row + j, columns - j);
  }
  return simd::sum<T>(sum[0] + sum[1]) == T{};
}

/// Finds the rows that are not finite. One pass over a tile tells that it has none, as most have.
template <class S>
void find_wild_rows(Head<const S> from, std::int64_t count, std::int64_t columns, WildRows& wild) {
  wild.count = 0;
  if (all_finite(from, count, columns)) return;
  for (std::int64_t i = 0; i < count; ++i)
    if (!all_finite(Head<const S>{from.row(i), from.stride}, 1, columns))
      wild.row[wild.count++] = static_cast<std::int16_t>(i);
}

/// Zeroes a row packed by pack_rows().
template <class T>
void clear_packed_row(T* packed, std::int64_t row, std::int64_t columns, std::int64_t panel) {
  for (std::int64_t j = 0; j < columns; j += group_lanes<T>, packed += panel)
    std::fill_n(packed + row * group_lanes<T>, group_lanes<T>, T{});
}

}  // namespace poolgrad::kernels::attention
