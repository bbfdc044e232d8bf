// One pair of tiles of the backward pass: keys by queries, lanes = queries. Weights are recomputed from lse (Dao et al.
// 2022); with dP = dO V^T, dS = P (dP - delta): dV += P^T dO, dK += scale dS^T Q, dQ += scale dS K.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention/backward_scores.h"

namespace poolgrad::kernels::attention {

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
    pack_queries<T>(s.queries, q, all, p.depth, scale * static_cast<T>(std::numbers::log2e));
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

/// Rows of Q and dO that are not finite count as 0 in sums over queries, unless all keys see them.
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

/// Calls f(key, lane) for the pairs that count, of one key or of one lane.
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

/// What hide_wild_queries() took out of dk and dv.
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

/// Keys that are not finite are never in the packed rows: what they add to dq.
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
    const bool none = i >= count || lse[row * p.lse.strides[2]] == -infinity;  // +infinity makes every weight 0
    s.lse[i] = none ? infinity : lse[row * p.lse.strides[2]] * static_cast<T>(std::numbers::log2e);
    s.delta[i] = none ? T{} : delta[row * p.delta.strides[2]];
    if (!none || i >= count) continue;
    if (s.pairs.product) {
      s.pairs.clear_grad(i);
      continue;
    }
    // A query that sees nothing stays without any effect, whatever lies in its row of dO.
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

/// dk and dv of the key tile.
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
  // One panel of Q or dO for all keys, then the next: it stays in the first-level cache, which holds no whole operand.
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

/// dq of the query tile; its rows, of p.padded elements, are `stride` apart from `dq` on.
template <class T>
void add_query_gradients(const BackwardCall& p, const TilePair<T>& pair, const TileScratch<T>& s, T* dq,
                         std::int64_t stride) {
  if constexpr (std::is_same_v<T, float>)
    if (s.pairs.product) return s.pairs.add_to_queries(dq, stride, s.scores, pair.keys.count, pair.queries.count);
  constexpr int width = query_tile<T>;
  const std::int64_t keys = pair.keys.count, count = pair.queries.count, blocks = ceil_div(keys, rows_step);
  // score_group() leaves out groups that a block does not see, which rows_step queries may reach into.
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
    std::int64_t query, key, end;  // what rows_step queries see
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
      const bool whole = rows == rows_step;  // else the rows after the last belong to somebody else
      for (std::int64_t r = 0; r < rows && !whole; ++r) std::copy_n(to + r * stride, columns, last + r * p.padded);
      add_product<T, 1, width>(whole ? to : last, whole ? stride : p.padded, columns, part->end - part->key,
                               s.scores + part->key * width + i, key_rows + part->key * group_lanes<T>, group_lanes<T>,
                               nullptr);
      for (std::int64_t r = 0; r < rows && !whole; ++r) std::copy_n(last + r * p.padded, columns, to + r * stride);
    }
  }
}

}  // namespace poolgrad::kernels::attention
