// The scores of a pair of tiles of the backward pass, by key, lanes = queries: products, then P and dS over whole
// columns of keys, in loops long enough that their iterations overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "kernels/cpu/attention/backward_call.h"
#include "kernels/cpu/attention/scores.h"
#include "kernels/cpu/attention/tiles.h"

namespace poolgrad::kernels::attention {

/// to[r][lane] = <key r, query of lane>, of rows_step keys and group_lanes<T> queries. A function of its own, so that
/// the product keeps all registers.
template <class T>
[[gnu::noinline]] void multiply_block(T* to, const T* keys, const T* queries, std::int64_t depth) {
  Vec<T> sum[rows_step][2];
  score_block<T, 2>(sum, keys, 0, queries, depth);
#pragma GCC unroll 8
  for (int r = 0; r < rows_step; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v) simd::store(to + r * query_tile<T> + vector_offset<T>(v), sum[r][v]);
}

/// Lanes that the keys of some rows see: [first[r], last[r]), counted from `lane` lanes before the rows.
template <class T>
struct SeenLanes {
  const T *first, *last;
  std::int64_t lane;
};

/// `rows` rows of group_lanes<T>: products times `factor` in `weights` become P; where `Plain`, dP in `scores` becomes
/// dS * scale.
template <bool Plain, bool Masked, class T>
[[gnu::noinline]] void weigh_rows(std::int64_t rows, T* weights, T* scores, const T* lse, const T* delta, T factor,
                                  T scale, const SeenLanes<T>& seen) {
  Vec<T> shift[2], mean[2], index[2];
#pragma GCC unroll 2
  for (std::size_t v = 0; v < 2; ++v) {
    shift[v] = simd::load<T>(lse + vector_offset<T>(v));
    mean[v] = simd::load<T>(delta + vector_offset<T>(v));
    if constexpr (Masked)
      for (int i = 0; i < lanes<T>; ++i) index[v][i] = static_cast<T>(seen.lane + vector_offset<T>(v) + i);
  }
  for (std::int64_t r = 0; r < rows; ++r, weights += query_tile<T>, scores += query_tile<T>)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v) {
      const std::int64_t at = vector_offset<T>(v);
      Vec<T> weight = exp2_bounded<T>(factor * simd::load<T>(weights + at) - shift[v]);
      if constexpr (Masked) {
        weight = index[v] < simd::broadcast(seen.first[r]) ? Vec<T>{} : weight;
        weight = index[v] >= simd::broadcast(seen.last[r]) ? Vec<T>{} : weight;
      }
      simd::store(weights + at, weight);
      if constexpr (Plain) {
        Vec<T> gradient = weight * (simd::load<T>(scores + at) - mean[v]) * scale;
        // A pair that is not admitted stays 0 whatever lies in v and dO.
        if constexpr (Masked) gradient = weight == Vec<T>{} ? Vec<T>{} : gradient;
        simd::store(scores + at, gradient);
      }
    }
}

/// dS * scale of pairs from dP in s.scores and P in s.weights: dropout, dbias, softcap and scale.
template <class T>
void finish_block(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, const ScoreRules<T>& rules,
                  ScoreBlock<T> block, std::int64_t lane) {
  const Progression queries = part_of(pair.queries, lane, std::min(block.lanes, pair.queries.count - lane));
  const auto finish = [&](std::int64_t key, std::int64_t i, Vec<T> factor) {
    const std::int64_t at = key * query_tile<T> + lane + i;
    const Vec<T> weight = simd::load<T>(s.weights + at);
    Vec<T> gradient = weight * (factor * simd::load<T>(s.scores + at) - simd::load<T>(s.delta + lane + i));
    gradient = weight == Vec<T>{} ? Vec<T>{} : gradient;
    simd::store(s.weights + at, weight * factor);
    if (const View& d = p.gradients.dbias; d.data && pair.want_keys) {
      T* to = d.as<T>() + pair.batch * d.strides[0] + pair.head * d.strides[1] +
              (pair.keys.row + key * pair.keys.stride) * d.strides[3];
      for (std::int64_t n = 0; n < lanes<T> && i + n < queries.count; ++n)
        to[(queries.row + (i + n) * queries.stride) * d.strides[2]] += gradient[n];
    }
    gradient *= static_cast<T>(p.scores.scale);
    if (rules.softcap != 0) gradient = weight == Vec<T>{} ? Vec<T>{} : gradient * simd::load<T>(s.derivative + at);
    simd::store(s.scores + at, gradient);
  };
  if (rules.drops) return for_each_dropout(rules, pair.keys, queries, block, finish);
  for (std::int64_t key = block.begin; key < block.end; ++key)
    for (std::int64_t i = 0; i < block.lanes; i += lanes<T>) finish(key, i, simd::broadcast(T(1)));
}

/// What becomes of products in base 2 before they are weights: rules, and pairs that the schedule takes out.
template <class T>
void modify_products(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s,
                     const ScoreRules<T>& rules, ScoreBlock<T> block, std::int64_t lane, T factor) {
  for (std::int64_t key = block.begin; key < block.end && factor != 1; ++key)
    for (std::int64_t i = 0; i < block.lanes; i += lanes<T>)
      simd::store(block.row(key) + i, factor * simd::load<T>(block.row(key) + i));
  const Progression queries = part_of(pair.queries, lane, std::min(block.lanes, pair.queries.count - lane));
  modify_scores(rules, pair.keys, queries, block, s.derivative ? s.derivative + lane : nullptr);
  if (pair.masked())
    hide_counted_by_key(*pair.program->schedule, *pair.run, p.scores.first_head + pair.head, pair.keys, queries, block);
}

/// Rows of q or dO for lanes [lane, lane + group_lanes) of the pair that comes next where its queries go on.
template <class T>
Prefetch next_rows(const BackwardCall& p, const TilePair<T>& pair, const View& of, std::int64_t lane) {
  Prefetch next;
  const Progression& now = pair.queries;
  const std::int64_t row = now.row + (now.count + lane) * now.stride, rows = ceil_div(p.queries - row, now.stride);
  if (of.data && rows > 0)
    with_storage<T>(of.dtype, [&]<class S>(S) {
      next = Prefetch::make(head_of<const S>(of, pair.batch, pair.head),
                            {row, now.stride, std::min<std::int64_t>(rows, group_lanes<T>), 0, 1}, of.shape[3]);
    });
  return next;
}

/// Products of what lanes [lane, lane + group_lanes) of the pair see: s.weights = Q K^T in base 2, s.scores = dO V^T.
template <class T>
void multiply_group(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, std::int64_t lane) {
  Prefetch next_queries = next_rows(p, pair, p.q, lane), next_grads = next_rows(p, pair, p.grad_out, lane);
  for (std::int64_t key = 0; key < pair.keys.count; key += rows_step) {
    next_queries.fetch(1);
    next_grads.fetch(1);
    if (!pair.block[key / rows_step].sees(lane, group_lanes<T>)) continue;
    const std::int64_t at = key * query_tile<T> + lane;
    multiply_block(s.weights + at, s.keys + key * p.depth, s.queries + lane * p.depth, p.depth);
    multiply_block(s.scores + at, s.values + key * p.v_depth, s.grads + lane * p.v_depth, p.v_depth);
  }
}

/// s.weights = P (with dropout) and s.scores = dS * scale, for lanes [lane, lane + group_lanes) of the pair.
template <class T>
void score_group(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, const ScoreRules<T>& rules,
                 std::int64_t lane) {
  constexpr std::int64_t width = query_tile<T>, group = group_lanes<T>;
  const std::int64_t keys = pair.keys.count, members = std::min(group, pair.queries.count - lane);
  const auto sees = [&](std::int64_t key) { return pair.block[key / rows_step].sees(lane, group); };
  const auto masks = [&](std::int64_t key) {
    const auto& block = pair.block[key / rows_step];
    return block.full_begin > lane || block.full_end < lane + members || pair.masked();
  };
  if (!s.pairs.product) multiply_group(p, pair, s, lane);
  constexpr decltype(&weigh_rows<true, true, T>) weigh[2][2] = {
      {weigh_rows<false, false, T>, weigh_rows<false, true, T>},
      {weigh_rows<true, false, T>, weigh_rows<true, true, T>}};
  const bool modified = rules.modifies() || pair.masked();
  const bool plain = !rules.drops && rules.softcap == 0 && !p.gradients.dbias.data;
  const T scale = static_cast<T>(p.scores.scale);
  // Queries are packed with it, pairs are not.
  const T factor = s.pairs.product ? scale * static_cast<T>(std::numbers::log2e) : T(1);
  for (std::int64_t key = 0, end = 0; key < keys; key = end) {
    end = key + rows_step;
    if (!sees(key)) continue;
    const bool masked = masks(key);
    while (end < keys && sees(end) && masks(end) == masked) end += rows_step;
    const ScoreBlock<T> block{s.weights + lane, width, key, std::min(end, keys), group};
    if (modified) modify_products(p, pair, s, rules, block, lane, factor);
    const std::int64_t at = key * width + lane;
    weigh[plain][masked](end - key, s.weights + at, s.scores + at, s.lse + lane, s.delta + lane,
                         modified ? T(1) : factor, scale, {pair.first + key, pair.last + key, lane});
    if (!plain) finish_block(p, pair, s, rules, block, lane);
  }
}

/// Zeros for the pairs that score_group() has left out.
template <class T>
void clear_unseen(const TilePair<T>& pair, const TileScratch<T>& s) {
  const std::int64_t count = round_up(pair.queries.count, group_lanes<T>);
  for (std::int64_t key = 0; key < pair.keys.count; ++key) {
    const auto& block = pair.block[key / rows_step];
    const bool none = block.begin >= block.end;
    const std::int64_t begin = none ? count : round_down(block.begin, group_lanes<T>),
                       end = none ? count : round_up(block.end, group_lanes<T>);
    for (T* row : {s.weights + key * query_tile<T>, s.scores + key * query_tile<T>}) {
      std::fill(row, row + begin, T{});
      std::fill(row + end, row + count, T{});
    }
  }
}

}  // namespace poolgrad::kernels::attention
