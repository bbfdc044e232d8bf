// Backward attention on the CPU (Dao et al. 2022): weights are recomputed from lse; with delta_i = <dO_i, O_i> -
// dlse_i, dV = P^T dO, dS = P o (dO V^T - delta), dQ = scale dS K, dK = scale dS^T Q.
//
// Every element of dq, dk and dv is one chain of additions in the order of keys (dq) or of heads of the group and then
// queries (dk, dv), so how the work is cut changes no bit. With many heads one item owns a whole head and visits each
// pair of tiles once (five products); with few, items own key tiles for dk and dv, then query blocks for dq (seven).
#include <cmath>
#include <numbers>

#include "kernels/attention.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/workspace.h"
#include "kernels/dispatch.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

using namespace attention;

constexpr std::int64_t query_block = 288;  // of an item that owns queries only

/// Queries of a tile pair, and the row length of its scores.
template <class T>
constexpr int query_tile = group_step<T>;

struct Problem {
  BandSchedule schedule;
  View q, k, v, out, lse, grad_out, grad_lse, dq, dk, dv;
  double scale;
  std::int64_t queries, keys, q_heads, kv_heads, group, depth, v_depth, padded, v_padded;
};

/// What one item computes: all pairs of these queries and keys, for `heads` query heads from `head` on, which share one
/// kv head.
struct Item {
  std::int64_t batch, head, heads;
  Range queries, keys;
  bool want_dq, want_dkv;
};

template <class T>
struct Scratch {
  T *keys, *values, *key_rows, *queries, *grads, *query_rows, *grad_rows, *weights, *scores, *lse, *delta, *first,
      *last;
  T *dk, *dv, *dq;

  static std::int64_t carve(T* base, const Problem& p, std::int64_t dq_rows, Scratch* scratch) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t count) {
      T* part = base + used;
      used += round_up(count, lanes<T>);
      return part;
    };
    Scratch s{};
    s.keys = take(key_tile * p.depth + panel_slack<T>);
    s.values = take(key_tile * p.v_depth + panel_slack<T>);
    s.key_rows = take(key_tile * p.padded);
    s.queries = take(query_tile<T> * p.depth);
    s.grads = take(query_tile<T> * p.v_depth);
    s.query_rows = take(query_tile<T> * p.padded);
    s.grad_rows = take(query_tile<T> * p.v_padded);
    s.weights = take(key_tile * query_tile<T>);
    s.scores = take(key_tile * query_tile<T>);
    s.lse = take(query_tile<T>);
    s.delta = take(query_tile<T>);
    s.first = take(query_tile<T>);
    s.last = take(query_tile<T>);
    s.dk = take(key_tile * p.padded);
    s.dv = take(key_tile * p.v_padded);
    s.dq = take(dq_rows * p.padded);
    if (scratch) *scratch = s;
    return round_up(used, 64);
  }
};

/// weights = P and scores = dS * scale for the keys of a tile and one group of its queries, masked.
template <class T>
void score_group(const Problem& p, const Scratch<T>& s, Range tile, Range members, std::int64_t lane) {
  const Range any = intersect(keys_of_any(p.schedule, members, p.keys), tile);
  if (empty(any)) return;
  const Range all = intersect(keys_of_all(p.schedule, members, p.keys), tile);
  constexpr std::size_t vectors = 2;
  constexpr int width = query_tile<T>;
  const std::int64_t begin = round_down(any.begin - tile.begin, rows_step);
  const std::int64_t end = round_up(any.end - tile.begin, rows_step);
  for (std::int64_t i = 0; i < group_lanes<T>; ++i) {
    const Range seen = intersect(p.schedule.keys_of(std::min(members.begin + i, members.end - 1), p.keys), tile);
    s.first[lane + i] = static_cast<T>(seen.begin - tile.begin);
    s.last[lane + i] = static_cast<T>(seen.end - tile.begin);
  }
  Vec<T> lse[vectors], delta[vectors];
  for (std::size_t v = 0; v < vectors; ++v) {
    lse[v] = simd::load<T>(s.lse + lane + vector_offset<T>(v));
    delta[v] = simd::load<T>(s.delta + lane + vector_offset<T>(v));
  }
  for (std::int64_t key = begin; key < end; key += rows_step) {
    Vec<T> sum[rows_step][vectors];
    score_block<T, vectors>(sum, s.keys, key, s.queries + lane * p.depth, p.depth);
    const bool masked = key + tile.begin < all.begin || key + rows_step + tile.begin > all.end;
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < vectors; ++v) {
        Vec<T> weight = exp2_bounded<T>(sum[r][v] - lse[v]);
        if (masked) {
          const Vec<T> position = simd::broadcast(static_cast<T>(key + r));
          const std::int64_t at = lane + vector_offset<T>(v);
          weight = position < simd::load<T>(s.first + at) ? Vec<T>{} : weight;
          weight = position >= simd::load<T>(s.last + at) ? Vec<T>{} : weight;
        }
        simd::store(s.weights + (key + r) * width + lane + vector_offset<T>(v), weight);
      }
    }
    score_block<T, vectors>(sum, s.values, key, s.grads + lane * p.v_depth, p.v_depth);
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < vectors; ++v) {
        const std::int64_t at = (key + r) * width + lane + vector_offset<T>(v);
        const Vec<T> weight = simd::load<T>(s.weights + at);
        // A pair that is not admitted stays 0 whatever lies in v and dO.
        const Vec<T> gradient = weight * (sum[r][v] - delta[v]);
        simd::store(s.scores + at, masked ? (weight == Vec<T>{} ? Vec<T>{} : gradient) : gradient);
      }
    }
  }
}

/// dk and dv of a key tile from one query tile.
template <class T>
void add_key_gradients(const Problem& p, const Scratch<T>& s, Range tile, Range rows) {
  constexpr int width = query_tile<T>;
  const BandSchedule queries_of = p.schedule.transposed();
  for (std::int64_t i = 0; tile.begin + i < tile.end; i += rows_step) {
    const Range keys{tile.begin + i, std::min(tile.begin + i + rows_step, tile.end)};
    const Range seen = intersect(keys_of_any(queries_of, keys, p.queries), rows);
    if (empty(seen)) continue;
    const std::int64_t lane = seen.begin - rows.begin, count = seen.end - seen.begin, at = i * width + lane;
    add_product<T, width, 1>(s.dv + i * p.v_padded, p.v_padded, p.v_padded, count, s.weights + at,
                             s.grad_rows + lane * p.v_padded, p.v_padded, nullptr);
    add_product<T, width, 1>(s.dk + i * p.padded, p.padded, p.padded, count, s.scores + at,
                             s.query_rows + lane * p.padded, p.padded, nullptr);
  }
}

/// dq of a query tile from one key tile; `dq` has rows of p.padded elements, up to a multiple of rows_step.
template <class T>
void add_query_gradients(const Problem& p, const Scratch<T>& s, Range tile, Range rows, T* dq) {
  constexpr int width = query_tile<T>;
  for (std::int64_t i = 0; rows.begin + i < rows.end; i += rows_step) {
    const Range block{rows.begin + i, std::min(rows.begin + i + rows_step, rows.end)};
    const Range seen = intersect(keys_of_any(p.schedule, block, p.keys), tile);
    if (empty(seen)) continue;
    const std::int64_t key = seen.begin - tile.begin;
    add_product<T, 1, width>(dq + i * p.padded, p.padded, p.padded, seen.end - seen.begin, s.scores + key * width + i,
                             s.key_rows + key * p.padded, p.padded, nullptr);
  }
}

template <class S>
void load_queries(const Problem& p, const Item& item, std::int64_t head, Range rows, const Compute<S>* delta,
                  const Scratch<Compute<S>>& s) {
  using T = Compute<S>;
  const auto q = head_of<const S>(p.q, item.batch, head), grad = head_of<const S>(p.grad_out, item.batch, head);
  pack_queries<T>(s.queries, q, rows, p.depth, static_cast<T>(p.scale * std::numbers::log2e));
  pack_queries<T>(s.grads, grad, rows, p.v_depth, static_cast<T>(p.scale));
  if (item.want_dkv) {
    copy_rows<T>(s.query_rows, q, rows, p.depth, p.padded);
    copy_rows<T>(s.grad_rows, grad, rows, p.v_depth, p.v_padded);
  }
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T* lse = p.lse.as<const T>() + item.batch * p.lse.strides[0] + head * p.lse.strides[1];
  delta += (item.batch * p.q_heads + head) * p.queries;
  for (std::int64_t i = 0; i < query_tile<T>; ++i) {
    const std::int64_t row = rows.begin + i;
    const bool none = row >= rows.end || lse[row] == -infinity;  // +infinity makes every weight 0
    s.lse[i] = none ? infinity : lse[row] * static_cast<T>(std::numbers::log2e);
    s.delta[i] = none ? T{} : delta[row] * static_cast<T>(p.scale);
  }
}

template <class S>
void write_rows(Head<S> to, Range range, std::int64_t columns, const Compute<S>* from, std::int64_t padded) {
  using T = Compute<S>;
  for (std::int64_t i = range.begin; i < range.end; ++i, from += padded)
    for (std::int64_t j = 0; j < columns; j += lanes<T>)
      simd::store_partial(to.row(i) + j, simd::load<T>(from + j), columns - j);
}

template <class S>
void backward_item(const Problem& p, const Item& item, const Compute<S>* delta, const Scratch<Compute<S>>& s) {
  using T = Compute<S>;
  const std::int64_t kv_head = item.head / p.group;
  const auto k = head_of<const S>(p.k, item.batch, kv_head), v = head_of<const S>(p.v, item.batch, kv_head);
  const BandSchedule queries_of = p.schedule.transposed();
  const std::int64_t dq_rows = round_up(item.queries.end - item.queries.begin, query_tile<T>);
  if (item.want_dq) std::fill(s.dq, s.dq + item.heads * dq_rows * p.padded, T{});

  for (std::int64_t base = round_down(item.keys.begin, key_tile); base < item.keys.end; base += key_tile) {
    const Range tile{std::max(base, round_down(item.keys.begin, lanes<T>)), std::min(base + key_tile, item.keys.end)};
    const Range seen = intersect(keys_of_any(queries_of, tile, p.queries), item.queries);
    if (item.want_dkv) {
      std::fill(s.dk, s.dk + key_tile * p.padded, T{});
      std::fill(s.dv, s.dv + key_tile * p.v_padded, T{});
    }
    if (!empty(seen)) {
      pack_keys<T>(s.keys, k, tile, p.depth);
      pack_keys<T>(s.values, v, tile, p.v_depth);
      if (item.want_dq) copy_rows<T>(s.key_rows, k, tile, p.depth, p.padded);
    }
    for (std::int64_t h = 0; h < item.heads; ++h) {
      for (std::int64_t first = round_down(seen.begin, query_tile<T>); first < seen.end; first += query_tile<T>) {
        const Range rows{std::max(first, item.queries.begin), std::min(first + query_tile<T>, item.queries.end)};
        if (empty(rows)) continue;
        load_queries<S>(p, item, item.head + h, rows, delta, s);
        std::fill(s.weights, s.weights + key_tile * query_tile<T>, T{});  // blocks of rows may span two groups
        std::fill(s.scores, s.scores + key_tile * query_tile<T>, T{});
        for (std::int64_t lane = 0; rows.begin + lane < rows.end; lane += group_lanes<T>)
          score_group<T>(p, s, tile, {rows.begin + lane, std::min(rows.begin + lane + group_lanes<T>, rows.end)}, lane);
        if (item.want_dkv) add_key_gradients<T>(p, s, tile, rows);
        if (item.want_dq)
          add_query_gradients<T>(p, s, tile, rows, s.dq + (h * dq_rows + rows.begin - item.queries.begin) * p.padded);
      }
    }
    if (item.want_dkv) {
      write_rows<S>(head_of<S>(p.dk, item.batch, kv_head), tile, p.depth, s.dk, p.padded);
      write_rows<S>(head_of<S>(p.dv, item.batch, kv_head), tile, p.v_depth, s.dv, p.v_padded);
    }
  }
  if (item.want_dq)
    for (std::int64_t h = 0; h < item.heads; ++h)
      write_rows<S>(head_of<S>(p.dq, item.batch, item.head + h), item.queries, p.depth, s.dq + h * dq_rows * p.padded,
                    p.padded);
}

/// delta_i = <dO_i, O_i> - dlse_i.
template <class S>
void compute_delta(const Problem& p, Compute<S>* delta) {
  using T = Compute<S>;
  constexpr std::int64_t chunk = 64;
  parallel_ranges(p.q.shape[0] * p.q_heads * p.queries, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i % p.queries, head = i / p.queries % p.q_heads, batch = i / p.queries / p.q_heads;
      const S* grad = head_of<const S>(p.grad_out, batch, head).row(row);
      const S* out = head_of<const S>(p.out, batch, head).row(row);
      Vec<T> sum{};
      for (std::int64_t j = 0; j < p.v_depth; j += lanes<T>)
        sum += simd::load_partial<T>(grad + j, p.v_depth - j) * simd::load_partial<T>(out + j, p.v_depth - j);
      const View& g = p.grad_lse;
      const std::int64_t at = batch * g.strides[0] + head * g.strides[1] + row * g.strides[2];
      delta[i] = simd::sum<T>(sum) - (g.data ? g.as<const T>()[at] : T{});
    }
  });
}

template <class S>
void backward(Problem p, Compute<S>* delta) {
  using T = Compute<S>;
  p.padded = round_up(p.depth, lanes<T>);
  p.v_padded = round_up(p.v_depth, lanes<T>);
  compute_delta<S>(p, delta);
  const auto run = [&](std::int64_t items, std::int64_t dq_rows, const auto& item_of) {
    const std::int64_t size = Scratch<T>::carve(nullptr, p, dq_rows, nullptr);
    const Workspace<T> memory("attention", size * std::min<std::int64_t>(num_threads(), items));
    parallel_items(items, [&](std::int64_t index, int worker) {
      Scratch<T> scratch;
      Scratch<T>::carve(memory.data() + size * worker, p, dq_rows, &scratch);
      backward_item<S>(p, item_of(index), delta, scratch);
    });
  };
  const std::int64_t heads = p.q.shape[0] * p.kv_heads, threads = num_threads();
  const std::int64_t rounds = (heads + threads - 1) / threads;  // of whole heads
  if (5 * rounds * threads <= 7 * heads) {
    run(heads, p.group * round_up(p.queries, query_tile<T>), [&](std::int64_t head) {
      return Item{head / p.kv_heads, head % p.kv_heads * p.group, p.group, {0, p.queries}, {0, p.keys}, true, true};
    });
    return;
  }
  // Whichever end of the sequence has more work goes first.
  const BandSchedule queries_of = p.schedule.transposed();
  const auto length = [](Range range) { return range.end - range.begin; };
  const std::int64_t tiles = (p.keys + key_tile - 1) / key_tile, blocks = (p.queries + query_block - 1) / query_block;
  const bool late_tiles = length(queries_of.keys_of(p.keys - 1, p.queries)) > length(queries_of.keys_of(0, p.queries));
  run(heads * tiles, 0, [&](std::int64_t index) {
    const std::int64_t head = index / tiles, turn = index % tiles;
    const std::int64_t begin = (late_tiles ? tiles - 1 - turn : turn) * key_tile;
    return Item{head / p.kv_heads,
                head % p.kv_heads * p.group,
                p.group,
                {0, p.queries},
                {begin, std::min(begin + key_tile, p.keys)},
                false,
                true};
  });
  const bool late_blocks = length(p.schedule.keys_of(p.queries - 1, p.keys)) > length(p.schedule.keys_of(0, p.keys));
  run(heads * p.group * blocks, query_block, [&](std::int64_t index) {
    const std::int64_t head = index / blocks, turn = index % blocks;
    const std::int64_t begin = (late_blocks ? blocks - 1 - turn : turn) * query_block;
    const Range queries{begin, std::min(begin + query_block, p.queries)};
    return Item{head / p.q_heads, head % p.q_heads, 1, queries, keys_of_any(p.schedule, queries, p.keys), true, false};
  });
}

}  // namespace

void attention_backward(Stream stream, const BandSchedule& schedule, double scale, View q, View k, View v,
                        View out, View lse, View grad_out, View grad_lse, View dq, View dk, View dv) {
  const std::int64_t rows = q.shape[0] * q.shape[1] * q.shape[2];
  const auto run = [&]<class S>(S) {
    using T = Compute<S>;
    const Workspace<T> delta(stream, "attention", rows);
    if (!runs_on_cpu(stream, "attention backward",
                     attention_cost(stream, schedule, 3.5, q, k, v, out, lse, grad_out, dq, dk, dv)))
      return;
    if (q.shape[0] == 0 || q.shape[2] == 0) return;
    backward<S>({schedule,
                 q,
                 k,
                 v,
                 out,
                 lse,
                 grad_out,
                 grad_lse,
                 dq,
                 dk,
                 dv,
                 scale,
                 q.shape[1],
                 k.shape[1],
                 q.shape[2],
                 k.shape[2],
                 q.shape[2] / k.shape[2],
                 q.shape[3],
                 v.shape[3],
                 0,
                 0},
                delta.data());
  };
  switch (q.dtype) {
    case DType::f64: return run(double{});
    case DType::f32: return run(float{});
    case DType::f16: return run(Half{});
    default: return run(BFloat16{});
  }
}

}  // namespace poolgrad::kernels
