// Forward attention on the CPU: online softmax (Milakov & Gimelshein 2018; Dao et al. 2022) over key tiles.
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

/// Everything about one call that its work items share.
struct Problem {
  BandSchedule schedule;
  View q, k, v, out, lse;
  double scale;
  std::int64_t queries, keys, q_heads, group, depth, v_depth, v_padded, block;
};

/// Scratch of one thread, carved out of one allocation. Sizes in elements.
template <class T>
struct Scratch {
  T *keys, *values, *queries, *scores, *out, *maximum, *sum, *factor, *first, *last;

  static std::int64_t carve(T* base, const Problem& p, Scratch* scratch) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t count) {
      T* part = base + used;
      used += round_up(count, lanes<T>);
      return part;
    };
    Scratch s{};
    s.keys = take(key_tile * p.depth);
    s.values = take(key_tile * p.v_padded);
    s.queries = take(p.block * p.depth);
    s.scores = take(key_tile * group_lanes<T>);
    s.out = take(p.block * p.v_padded);
    s.maximum = take(p.block);
    s.sum = take(p.block);
    s.factor = take(group_lanes<T>);
    s.first = take(group_lanes<T>);
    s.last = take(group_lanes<T>);
    if (scratch) *scratch = s;
    return round_up(used, 64);
  }
};

/// One key tile for one group of queries: scores, their running maximum and sum, and the product with V.
/// `tile` are the packed keys, `members` the queries of the group, `lane` the group's first query within the block.
template <class T, std::size_t Vectors>
void visit_tile(const Problem& p, const Scratch<T>& s, Range tile, Range members, std::int64_t lane) {
  const Range any = intersect(keys_of_any(p.schedule, members, p.keys), tile);
  if (empty(any)) return;
  const Range all = intersect(keys_of_all(p.schedule, members, p.keys), tile);
  constexpr int width = group_lanes<T>;
  const std::int64_t begin = round_down(any.begin - tile.begin, rows_step);
  const std::int64_t end = round_up(any.end - tile.begin, rows_step);
  const auto unmasked = [&](std::int64_t key) {
    return key + tile.begin >= all.begin && key + rows_step + tile.begin <= all.end;
  };
  if (!unmasked(begin) || !unmasked(end - rows_step)) {
    for (std::int64_t i = 0; i < vector_offset<T>(Vectors); ++i) {
      const Range seen = intersect(p.schedule.keys_of(std::min(members.begin + i, members.end - 1), p.keys), tile);
      s.first[i] = static_cast<T>(seen.begin - tile.begin);
      s.last[i] = static_cast<T>(seen.end - tile.begin);
    }
  }
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T* queries = s.queries + lane * p.depth;
  Vec<T> old_maximum[Vectors], maximum[Vectors];
  for (std::size_t v = 0; v < Vectors; ++v)
    maximum[v] = old_maximum[v] = simd::load<T>(s.maximum + lane + vector_offset<T>(v));

  for (std::int64_t key = begin; key < end; key += rows_step) {
    Vec<T> sum[rows_step][Vectors];
    score_block<T, Vectors>(sum, s.keys, key, queries, p.depth);
    if (!unmasked(key)) {
#pragma GCC unroll 8
      for (int r = 0; r < rows_step; ++r) {
        const Vec<T> position = simd::broadcast(static_cast<T>(key + r));
        for (std::size_t v = 0; v < Vectors; ++v) {
          const Vec<T> first = simd::load<T>(s.first + vector_offset<T>(v)),
                       last = simd::load<T>(s.last + vector_offset<T>(v));
          sum[r][v] = position < first ? simd::broadcast(-infinity) : sum[r][v];
          sum[r][v] = position >= last ? simd::broadcast(-infinity) : sum[r][v];
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < Vectors; ++v) {
        maximum[v] = simd::max(sum[r][v], maximum[v]);
        simd::store(s.scores + (key + r) * width + vector_offset<T>(v), sum[r][v]);
      }
    }
  }

  Vec<T> shift[Vectors], sum[Vectors];
  for (std::size_t v = 0; v < Vectors; ++v) {
    const Vec<T> nothing = simd::broadcast(-infinity);
    shift[v] = maximum[v] == nothing ? Vec<T>{} : maximum[v];  // a query that has seen no key yet
    const Vec<T> factor = exp2_bounded<T>(old_maximum[v] - shift[v]);
    sum[v] = factor * simd::load<T>(s.sum + lane + vector_offset<T>(v));
    simd::store(s.factor + vector_offset<T>(v), factor);
    simd::store(s.maximum + lane + vector_offset<T>(v), maximum[v]);
  }
  for (std::int64_t key = begin; key < end; key += rows_step) {
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < Vectors; ++v) {
        T* score = s.scores + (key + r) * width + vector_offset<T>(v);
        const Vec<T> weight = exp2_bounded<T>(simd::load<T>(score) - shift[v]);
        sum[v] += weight;
        simd::store(score, weight);
      }
    }
  }
  for (std::size_t v = 0; v < Vectors; ++v) simd::store(s.sum + lane + vector_offset<T>(v), sum[v]);

  const std::int64_t count = members.end - members.begin;
  for (std::int64_t i = 0; i < count; i += rows_step) {
    const Range rows{members.begin + i, std::min(members.begin + i + rows_step, members.end)};
    const Range seen = intersect(keys_of_any(p.schedule, rows, p.keys), tile);
    if (empty(seen)) continue;
    const std::int64_t key = seen.begin - tile.begin;
    add_product<T, 1, width>(s.out + (lane + i) * p.v_padded, p.v_padded, p.v_padded, seen.end - seen.begin,
                             s.scores + key * width + i, s.values + key * p.v_padded, p.v_padded, s.factor + i);
  }
}

/// All keys for one block of queries of one head.
template <class S>
void attend_block(const Problem& p, std::int64_t batch, std::int64_t head, Range rows, const Scratch<Compute<S>>& s) {
  using T = Compute<S>;
  const auto q = head_of<const S>(p.q, batch, head);
  const auto k = head_of<const S>(p.k, batch, head / p.group), v = head_of<const S>(p.v, batch, head / p.group);
  const std::int64_t count = rows.end - rows.begin, padded = round_up(count, group_lanes<T>);
  pack_queries<T>(s.queries, q, rows, p.depth, static_cast<T>(p.scale * std::numbers::log2e));
  std::fill(s.out, s.out + padded * p.v_padded, T{});
  std::fill(s.maximum, s.maximum + padded, -std::numeric_limits<T>::infinity());
  std::fill(s.sum, s.sum + padded, T{});

  const Range seen = keys_of_any(p.schedule, rows, p.keys);
  for (std::int64_t base = round_down(seen.begin, key_tile); base < seen.end; base += key_tile) {
    const Range tile{std::max(base, round_down(seen.begin, lanes<T>)), std::min(base + key_tile, seen.end)};
    pack_keys<T>(s.keys, k, tile, p.depth);
    copy_rows<T>(s.values, v, tile, p.v_depth, p.v_padded);
    for (std::int64_t lane = 0; lane < count; lane += group_lanes<T>) {
      const Range members{rows.begin + lane, std::min(rows.begin + lane + group_lanes<T>, rows.end)};
      if (members.end - members.begin > lanes<T>)
        visit_tile<T, 2>(p, s, tile, members, lane);
      else
        visit_tile<T, 1>(p, s, tile, members, lane);
    }
  }

  const auto out = head_of<S>(p.out, batch, head);
  T* lse = p.lse.as<T>() + batch * p.lse.strides[0] + head * p.lse.strides[1];
  for (std::int64_t i = 0; i < count; ++i) {
    const T sum = s.sum[i], inverse = sum > T{} ? T(1) / sum : T{};
    for (std::int64_t j = 0; j < p.v_depth; j += lanes<T>)
      simd::store_partial(out.row(rows.begin + i) + j, inverse * simd::load<T>(s.out + i * p.v_padded + j),
                          p.v_depth - j);
    lse[rows.begin + i] = static_cast<T>(std::numbers::ln2) * (s.maximum[i] + std::log2(sum));
  }
}

template <class S>
void forward(Problem p) {
  using T = Compute<S>;
  p.v_padded = round_up(p.v_depth, lanes<T>);
  const std::int64_t heads = p.out.shape[0] * p.q_heads;
  // Large blocks pack each key tile less often; enough of them keep every core busy. Neither changes any result.
  p.block = 256;
  while (p.block > group_lanes<T> && heads * ((p.queries + p.block - 1) / p.block) < 32) p.block /= 2;
  p.block = std::min(p.block, round_up(p.queries, group_lanes<T>));
  const std::int64_t blocks = (p.queries + p.block - 1) / p.block;
  const auto rows_of = [&](std::int64_t block) {
    return Range{block * p.block, std::min((block + 1) * p.block, p.queries)};
  };
  const auto cost = [&](std::int64_t block) {
    const Range seen = keys_of_any(p.schedule, rows_of(block), p.keys);
    return seen.end - seen.begin;
  };
  const bool last_is_longest = cost(blocks - 1) > cost(0);
  const std::int64_t items = heads * blocks;
  const std::int64_t size = Scratch<T>::carve(nullptr, p, nullptr);
  const Workspace<T> memory("attention", size * std::min<std::int64_t>(num_threads(), items));
  parallel_items(items, [&](std::int64_t item, int worker) {
    Scratch<T> scratch;
    Scratch<T>::carve(memory.data() + size * worker, p, &scratch);
    const std::int64_t head = item / blocks, turn = item % blocks;
    attend_block<S>(p, head / p.q_heads, head % p.q_heads, rows_of(last_is_longest ? blocks - 1 - turn : turn),
                    scratch);
  });
}

}  // namespace

void attention_forward(Stream stream, const BandSchedule& schedule, double scale, View q, View k, View v, View out,
                       View lse) {
  if (!runs_on_cpu(stream, "attention", attention_cost(stream, schedule, 1.0, q, k, v, out, lse))) return;
  if (out.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0) return;
  Problem p{schedule,   q,          k, v, out, lse, scale, q.shape[1], k.shape[1], q.shape[2], q.shape[2] / k.shape[2],
            q.shape[3], v.shape[3], 0, 0};
  switch (q.dtype) {
    case DType::f64: return forward<double>(p);
    case DType::f32: return forward<float>(p);
    case DType::f16: return forward<Half>(p);
    default: return forward<BFloat16>(p);
  }
}

}  // namespace poolgrad::kernels
