// bf16 in the forward kernel by products of pairs: scores and their product with the values. Maxima, exponentials and
// sums stay in f32, as do the sums over keys; a weight is rounded to bf16 where it meets its value.
#pragma once

#include "kernels/cpu/attention/pairs.h"

namespace poolgrad::kernels::attention {

/// Operands of a tile of queries and of a tile of keys, and how to multiply them.
struct SoftmaxPairs {
  PairProduct product = nullptr;  // null: bf16 goes the way of f32
  std::int64_t rows = 0;          // that the tile of queries has room for
  std::int64_t depth = 0, v_depth = 0, v_padded = 0;
  float scale = 1;  // of scores, in base 2
  std::uint32_t *queries = nullptr, *keys = nullptr, *values = nullptr, *weights = nullptr;

  /// take(words) gives room; `width` is the length of a row of scores. `key_count` is whole pair_depth_steps.
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

  /// Products, not yet scaled, of the queries [row, row + count) and a range of keys that holds `seen`, by whole
  /// rows_steps and pair_steps; row `key` of the scores begins at scores + key * width.
  void score(float* scores, std::int64_t width, std::int64_t row, std::int64_t count, Range seen) const {
    const std::int64_t begin = round_down(round_down(seen.begin, rows_step), pair_step),
                       end = round_up(round_up(seen.end, rows_step), pair_step), pairs = padded_pairs(depth);
    product({scores + begin * width, width, keys + begin * pairs, pairs, queries + row, rows, end - begin,
             round_up(count, group_lanes<float>), pairs, false});
  }
  /// Rows [0, count) of out, times their factors, plus weights * values for the keys `seen`.
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

}  // namespace poolgrad::kernels::attention
