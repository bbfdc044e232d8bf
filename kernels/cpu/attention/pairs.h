// Packs attention tiles as operands of pair products (kernels/cpu/gemm/pair_product.h). bf16 rows become matrices of
// words; f32 weights are rounded to bf16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/gemm/pair_product.h"
#include "kernels/cpu/simd/simd.h"

namespace poolgrad::kernels::attention {

using Words = Vec<std::uint32_t>;
inline constexpr int word_lanes = lanes<float>;
/// Lengths of sums, in elements, are multiples of this.
inline constexpr std::int64_t pair_depth_step = 2 * pair_step;
/// Whether the tiles consist of whole operands: not with 16-byte vectors.
inline constexpr bool has_pairs = group_lanes<float> % pair_step == 0 && pair_depth_step % group_lanes<float> == 0;
/// Pairs in `columns` elements, padded with zeros.
constexpr std::int64_t padded_pairs(std::int64_t columns) { return round_up(columns, pair_depth_step) / 2; }

/// The first `count` elements of a row as pairs; the rest of the vector is 0.
inline Words load_pairs(const BFloat16* from, std::int64_t count) {
  Words words{};
  if (count >= 2 * word_lanes)
    std::memcpy(&words, from, sizeof(words));
  else if (count > 0)
    std::memcpy(&words, from, static_cast<std::size_t>(count) * sizeof(BFloat16));
  return words;
}
/// The first `count` elements of a row, each in the low half of a word; the rest is 0.
inline Words load_low(const BFloat16* from, std::int64_t count) {
  simd::detail::Bits16 bits{};
  if (count >= word_lanes)
    std::memcpy(&bits, from, sizeof(bits));
  else if (count > 0)
    std::memcpy(&bits, from, static_cast<std::size_t>(count) * sizeof(BFloat16));
  return __builtin_convertvector(bits, Words);
}
inline void store_words(std::uint32_t* to, Words words) { std::memcpy(to, &words, sizeof(words)); }

/// Transposes word_lanes x word_lanes words.
inline void transpose_words(Words* words) {
  Vec<float> rows[word_lanes];
  for (int i = 0; i < word_lanes; ++i) rows[i] = reinterpret_cast<Vec<float>>(words[i]);
  simd::transpose<float>(rows);
  for (int i = 0; i < word_lanes; ++i) words[i] = reinterpret_cast<Words>(rows[i]);
}

/// Rounds f32 to bf16 in the high half of a word, to nearest even; the low half is undefined.
inline Words round_to_high(Vec<float> value) {
  const auto bits = reinterpret_cast<Words>(value);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return value != value ? bits | 0x400000u : rounded;
}

/// Packs operand a of `count` rows: out[i * pairs + p] with pairs = padded_pairs(columns). Rows up to `rows` repeat the
/// last one.
inline void pack_pair_rows(std::uint32_t* out, Head<const BFloat16> from, std::int64_t count, std::int64_t rows,
                           std::int64_t columns) {
  const std::int64_t pairs = padded_pairs(columns);
  for (std::int64_t i = 0; i < rows; ++i, out += pairs) {
    const BFloat16* row = from.row(std::min(i, count - 1));
    for (std::int64_t p = 0; p < pairs; p += word_lanes) store_words(out + p, load_pairs(row + 2 * p, columns - 2 * p));
  }
}

/// Packs operand b, summed over columns: out[p * stride + i]. i covers `count` rounded up to whole groups of lanes;
/// entries beyond count are 0.
inline void pack_pair_columns(std::uint32_t* out, std::int64_t stride, Head<const BFloat16> from, std::int64_t count,
                              std::int64_t columns) {
  for (std::int64_t i = 0; i < round_up(count, group_lanes<float>); i += word_lanes)
    for (std::int64_t p = 0; p < padded_pairs(columns); p += word_lanes) {
      Words words[word_lanes];
      for (int r = 0; r < word_lanes; ++r)
        words[r] = i + r < count ? load_pairs(from.row(i + r) + 2 * p, columns - 2 * p) : Words{};
      transpose_words(words);
      for (int r = 0; r < word_lanes; ++r) store_words(out + (p + r) * stride + i, words[r]);
    }
}

/// Packs operand b, summed over rows: out[p * stride + j] holds rows 2 p and 2 p + 1. Entries beyond `count` and
/// `columns` are 0, up to padded_pairs(count) and `stride`, a multiple of pair_step.
inline void pack_row_pairs(std::uint32_t* out, std::int64_t stride, Head<const BFloat16> from, std::int64_t count,
                           std::int64_t columns) {
  for (std::int64_t p = 0; p < padded_pairs(count); ++p, out += stride)
    for (std::int64_t j = 0; j < stride; j += word_lanes) {
      const Words low = 2 * p < count ? load_low(from.row(2 * p) + j, columns - j) : Words{};
      const Words high = 2 * p + 1 < count ? load_low(from.row(2 * p + 1) + j, columns - j) : Words{};
      store_words(out + j, low | high << 16);
    }
}

/// Zeroes a row packed by pack_row_pairs().
inline void clear_pair_row(std::uint32_t* packed, std::int64_t row, std::int64_t stride) {
  for (std::int64_t j = 0; j < stride; ++j) packed[row / 2 * stride + j] &= row % 2 ? 0xffffu : 0xffff0000u;
}

/// Packs weights by key (weights[key * width + lane]), keys [begin, end), as operand a of sums over keys. Word (lane,
/// p) of `out` holds keys `first` + 2 p and + 1, with `first` <= begin; keys outside are 0. p < pairs and lane <
/// `lane_count`, both multiples of pair_step.
inline void pack_weights(std::uint32_t* out, std::int64_t pairs, const float* weights, std::int64_t width,
                         std::int64_t first, Range keys, std::int64_t lane_count) {
  const auto rounded = [&](std::int64_t key, std::int64_t lane) {
    return key >= keys.begin && key < keys.end ? round_to_high(simd::load<float>(weights + key * width + lane))
                                               : Words{};
  };
  for (std::int64_t lane = 0; lane < lane_count; lane += word_lanes)
    for (std::int64_t p = 0; p < pairs; p += word_lanes) {
      Words words[word_lanes];
      for (int r = 0; r < word_lanes; ++r) {
        const std::int64_t key = first + 2 * (p + r);
        words[r] = rounded(key, lane) >> 16 | (rounded(key + 1, lane) & 0xffff0000u);
      }
      transpose_words(words);
      for (int r = 0; r < word_lanes; ++r) store_words(out + (lane + r) * pairs + p, words[r]);
    }
}

/// Packs weights by key as operand a of sums over queries. Word (key, p) of `out` holds lanes 2 p and 2 p + 1. Keys
/// from `key_count` on and lanes from `lane_count` (whole vectors) on are 0. key < `rows` and p < pairs, both multiples
/// of pair_step.
inline void pack_weight_rows(std::uint32_t* out, std::int64_t rows, std::int64_t pairs, const float* weights,
                             std::int64_t width, std::int64_t key_count, std::int64_t lane_count) {
  for (std::int64_t key = 0; key < rows; ++key)
    for (std::int64_t lane = 0; lane < 2 * pairs; lane += word_lanes)
      simd::store(
          reinterpret_cast<BFloat16*>(out + key * pairs) + lane,
          key < key_count && lane < lane_count ? simd::load<float>(weights + key * width + lane) : Vec<float>{});
}

// bf16 forward kernel with pair products: scores, and weights times values. Maxima, exponentials, sums of weights and
// sums over keys stay in f32. Only the weights for the values are rounded to bf16.

/// Operands of a tile of queries and a tile of keys, and the function that multiplies them.
struct SoftmaxPairs {
  PairProduct product = nullptr;  // null: bf16 takes the f32 path
  std::int64_t rows = 0;          // capacity of the tile of queries
  std::int64_t depth = 0, v_depth = 0, v_padded = 0;
  float scale = 1;  // of scores
  std::uint32_t *queries = nullptr, *keys = nullptr, *values = nullptr, *weights = nullptr;

  /// take(words) returns memory; `width` is the length of a row of scores. `key_count` is a multiple of
  /// pair_depth_step.
  template <class Take>
  void carve(std::int64_t key_count, std::int64_t width, const Take& take) {
    queries = take(padded_pairs(depth) * rows);
    keys = take(key_count * padded_pairs(depth));
    values = take(key_count / 2 * v_padded);
    weights = take(width * key_count / 2);
  }
  void load_queries(Head<const BFloat16> q, std::int64_t count) const {
    pack_pair_columns(queries, rows, q, count, depth);
  }
  void load_keys(Head<const BFloat16> k, Head<const BFloat16> v, std::int64_t count) const {
    pack_pair_rows(keys, k, count, round_up(round_up(count, rows_step), pair_step), depth);
    pack_row_pairs(values, v_padded, v, count, v_depth);
  }

  /// Unscaled products of the queries [row, row + count) with the keys `seen`, rounded out to whole rows_steps and
  /// pair_steps. Row `key` of the scores begins at scores + key * width.
  void score(float* scores, std::int64_t width, std::int64_t row, std::int64_t count, Range seen) const {
    const std::int64_t begin = round_down(round_down(seen.begin, rows_step), pair_step),
                       end = round_up(round_up(seen.end, rows_step), pair_step), pairs = padded_pairs(depth);
    product({scores + begin * width, width, keys + begin * pairs, pairs, queries + row, rows, end - begin,
             round_up(count, group_lanes<float>), pairs, false});
  }
  /// out = factors * out + weights * values over the keys `seen`, for rows [0, count).
  void add_values(float* out, std::int64_t count, const float* factors, const float* scores, std::int64_t width,
                  Range seen) const {
    const std::int64_t first = round_down(seen.begin, pair_depth_step),
                       pairs = (round_up(seen.end, pair_depth_step) - first) / 2,
                       lanes_used = round_up(count, pair_step);
    pack_weights(weights, pairs, scores, width, first, seen, lanes_used);
    for (std::int64_t i = 0; i < count; ++i) {
      if (factors[i] == 1.0f) continue;
      for (std::int64_t j = 0; j < v_padded; j += lanes<float>)
        simd::store(out + i * v_padded + j, factors[i] * simd::load<float>(out + i * v_padded + j));
    }
    product(
        {out, v_padded, weights, pairs, values + first / 2 * v_padded, v_padded, lanes_used, v_padded, pairs, true});
  }
};

// bf16 backward kernel with pair products for all five products. Exponentials, dS and every sum stay in f32. P and dS
// are rounded to bf16 for the products with dO, Q and K.

/// Operands of a tile of keys and a tile of queries, and the function that multiplies them.
struct GradientPairs {
  PairProduct product = nullptr;              // null: bf16 takes the f32 path
  std::int64_t key_tile = 0, query_tile = 0;  // capacity for keys (a multiple of pair_depth_step) and queries
  std::int64_t depth = 0, v_depth = 0, padded = 0, v_padded = 0;
  std::uint32_t *key_rows = nullptr, *value_rows = nullptr, *key_pairs = nullptr;                     // K, V
  std::uint32_t *queries = nullptr, *grads = nullptr, *query_pairs = nullptr, *grad_pairs = nullptr;  // Q, dO
  std::uint32_t* weights = nullptr;                                                                   // P or dS
  float* dq = nullptr;

  /// take(words) returns memory.
  template <class Take>
  void carve(const Take& take) {
    const auto words = [&](std::int64_t count) { return reinterpret_cast<std::uint32_t*>(take(count)); };
    key_rows = words(key_tile * padded_pairs(depth));
    value_rows = words(key_tile * padded_pairs(v_depth));
    key_pairs = words(key_tile / 2 * padded);
    queries = words(padded_pairs(depth) * query_tile);
    grads = words(padded_pairs(v_depth) * query_tile);
    query_pairs = words(padded_pairs(query_tile) * padded);
    grad_pairs = words(padded_pairs(query_tile) * v_padded);
    weights = words(key_tile * padded_pairs(query_tile));
    dq = take(query_tile * padded);
  }
  void load_keys(Head<const BFloat16> k, Head<const BFloat16> v, std::int64_t count) const {
    pack_pair_rows(key_rows, k, count, round_up(count, pair_step), depth);
    pack_pair_rows(value_rows, v, count, round_up(count, pair_step), v_depth);
    pack_row_pairs(key_pairs, padded, k, count, depth);
  }
  void load_queries(Head<const BFloat16> q, Head<const BFloat16> grad, std::int64_t count) const {
    pack_pair_columns(queries, query_tile, q, count, depth);
    pack_pair_columns(grads, query_tile, grad, count, v_depth);
    pack_row_pairs(query_pairs, padded, q, count, depth);
    pack_row_pairs(grad_pairs, v_padded, grad, count, v_depth);
  }
  /// Zeroes row i of dO.
  void clear_grad(std::int64_t i) const {
    for (std::int64_t p = 0; p < padded_pairs(v_depth); ++p) grads[p * query_tile + i] = 0;
    clear_pair_row(grad_pairs, i, v_padded);
  }

  /// <k, q> and <v, dO> of every pair, unscaled; row `key` begins at key * query_tile.
  void score(float* scores, float* products, std::int64_t keys, std::int64_t count) const {
    const auto multiply = [&](float* c, const std::uint32_t* a, const std::uint32_t* b, std::int64_t pairs) {
      product({c, query_tile, a, pairs, b, query_tile, round_up(keys, pair_step), round_up(count, group_lanes<float>),
               pairs, false});
    };
    multiply(scores, key_rows, queries, padded_pairs(depth));
    multiply(products, value_rows, grads, padded_pairs(v_depth));
  }
  /// c (keys x columns) += of * rows, for weights `of` by key in lanes up to `lane_count`.
  void add_to_keys(float* c, std::int64_t columns, const float* of, const std::uint32_t* rows, std::int64_t keys,
                   std::int64_t lane_count) const {
    const std::int64_t pairs = padded_pairs(lane_count), key_rows_used = round_up(keys, pair_step);
    pack_weight_rows(weights, key_rows_used, pairs, of, query_tile, keys, lane_count);
    product({c, columns, weights, pairs, rows, columns, key_rows_used, columns, pairs, true});
  }
  /// `count` rows of to, `stride` apart, += (dS by key)^T K.
  void add_to_queries(float* to, std::int64_t stride, const float* scores, std::int64_t keys,
                      std::int64_t count) const {
    const std::int64_t pairs = padded_pairs(keys), rows = round_up(count, pair_step);
    pack_weights(weights, pairs, scores, query_tile, 0, {0, keys}, rows);
    product({dq, padded, weights, pairs, key_pairs, padded, rows, padded, pairs, false});
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < padded; j += lanes<float>) {
        float* at = to + i * stride + j;
        simd::store(at, simd::load<float>(at) + simd::load<float>(dq + i * padded + j));
      }
  }
};

}  // namespace poolgrad::kernels::attention
