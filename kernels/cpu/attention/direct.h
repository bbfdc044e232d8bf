// Products for few queries, as in decoding. They read each row of keys and values once, straight from memory, and pack
// nothing. Internal to the attention kernels.
#pragma once

#include "kernels/cpu/attention/tiles.h"

namespace poolgrad::kernels::attention {

inline constexpr std::int64_t direct_rows = 8;  // with more queries, packing is faster

/// Loads rows of queries for score_directly(): padded with zeros, times `scale`.
template <class T, class S>
void load_direct_queries(T* to, Head<const S> q, std::int64_t count, std::int64_t depth, T scale) {
  const std::int64_t padded = round_up(depth, lanes<T>);
  copy_rows<T>(to, q, {0, count}, depth, padded);
  for (std::int64_t j = 0; j < count * padded; ++j) to[j] *= scale;
}

/// One run of keys and values, and the products with them. `queries` are rows of padded_depth elements, already scaled.
/// Both products prefetch one later row per row that they read. A prefetch of all rows at once would stall, and the
/// hardware prefetcher does not run far enough ahead.
template <class T>
struct DirectOperands {
  const void *keys, *values;
  std::int64_t key_stride, value_stride, count, depth, v_depth;
  void (*score)(const DirectOperands&, const T* queries, std::int64_t rows, Range seen, Prefetch& next, T* scores,
                std::int64_t width);
  void (*add)(const DirectOperands&, T* out, std::int64_t v_padded, std::int64_t rows, const T* factors,
              const T* scores, std::int64_t width, Range seen, Prefetch& next);

  std::int64_t padded_depth() const { return round_up(depth, lanes<T>); }
  template <class S>
  static DirectOperands make(Head<const S> k, Head<const S> v, std::int64_t count, std::int64_t depth,
                             std::int64_t v_depth);
};

/// scores[key * width + i] = <key, query i> for the keys `seen`, rounded out to whole rows_steps. Rows beyond the last
/// key repeat it.
template <class T, class S>
void score_directly(const DirectOperands<T>& x, const T* queries, std::int64_t rows, Range seen, Prefetch& next,
                    T* scores, std::int64_t width) {
  constexpr int n = lanes<T>;
  const std::int64_t end = round_up(seen.end, rows_step), depth = x.padded_depth();
  for (std::int64_t key = round_down(seen.begin, rows_step); key < end; key += n) {
    const S* row[static_cast<std::size_t>(n)];
    for (int r = 0; r < n; ++r) row[r] = static_cast<const S*>(x.keys) + std::min(key + r, x.count - 1) * x.key_stride;
    next.fetch(n);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* query = queries + i * depth;
      Vec<T> sum[static_cast<std::size_t>(n)] = {};
      std::int64_t d = 0;
      for (; d + n <= x.depth; d += n) {
        const Vec<T> q = simd::load<T>(query + d);
#pragma GCC unroll 16
        for (int r = 0; r < n; ++r) sum[r] += q * simd::load<T>(row[r] + d);
      }
      if (d < x.depth)
        for (int r = 0; r < n; ++r) sum[r] += simd::load<T>(query + d) * simd::load_partial<T>(row[r] + d, x.depth - d);
      simd::transpose<T>(sum);
      for (int r = 1; r < n; ++r) sum[0] += sum[r];
      T dots[static_cast<std::size_t>(n)];
      simd::store(dots, sum[0]);
      for (int r = 0; r < n && key + r < end; ++r) scores[(key + r) * width + i] = dots[r];
    }
  }
}

/// out[i] = factors[i] * out[i] + sum over the keys `seen` of scores[key * width + i] * value.
template <class T, class S>
void add_directly(const DirectOperands<T>& x, T* out, std::int64_t v_padded, std::int64_t rows, const T* factors,
                  const T* scores, std::int64_t width, Range seen, Prefetch& next) {
  const auto columns = [&]<std::size_t Vectors>(std::integral_constant<std::size_t, Vectors>, std::int64_t i,
                                                std::int64_t j) {
    T* to = out + i * v_padded + j;
    Vec<T> sum[Vectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < Vectors; ++v) sum[v] = factors[i] * simd::load<T>(to + vector_offset<T>(v));
    const S* value = static_cast<const S*>(x.values) + seen.begin * x.value_stride + j;
    for (std::int64_t key = seen.begin; key < seen.end; ++key, value += x.value_stride) {
      next.fetch(1);
      const T weight = scores[key * width + i];
#pragma GCC unroll 8
      for (std::size_t v = 0; v < Vectors; ++v)
        sum[v] += weight * (Vectors > 1 ? simd::load<T>(value + vector_offset<T>(v))
                                        : simd::load_partial<T>(value, x.v_depth - j));
    }
#pragma GCC unroll 8
    for (std::size_t v = 0; v < Vectors; ++v) simd::store(to + vector_offset<T>(v), sum[v]);
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    std::int64_t j = 0;
    for (; j + 8 * lanes<T> <= x.v_depth; j += 8 * lanes<T>) columns(std::integral_constant<std::size_t, 8>{}, i, j);
    for (; j + 2 * lanes<T> <= x.v_depth; j += 2 * lanes<T>) columns(std::integral_constant<std::size_t, 2>{}, i, j);
    for (; j < x.v_depth; j += lanes<T>) columns(std::integral_constant<std::size_t, 1>{}, i, j);
  }
}

template <class T>
template <class S>
DirectOperands<T> DirectOperands<T>::make(Head<const S> k, Head<const S> v, std::int64_t count, std::int64_t depth,
                                          std::int64_t v_depth) {
  return {k.data, v.data, k.stride, v.stride, count, depth, v_depth, score_directly<T, S>, add_directly<T, S>};
}

}  // namespace poolgrad::kernels::attention
