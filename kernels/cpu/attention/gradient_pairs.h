// bf16 in the backward kernel by products of pairs: all five products. Exponentials, dS and every sum stay in f32; P
// and dS are rounded to bf16 where they meet dO, Q and K.
#pragma once

#include "kernels/cpu/attention/pairs.h"

namespace poolgrad::kernels::attention {

/// Operands of a tile of keys and of a tile of queries, and how to multiply them.
struct GradientPairs {
  PairProduct product = nullptr;              // null: bf16 goes the way of f32
  std::int64_t key_tile = 0, query_tile = 0;  // room for keys and queries; keys are whole pair_depth_steps
  std::int64_t depth = 0, v_depth = 0, padded = 0, v_padded = 0;
  std::uint32_t *key_rows = nullptr, *value_rows = nullptr, *key_pairs = nullptr;                     // K, V
  std::uint32_t *queries = nullptr, *grads = nullptr, *query_pairs = nullptr, *grad_pairs = nullptr;  // Q, dO
  std::uint32_t* weights = nullptr;                                                                   // P or dS
  float* dq = nullptr;

  /// take(words) gives room.
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
  /// Row i of dO becomes 0.
  void clear_grad(std::int64_t i) const {
    for (std::int64_t p = 0; p < padded_pairs(v_depth); ++p) grads[p * query_tile + i] = 0;
    clear_pair_row(grad_pairs, i, v_padded);
  }

  /// <k, q> and <v, dO> of every pair, not yet scaled: row `key` begins at key * query_tile.
  void score(float* scores, float* products, std::int64_t keys, std::int64_t count) const {
    const auto multiply = [&](float* c, const std::uint32_t* a, const std::uint32_t* b, std::int64_t pairs) {
      product({c, query_tile, a, pairs, b, query_tile, round_up(keys, pair_step), round_up(count, group_lanes<float>),
               pairs, false});
    };
    multiply(scores, key_rows, queries, padded_pairs(depth));
    multiply(products, value_rows, grads, padded_pairs(v_depth));
  }
  /// c (keys x columns) += of * rows, for weights `of` by key whose lanes up to `lane_count` count.
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
