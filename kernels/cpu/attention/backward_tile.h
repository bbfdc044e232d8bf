// One pair of tiles of the backward pass: keys by queries, lanes = queries. Weights are recomputed from lse (Dao et al.
// 2022); with dP = dO V^T, dS = P (dP - delta): dV += P^T dO, dK += scale dS^T Q, dQ += scale dS K.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention/backward_call.h"
#include "kernels/cpu/attention/scores.h"
#include "kernels/cpu/attention/tiles.h"

namespace poolgrad::kernels::attention {

// The scores of a tile pair of the backward pass, by key, lanes = queries. First the products, then P and dS over whole
// columns of keys, in loops long enough for iterations to overlap.

/// to[r][lane] = <key r, query of lane>, for rows_step keys and group_lanes<T> queries. Not inlined, so that the
/// product can use all registers.
template <class T>
[[gnu::noinline]] void multiply_block(T* to, const T* keys, const T* queries, std::int64_t depth) {
  Vec<T> sum[rows_step][2];
  score_block<T, 2>(sum, keys, 0, queries, depth);
#pragma GCC unroll 8
  for (int r = 0; r < rows_step; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v) simd::store(to + r * query_tile<T> + vector_offset<T>(v), sum[r][v]);
}

/// Visible lanes of some key rows: [first[r], last[r]), counted from `lane` lanes before the rows.
template <class T>
struct SeenLanes {
  const T *first, *last;
  std::int64_t lane;
};

/// For `rows` rows of group_lanes<T>: products times `factor` in `weights` become P. With `Plain`, dP in `scores`
/// becomes dS * scale.
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
      const Vec<T> product = simd::load<T>(weights + at);
      // If lse is huge, its rounding could give a weight above 1 that overflows.
      Vec<T> weight = exp_bounded<T>(simd::min(Vec<T>{}, factor * product - shift[v]));
      if constexpr (Masked) {
        // Hidden pairs between visible ones; the query's lse may be NaN.
        weight = product == simd::broadcast(-std::numeric_limits<T>::infinity()) ? Vec<T>{} : weight;
        weight = index[v] < simd::broadcast(seen.first[r]) ? Vec<T>{} : weight;
        weight = index[v] >= simd::broadcast(seen.last[r]) ? Vec<T>{} : weight;
      }
      simd::store(weights + at, weight);
      if constexpr (Plain) {
        Vec<T> gradient = weight * (simd::load<T>(scores + at) - mean[v]) * scale;
        // The gradient of a hidden pair stays 0 for any values of v and dO.
        if constexpr (Masked) gradient = weight == Vec<T>{} ? Vec<T>{} : gradient;
        simd::store(scores + at, gradient);
      }
    }
}

/// Computes dS * scale from dP in s.scores and P in s.weights: dropout, dbias, softcap and scale.
template <class T>
void finish_block(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, ScoreBlock<T> block,
                  std::int64_t lane) {
  const ScoreRules<T>& rules = *pair.rules;
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

/// Applies the score rules and hides pairs that the schedule excludes.
template <class T>
void modify_products(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, ScoreBlock<T> block,
                     std::int64_t lane, T factor) {
  for (std::int64_t key = block.begin; key < block.end && factor != 1; ++key)
    for (std::int64_t i = 0; i < block.lanes; i += lanes<T>)
      simd::store(block.row(key) + i, factor * simd::load<T>(block.row(key) + i));
  const Progression queries = part_of(pair.queries, lane, std::min(block.lanes, pair.queries.count - lane));
  modify_scores(*pair.rules, pair.keys, queries, block, s.derivative ? s.derivative + lane : nullptr);
  if (pair.masked())
    hide_counted_by_key(*pair.program->schedule, *pair.run, p.scores.first_head + pair.head, pair.keys, queries, block);
}

/// Prefetch of rows of q or dO for lanes [lane, lane + group_lanes) of the next pair, if its queries follow this
/// pair's.
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

/// s.weights = scale * Q K^T for all pairs, bitwise as in the forward pass of few queries; 0 beyond the last query.
template <class T>
void multiply_directly(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s) {
  for (std::int64_t key = 0; key < round_up(pair.keys.count, rows_step); ++key)
    std::fill_n(s.weights + key * query_tile<T>, group_lanes<T>, T{});
  with_storage<T>(p.k.dtype, [&]<class S>(S) {
    const auto rows_of = [&](const View& view) {
      return gather(head_of<const S>(view, pair.batch, pair.head / p.group), pair.keys);
    };
    const auto operands = DirectOperands<T>::make(rows_of(p.k), rows_of(p.v), pair.keys.count, p.depth, p.v_depth);
    Prefetch nothing;
    operands.score(operands, s.direct_queries, pair.queries.count, {0, pair.keys.count}, nothing, s.weights,
                   query_tile<T>);
  });
}

/// Products for the visible part of lanes [lane, lane + group_lanes) of the pair: s.weights = scale * Q K^T, s.scores =
/// dO V^T. Without dO, s.scores = 0 for any V.
template <class T>
void multiply_group(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, std::int64_t lane) {
  Prefetch next_queries = next_rows(p, pair, p.q, lane), next_grads = next_rows(p, pair, p.grad_out, lane);
  if (p.direct) multiply_directly(p, pair, s);
  for (std::int64_t key = 0; key < pair.keys.count; key += rows_step) {
    next_queries.fetch(1);
    next_grads.fetch(1);
    if (!pair.block[key / rows_step].sees(lane, group_lanes<T>)) continue;
    const std::int64_t at = key * query_tile<T> + lane;
    if (!p.direct) multiply_block(s.weights + at, s.keys + key * p.depth, s.queries + lane * p.depth, p.depth);
    if (p.grad_out.data)
      multiply_block(s.scores + at, s.values + key * p.v_depth, s.grads + lane * p.v_depth, p.v_depth);
    else
      for (int r = 0; r < rows_step; ++r) std::fill_n(s.scores + at + r * query_tile<T>, group_lanes<T>, T{});
  }
}

/// s.weights = P (with dropout) and s.scores = dS * scale, for lanes [lane, lane + group_lanes) of the pair.
template <class T>
void score_group(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, std::int64_t lane) {
  const ScoreRules<T>& rules = *pair.rules;
  constexpr std::int64_t width = query_tile<T>, group = group_lanes<T>;
  const std::int64_t keys = pair.keys.count, members = std::min(group, pair.queries.count - lane);
  const auto sees = [&](std::int64_t key) { return pair.block[key / rows_step].sees(lane, group); };
  const auto masks = [&](std::int64_t key) {
    const auto& block = pair.block[key / rows_step];
    return block.full_begin > lane || block.full_end < lane + members || pair.hides_pairs();
  };
  if (!s.pairs.product) multiply_group(p, pair, s, lane);
  constexpr decltype(&weigh_rows<true, true, T>) weigh[2][2] = {
      {weigh_rows<false, false, T>, weigh_rows<false, true, T>},
      {weigh_rows<true, false, T>, weigh_rows<true, true, T>}};
  const bool modified = rules.modifies() || pair.masked();
  const bool plain = !rules.drops && rules.softcap == 0 && !p.gradients.dbias.data;
  const T scale = static_cast<T>(p.scores.scale);
  // Packed queries include the scale; operands of pair products do not.
  const T factor = s.pairs.product ? scale : T(1);
  for (std::int64_t key = 0, end = 0; key < keys; key = end) {
    end = key + rows_step;
    if (!sees(key)) continue;
    const bool masked = masks(key);
    while (end < keys && sees(end) && masks(end) == masked) end += rows_step;
    const ScoreBlock<T> block{s.weights + lane, width, key, std::min(end, keys), group};
    if (modified) modify_products(p, pair, s, block, lane, factor);
    const std::int64_t at = key * width + lane;
    weigh[plain][masked](end - key, s.weights + at, s.scores + at, s.lse + lane, s.delta + lane,
                         modified ? T(1) : factor, scale, {pair.first + key, pair.last + key, lane});
    if (!plain) finish_block(p, pair, s, block, lane);
  }
}

/// Zeroes the pairs that score_group() skipped.
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

// Operands, and the products added to gradients.

template <class T>
void load_query_rows(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s) {
  const std::int64_t count = pair.queries.count;
  if constexpr (std::is_same_v<T, float>)
    if (s.pairs.product)
      return s.pairs.load_queries(gather(head_of<const BFloat16>(p.q, pair.batch, pair.head), pair.queries),
                                  gather(head_of<const BFloat16>(p.grad_out, pair.batch, pair.head), pair.queries),
                                  count);
  const Range all{0, count};
  const T scale = static_cast<T>(p.scores.scale);
  with_storage<T>(p.q.dtype, [&]<class S>(S) {
    const auto q = gather(head_of<const S>(p.q, pair.batch, pair.head), pair.queries);
    if (p.direct)
      load_direct_queries<T>(s.direct_queries, q, count, p.depth, scale);
    else
      pack_queries<T>(s.queries, q, all, p.depth, scale);
    if (pair.want_keys) pack_rows<T>(s.query_rows, q, all, p.depth, query_panel<T>);
  });
  if (p.grad_out.data) {
    with_storage<T>(p.grad_out.dtype, [&]<class S>(S) {
      const auto grad = gather(head_of<const S>(p.grad_out, pair.batch, pair.head), pair.queries);
      pack_queries<T>(s.grads, grad, all, p.v_depth, T(1));
      if (pair.want_keys) pack_rows<T>(s.grad_rows, grad, all, p.v_depth, query_panel<T>);
    });
  } else {
    std::fill_n(s.grads, query_tile<T> * p.v_depth, T{});
  }
}

/// Zeroes non-finite rows of Q and dO in sums over queries, unless every pair counts.
template <class T>
void hide_wild_queries(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s) {
  const auto hide = [&](const View& from, WildRows& wild, T* rows, std::int64_t padded, std::uint32_t* pairs) {
    wild.count = 0;
    if (pair.full || !from.data) return;
    with_storage<T>(from.dtype, [&]<class S>(S) {
      find_wild_rows(gather(head_of<const S>(from, pair.batch, pair.head), pair.queries), pair.queries.count,
                     from.shape[3], wild);
    });
    for (std::int64_t n = 0; n < wild.count; ++n)
      if (s.pairs.product)
        clear_pair_row(pairs, wild.row[n], padded);
      else
        clear_packed_row(rows, wild.row[n], padded, query_panel<T>);
  };
  hide(p.q, *s.wild_queries, s.query_rows, p.padded, s.pairs.query_pairs);
  hide(p.grad_out, *s.wild_grads, s.grad_rows, p.v_padded, s.pairs.grad_pairs);
}

/// Calls f(key, lane) for the pairs that count among these keys and lanes.
template <class T, class F>
void for_each_counted(const BackwardCall& p, const TilePair<T>& pair, Range keys, Range lanes_of, const F& f) {
  for (std::int64_t key = keys.begin; key < keys.end; ++key)
    for (std::int64_t lane = lanes_of.begin; lane < lanes_of.end; ++lane)
      if (pair.counts(p.scores.first_head + pair.head, key, lane)) f(key, lane);
}

/// to += weight * row, up to a multiple of lanes<T>.
template <class T, class S>
void add_row(T* to, T weight, const S* row, std::int64_t columns) {
  for (std::int64_t j = 0; j < columns; j += lanes<T>)
    simd::store(to + j, simd::load<T>(to + j) + weight * simd::load_partial<T>(row + j, columns - j));
}

/// Adds the contributions of rows zeroed by hide_wild_queries() to dk and dv.
template <class T>
void add_wild_queries(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s) {
  const auto add = [&](T* to, std::int64_t padded, const T* of, const View& from, const WildRows& wild) {
    for (std::int64_t n = 0; n < wild.count; ++n)
      with_storage<T>(from.dtype, [&]<class S>(S) {
        const std::int64_t at = wild.row[n];
        const S* row = gather(head_of<const S>(from, pair.batch, pair.head), pair.queries).row(at);
        for_each_counted(p, pair, {0, pair.keys.count}, {at, at + 1}, [&](std::int64_t key, std::int64_t lane) {
          add_row(to + key * padded, of[key * query_tile<T> + lane], row, from.shape[3]);
        });
      });
  };
  if (p.gradients.dv.data && p.grad_out.data) add(s.dv, p.v_padded, s.weights, p.grad_out, *s.wild_grads);
  if (p.gradients.dk.data) add(s.dk, p.padded, s.scores, p.q, *s.wild_queries);
}

/// Packed rows never contain non-finite keys: this adds their contributions to dq.
template <class T>
void add_wild_keys(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, T* dq,
                   std::int64_t stride) {
  for (std::int64_t n = 0; n < s.wild_keys->count; ++n)
    with_storage<T>(p.k.dtype, [&]<class S>(S) {
      const std::int64_t at = s.wild_keys->row[n];
      const S* row = gather(head_of<const S>(p.k, pair.batch, pair.head / p.group), pair.keys).row(at);
      for_each_counted(p, pair, {at, at + 1}, {0, pair.queries.count}, [&](std::int64_t key, std::int64_t lane) {
        add_row(dq + lane * stride, s.scores[key * query_tile<T> + lane], row, p.depth);
      });
    });
}

template <class T>
void load_queries(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s) {
  load_query_rows(p, pair, s);
  const std::int64_t count = pair.queries.count;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const auto rows_of = [&](const View& view) {
    return view.as<const T>() + pair.batch * view.strides[0] + pair.head * view.strides[1];
  };
  const T *lse = rows_of(p.lse), *delta = rows_of(p.delta);
  for (std::int64_t i = 0; i < query_tile<T>; ++i) {
    const std::int64_t row = pair.queries.row + i * pair.queries.stride;
    const bool none = i >= count || lse[row * p.lse.strides[2]] == -infinity;  // lse = +infinity makes every weight 0
    s.lse[i] = none ? infinity : lse[row * p.lse.strides[2]];
    s.delta[i] = none ? T{} : delta[row * p.delta.strides[2]];
    if (!none || i >= count) continue;
    if (s.pairs.product) {
      s.pairs.clear_grad(i);
      continue;
    }
    // A query without keys has no effect, for any values in its row of dO.
    T* group = s.grads + i / group_lanes<T> * group_lanes<T> * p.v_depth + i % group_lanes<T>;
    for (std::int64_t j = 0; j < p.v_depth; ++j) group[j * group_lanes<T>] = T{};
    if (pair.want_keys)
      for (std::int64_t j = 0; j < p.v_depth; ++j)
        s.grad_rows[j / group_lanes<T> * query_panel<T> + i * group_lanes<T> + j % group_lanes<T>] = T{};
  }
  if (pair.want_keys) hide_wild_queries(p, pair, s);
  if (pair.run->period == 0) return;
  // m e^(s - lse) = e^(s - (lse - log m))
  log_multiplicities(*pair.program, *pair.run, pair.queries, s.log, query_tile<T>);
  for (std::int64_t i = 0; i < count; ++i) s.lse[i] -= s.log[i];
}

/// Adds to dk and dv of the key tile.
template <class T>
void add_key_gradients(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s) {
  if constexpr (std::is_same_v<T, float>)
    if (s.pairs.product) {
      const std::int64_t keys = pair.keys.count, count = round_up(pair.queries.count, group_lanes<T>);
      if (p.gradients.dv.data) s.pairs.add_to_keys(s.dv, p.v_padded, s.weights, s.pairs.grad_pairs, keys, count);
      if (p.gradients.dk.data) s.pairs.add_to_keys(s.dk, p.padded, s.scores, s.pairs.query_pairs, keys, count);
      return;
    }
  constexpr int width = query_tile<T>;
  // One panel of Q or dO for all keys, then the next: a panel fits the first-level cache, a whole operand does not.
  const auto add = [&](T* to, std::int64_t padded, const T* of, const T* rows) {
    for (std::int64_t j = 0; j < padded; j += group_lanes<T>, rows += query_panel<T>)
      for (std::int64_t key = 0; key < pair.keys.count; key += rows_step) {
        const auto& block = pair.block[key / rows_step];
        if (block.begin >= block.end) continue;
        const std::int64_t lane = block.begin, count = block.end - block.begin;
        add_product<T, width, 1>(to + key * padded + j, padded, std::min<std::int64_t>(group_lanes<T>, padded - j),
                                 count, of + key * width + lane, rows + lane * group_lanes<T>, group_lanes<T>, nullptr);
      }
  };
  if (p.gradients.dv.data && p.grad_out.data) add(s.dv, p.v_padded, s.weights, s.grad_rows);
  if (p.gradients.dk.data) add(s.dk, p.padded, s.scores, s.query_rows);
}

/// Adds to dq of the query tile. Its rows, of p.padded elements, are `stride` apart from `dq` on.
template <class T>
void add_query_gradients(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, T* dq,
                         std::int64_t stride) {
  if constexpr (std::is_same_v<T, float>)
    if (s.pairs.product) return s.pairs.add_to_queries(dq, stride, s.scores, pair.keys.count, pair.queries.count);
  constexpr int width = query_tile<T>;
  const std::int64_t keys = pair.keys.count, count = pair.queries.count, blocks = ceil_div(keys, rows_step);
  // score_group() skips groups that a block does not see. rows_step queries may span such a group.
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto& block = pair.block[b];
    if (block.begin >= block.end) continue;
    const Range written{round_down(block.begin, group_lanes<T>), round_up(block.end, group_lanes<T>)};
    const Range read{round_down(block.begin, rows_step), round_up(block.end, rows_step)};
    for (std::int64_t key = b * rows_step; key < std::min<std::int64_t>((b + 1) * rows_step, keys); ++key) {
      T* row = s.scores + key * width;
      for (std::int64_t i = read.begin; i < written.begin; ++i) row[i] = T{};
      for (std::int64_t i = written.end; i < read.end; ++i) row[i] = T{};
    }
  }
  struct Segment {
    std::int64_t query, key, end;  // keys seen by rows_step queries
  } segments[query_tile<T> / rows_step * (TilePair<T>::blocks / 2 + 1)];
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += rows_step)
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (!pair.block[b].sees(i, rows_step)) continue;
      std::int64_t key = b * rows_step;
      while (b + 1 < blocks && pair.block[b + 1].sees(i, rows_step)) ++b;
      std::int64_t end = std::min<std::int64_t>((b + 1) * rows_step, keys);
      while (key < end && !pair.sees(key, i, rows_step)) ++key;
      while (key < end && !pair.sees(end - 1, i, rows_step)) --end;
      segments[found++] = {i, key, end};
    }
  for (std::int64_t j = 0; j < p.padded; j += group_lanes<T>) {
    const std::int64_t columns = std::min<std::int64_t>(group_lanes<T>, p.padded - j);
    const T* key_rows = s.key_rows + j / group_lanes<T> * key_panel<T>;
    for (const Segment* part = segments; part < segments + found; ++part) {
      const std::int64_t i = part->query, rows = std::min<std::int64_t>(rows_step, count - i);
      T *to = dq + i * stride + j, *last = s.last_rows;
      const bool whole = rows == rows_step;  // otherwise the rows after the last belong to another item
      for (std::int64_t r = 0; r < rows && !whole; ++r) std::copy_n(to + r * stride, columns, last + r * p.padded);
      add_product<T, 1, width>(whole ? to : last, whole ? stride : p.padded, columns, part->end - part->key,
                               s.scores + part->key * width + i, key_rows + part->key * group_lanes<T>, group_lanes<T>,
                               nullptr);
      for (std::int64_t r = 0; r < rows && !whole; ++r) std::copy_n(last + r * p.padded, columns, to + r * stride);
    }
  }
}

}  // namespace poolgrad::kernels::attention
