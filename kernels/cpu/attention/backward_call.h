// Shared parts of the backward pass: the call, the scratch of a thread, a pair of tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/attention/direct.h"
#include "kernels/cpu/attention/pairs.h"
#include "kernels/cpu/attention/scores.h"
#include "kernels/cpu/attention/tiles.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::attention {

/// Queries of a tile pair, and the row length of its scores: 384 bytes. More queries would load and store the sums of
/// dk and dv less often.
template <class T>
inline constexpr int query_tile = round_up(384 / static_cast<int>(sizeof(T)), group_step<T>);

/// Maximum number of keys of a tile pair. More keys load queries less often, while the tiles fit the second-level
/// cache.
inline constexpr std::int64_t owned_keys = 192;

/// Elements of a panel of rows, see pack_rows().
template <class T>
inline constexpr std::int64_t key_panel = owned_keys* std::int64_t{group_lanes<T>};
template <class T>
inline constexpr std::int64_t query_panel = query_tile<T>* std::int64_t{group_lanes<T>};

/// Data shared by all work items of a call.
struct BackwardCall {
  AttentionScores scores;
  View q, k, v, lse, delta, grad_out;
  AttentionGradients gradients;
  PairProduct product = nullptr;  // for bf16; null: products are in the compute type

  std::int64_t queries = q.shape[1], q_heads = q.shape[2], kv_heads = k.shape[2], group = q_heads / kv_heads;
  std::int64_t depth = q.shape[3], v_depth = v.shape[3];
  std::int64_t vector = product ? pair_step : q.dtype == DType::f64 ? lanes<double> : lanes<float>;
  std::int64_t padded = round_up(depth, vector), v_padded = round_up(v_depth, vector);

  /// The forward pass computed all scores by score_directly(). The backward pass repeats its bits, so exp(score - lse)
  /// has no error from another summation order.
  bool direct = queries <= direct_rows && !product;
};

/// Calls f(S{}) with the storage type of `dtype`; it must compute in T.
template <class T, class F>
void with_storage(DType dtype, const F& f) {
  if constexpr (sizeof(T) == 8) {
    f(double{});
  } else {
    if (dtype == DType::f32) return f(float{});
    if (dtype == DType::f16) return f(Half{});
    f(BFloat16{});
  }
}

// Accumulators for dq of one head in the backward pass: in place, or in scratch that is copied out afterwards.

/// Writes rows of a head, in T, to the rows of a gradient.
template <class T>
void write_rows(const View& to, std::int64_t batch, std::int64_t head, const Progression& rows, const T* from,
                std::int64_t padded, bool accumulate) {
  const std::int64_t columns = to.shape[3];
  with_storage<T>(to.dtype, [&]<class S>(S) {
    const auto out = gather(head_of<S>(to, batch, head), rows);
    for (std::int64_t i = 0; i < rows.count; ++i, from += padded)
      for (std::int64_t j = 0; j < columns; j += lanes<T>) {
        Vec<T> value = simd::load<T>(from + j);
        if (accumulate) value += simd::load_partial<T>(out.row(i) + j, columns - j);
        simd::store_partial(out.row(i) + j, value, columns - j);
      }
  });
}

/// Window of dq rows from `origin` on; rows [done, entered) are being accumulated.
template <class T>
struct QueryRows {
  const BackwardCall* call;
  std::int64_t batch, head;
  bool direct;  // in place
  T* data;
  std::int64_t stride, capacity, origin, done, entered;

  T* row(std::int64_t i) const { return data + (i - origin) * stride; }

  /// Zeroes the rows before `end`.
  void enter(std::int64_t end) {
    if (end - origin > capacity && end > entered) {
      std::copy(row(done), row(entered), data);
      origin = done;
    }
    for (; entered < end; ++entered)
      if (!direct || !call->gradients.accumulate) std::fill_n(row(entered), call->padded, T{});
  }
  /// Marks the rows before `end` as complete.
  void leave(std::int64_t end) {
    while (done < end) {
      const std::int64_t rows = std::min(end - done, capacity);
      enter(done + rows);
      if (!direct)
        write_rows(call->gradients.dq, batch, head, {done, 1, rows, 0, 1}, row(done), call->padded,
                   call->gradients.accumulate);
      done += rows;
    }
  }
};

/// Scratch of one thread, carved out of one allocation.
template <class T>
struct TileScratch {
  T *keys, *values, *key_rows, *dk, *dv;                            // of a key tile
  T *queries, *grads, *query_rows, *grad_rows, *lse, *delta, *log;  // of a query tile
  T* direct_queries;                 // the query tile's rows, scaled; null unless p.direct
  T *weights, *scores, *derivative;  // of the pair of tiles
  T *last_rows, *dq;
  WildRows *wild_keys, *wild_queries, *wild_grads;  // rows with NaN or infinity in K, Q and dO
  QueryRows<T>* rows;                               // one per head of a group
  GradientPairs pairs;

  /// Sets the pointers, unless `scratch` is null, and returns the size in elements.
  static std::int64_t carve(T* base, const BackwardCall& p, std::int64_t dq_rows, TileScratch* scratch) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t count) {
      T* part = base == nullptr ? nullptr : base + used;
      used += round_up(count, lanes<T>);
      return part;
    };
    TileScratch s{};
    s.keys = take(owned_keys * p.depth + panel_slack<T>);
    s.values = take(owned_keys * p.v_depth + panel_slack<T>);
    s.key_rows = take(owned_keys * round_up(p.depth, group_lanes<T>));
    s.dk = take(owned_keys * p.padded);
    s.dv = take(owned_keys * p.v_padded);
    s.queries = take(query_tile<T> * p.depth);
    s.direct_queries = p.direct ? take(direct_rows * round_up(p.depth, lanes<T>)) : nullptr;
    s.grads = take(query_tile<T> * p.v_depth);
    s.query_rows = take(query_tile<T> * round_up(p.depth, group_lanes<T>));
    s.grad_rows = take(query_tile<T> * round_up(p.v_depth, group_lanes<T>));
    s.lse = take(query_tile<T>);
    s.delta = take(query_tile<T>);
    s.log = take(query_tile<T>);
    s.weights = take(owned_keys * query_tile<T>);
    s.scores = take(owned_keys * query_tile<T>);
    s.derivative = p.scores.softcap != 0 ? take(owned_keys * query_tile<T>) : nullptr;
    s.last_rows = take(rows_step * p.padded);
    s.dq = take(dq_rows * p.padded);
    for (WildRows** wild : {&s.wild_keys, &s.wild_queries, &s.wild_grads})
      *wild = reinterpret_cast<WildRows*>(take(ceil_div(sizeof(WildRows), sizeof(T))));
    s.rows = reinterpret_cast<QueryRows<T>*>(
        take(ceil_div(p.group * std::int64_t{sizeof(QueryRows<T>)}, std::int64_t{sizeof(T)})));
    if constexpr (std::is_same_v<T, float>) {
      s.pairs = {p.product, owned_keys, query_tile<T>, p.depth, p.v_depth, p.padded, p.v_padded};
      if (p.product) s.pairs.carve(take);
    }
    if (scratch) *scratch = s;
    return round_up(used, 64);
  }
};

/// Visibility in a tile pair: key k is seen by the query lanes [first[k], last[k]).
template <class T>
struct TilePair {
  static constexpr std::int64_t blocks = owned_keys / rows_step;

  Progression keys, queries;
  const AttentionProgram* program;  // its rows are keys
  const AttentionRun* run;          // the run that contains the queries
  const ScoreRules<T>* rules;       // rules of the head
  std::int64_t batch, head;
  bool want_keys;    // dk and dv are wanted
  bool full = true;  // every pair counts
  T first[owned_keys] = {}, last[owned_keys] = {};
  struct Block {
    std::int64_t begin, end;            // lanes that see some key of the block
    std::int64_t full_begin, full_end;  // lanes that see all keys of the block
    bool sees(std::int64_t lane, std::int64_t count) const { return begin < lane + count && end > lane; }
  } block[blocks];

  bool sees(std::int64_t key, std::int64_t lane, std::int64_t count) const {
    return first[key] < static_cast<T>(lane + count) && last[key] > static_cast<T>(lane);
  }

  /// `seen` holds an interval of steps for every key. Steps count from `base` steps before the first of `queries`.
  void set_intervals(const Interval* seen, std::int64_t base) {
    full = !hides_pairs();
    for (std::int64_t b = 0; b < blocks; ++b) {
      Block& all = block[b] = {queries.count, 0, 0, queries.count};
      for (std::int64_t k = b * rows_step; k < std::min<std::int64_t>((b + 1) * rows_step, keys.count); ++k) {
        const std::int64_t begin = std::clamp<std::int64_t>(seen[k].begin - base, 0, queries.count);
        const std::int64_t end = std::clamp<std::int64_t>(seen[k].end - base, 0, queries.count);
        first[k] = static_cast<T>(begin);
        last[k] = static_cast<T>(end);
        if (begin < end) {
          all.begin = std::min(all.begin, begin);
          all.end = std::max(all.end, end);
        }
        all.full_begin = std::max(all.full_begin, begin);
        all.full_end = std::min(all.full_end, end);
      }
      if (b * rows_step < keys.count) full = full && all.full_begin == 0 && all.full_end == queries.count;
    }
  }
  bool masked() const { return run->has(AttentionRun::masked); }
  /// Whether single pairs may be hidden.
  bool hides_pairs() const { return masked() || rules->bias; }
  /// Whether the pair counts; `h` is the head of the schedule.
  bool counts(std::int64_t h, std::int64_t key, std::int64_t lane) const {
    return sees(key, lane, 1) && !rules->hides(queries.row + lane * queries.stride, keys.row + key * keys.stride) &&
           (!masked() ||
            program->keeps(*run, h, keys.position + key * keys.step, queries.position + lane * queries.step));
  }
};

}  // namespace poolgrad::kernels::attention
