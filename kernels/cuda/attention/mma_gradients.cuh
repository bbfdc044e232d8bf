// Gradients of attention on tensor cores, with the tiles, launches and summation order of gradients.cu. Weights and
// gradients of scores are rounded to the operand type before the last product; f32 ones are split. Each warp multiplies
// its own rows. Rows of 128 elements use warpgroups (warpgroup_tile.cuh). warpgroup_gradients.cu overlaps asynchronous
// products with other work.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/dropped.cuh"
#include "kernels/cuda/attention/warpgroup_tile.cuh"

namespace poolgrad::kernels::cuda {

/// The sum of a kernel. `scores`: gradients of scores times visited rows (dq, dk). `weights`: weights times visited
/// rows (dv). `both`: dk and dv at once. `either`: the call selects `scores` or `weights`.
enum class Of { either, scores, weights, both };

/// Shared memory of a block for data of rows, columns and scores. The per-query arrays cover the queries of the tile,
/// or the queries that the tile visits.
struct GradientShared {
  Shared<float> scores_aside, products_aside;
  Shared<float> lse_of, exponent_of, delta_of;  // exponent_of: lse * log2(e)
  Shared<float> terms;                          // per column
  Shared<std::uint32_t> dropped_of;             // per thread, for its scores
};

/// A tile of own rows for one query head, as a thread sees it.
template <Of of>
struct GradientTile {
  const GradientCall<float>& call;
  const TileItems::Item& item;
  const Progression& tile;  // a reference: a copy takes registers that sm_80 lacks
  const LaneOfTile& at;
  const GradientShared& shared;
  std::int32_t head = 0;
  float lse = 0, delta = 0;  // the values that tell() publishes next

  __device__ bool by_keys() const { return of == Of::both || of == Of::weights || call.by_keys; }
  __device__ bool of_weights() const { return of == Of::weights || (of == Of::either && call.of_weights); }
  __device__ std::int32_t kv_head() const { return item.head / static_cast<std::int32_t>(call.group); }
  __device__ std::int32_t own_head() const { return by_keys() ? kv_head() : head; }
  __device__ std::int32_t visited_head() const { return by_keys() ? head : kv_head(); }
  /// Returns the head in the schedule.
  __device__ std::int64_t scheduled() const { return call.items.first_head + head; }
  __device__ TileRows own_rows(const Operand& x) const {
    return rows_of(x, item.batch, own_head(), tile, 0, static_cast<int>(tile.count));
  }

  /// Loads lse and delta of a query: of the tile, or of the `count` queries visited next, row_of(i).
  template <class F>
  __device__ void fetch(int count, const F& row_of) {
    const int i = thread_of_block();
    if (i >= mma_rows) return;
    const std::int64_t query = by_keys() ? row_of(i) : tile.row + i * tile.stride;
    const bool exists = i < (by_keys() ? count : tile.count);
    lse = exists ? call.lse.at(item.batch, head, query) : -std::numeric_limits<float>::infinity();
    delta = exists ? call.delta.at(item.batch, head, query) : 0;
  }
  /// Writes lse, delta and the terms of columns to shared memory from index `first`.
  __device__ void tell(const VisitedRows& now, int first) {
    tell_terms<mma_rows>(shared.terms, first, call.program, now);
    const int i = thread_of_block();
    if (i >= mma_rows) return;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    if (lse == -infinity) lse = infinity;  // all weights of the row become 0
    shared.lse_of[first + i] = lse;
    shared.exponent_of[first + i] = in_base_2(lse);
    shared.delta_of[first + i] = delta;
  }
  __device__ void draw(const VisitedRows& now) const {
    shared.dropped_of[thread_of_block()] =
        DroppedPairs(call.rules, item.batch, head, at)
            .of(positions_of(tile, 0), positions_of(call.program.run[now.run].keys, now.first), by_keys());
  }

  /// Turns scores into gradients of scores or into weights. For dk and dv at once, `products` become the weights. The
  /// data of tell() start at index `first`.
  template <class S>
  __device__ void weigh(Scores& scores, Scores& products, const VisitedRows& now, int first, bool nan_safe) const {
    if (only_scales(call.rules, now) && !call.dbias && !nan_safe)
      weigh_scaled(scores, products, now, first);
    else
      weigh_pairs<S>(scores, products, now, first, nan_safe);
  }

 private:
  __device__ void weigh_scaled(Scores& scores, Scores& products, const VisitedRows& now, int first) const {
    const ScoreRules<float>& rules = call.rules;
    const float unit = log2_e * scale_and_cut(scores, rules, call.program, now, tile, shared.terms, first, at);
    if (rules.drops && !of_weights()) keep(products, shared.dropped_of[thread_of_block()], rules.kept);
    const auto weigh = [&](const auto& query_of) {
      POOLGRAD_UNROLL
      for (int f = 0; f < score_fragments; ++f) {
        POOLGRAD_UNROLL
        for (int i = 0; i < elements_of_c; ++i) {
          const int query = first + query_of(f, i);
          float &score = scores[f].value[i], &product = products[f].value[i];
          const float weight = exp2_approx(Math<float>::fma(score, unit, -shared.exponent_of[query]));
          score = of_weights() ? weight : weight * (product * rules.scale - shared.delta_of[query] * rules.scale);
          if constexpr (of == Of::both) product = weight;
        }
      }
    };
    if (by_keys())
      weigh([&](int f, int i) { return at.column(f, i); });
    else
      weigh([&](int, int i) { return at.row(i / 2); });
    if (rules.drops && (of == Of::both || of_weights()))
      keep(of == Of::both ? products : scores, shared.dropped_of[thread_of_block()], rules.kept);
  }

  template <class S>
  __device__ void weigh_pairs(Scores& scores, Scores& products, const VisitedRows& now, int first,
                              bool nan_safe) const {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    const ScoreRules<float>& rules = call.rules;
    const AttentionProgram& program = call.program;
    const AttentionRun& run = program.run[now.run];
    const Columns seen[2] = {columns_seen(program, now, tile, at.row(0)), columns_seen(program, now, tile, at.row(1))};
    put_in_scratch(shared.products_aside, products);
    for_each_score(scores, shared.scores_aside, at, [&](int e, int half, int column, float& score) {
      const Columns row = {half ? seen[1].begin : seen[0].begin, half ? seen[1].end : seen[0].end};
      const std::int64_t step = now.first + column, own_row = tile.row + at.row(half) * tile.stride;
      const Visit visit{program, run, scheduled(), tile.position + at.row(half) * tile.step};
      float result = uncounted<float>, result_out = uncounted<float>;
      if (row.contain(column) && visit.keeps(step)) {
        const std::int64_t other_row = run.keys.row + step * run.keys.stride, position = visit.position(step);
        const Pair pair = by_keys() ? Pair{other_row, own_row, position, visit.row_position}
                                    : Pair{own_row, other_row, visit.row_position, position};
        const int query = first + (by_keys() ? column : at.row(half));
        float product = shared.products_aside[e * mma_threads + static_cast<int>(threadIdx.x)];
        if constexpr (splits<S>) {
          const auto defined = [&](float found, const Operand& own_rows, const Operand& visited_rows) {
            return product_unless_finite(found, own_rows, offset_of(own_rows, item.batch, own_head(), own_row),
                                         visited_rows, offset_of(visited_rows, item.batch, visited_head(), other_row));
          };
          score = defined(score, call.own, call.visited);
          if (!of_weights() && call.own_first.depth > 0) product = defined(product, call.own_out, call.visited_out);
        }
        float slope;
        const float whole = rules.score(score, item.batch, head, pair, slope) + visit.log_multiplicity<float>(step);
        const float weight = exp2_approx(at_most_0(whole - shared.lse_of[query]) * log2_e),
                    kept = rules.drops && (shared.dropped_of[thread_of_block()] >> e & 1) ? 0 : rules.kept;
        if (of_weights()) {
          if (whole != nothing) result = weight * kept + 0.0f;  // +0 turns -0, the `uncounted` mark, into 0
        } else if (whole != nothing) {
          result_out = weight * kept + 0.0f;
          const float gradient = weight * (product * kept - shared.delta_of[query]);
          if (call.dbias && !nan_safe)
            call.dbias[item.batch * call.dbias_strides[0] + head * call.dbias_strides[1] +
                       pair.query * call.dbias_strides[2] + pair.key * call.dbias_strides[3]] += gradient;
          result = gradient * slope * rules.scale + 0.0f;
        }
      }
      score = result;
      if constexpr (of == Of::both) shared.products_aside[e * mma_threads + static_cast<int>(threadIdx.x)] = result_out;
    });
    if constexpr (of == Of::both) take_from_scratch(products, shared.products_aside);
  }
};

/// Tiles of each kind of visited rows in shared memory at once. With two, the next tiles are copied while the block
/// processes the current ones. With one, each operand is copied while the block uses the other. One tile of 128-element
/// or f32 rows fits on every GPU.
template <class S, int Depth>
inline constexpr int gradient_buffers = Depth <= 64 && !splits<S> ? 2 : 1;

/// Shared memory holds the own rows of both products, then `buffers` tiles of both kinds of visited rows. f32 stages no
/// own rows.
template <class S, int Depth, By by, Of of>
__global__ __launch_bounds__(mma_threads, 2) void sum_by_fragments(const __grid_constant__ GradientCall<float> call,
                                                                   const std::int64_t items) {
  if constexpr (by == By::warpgroup && !multiplies_in_warpgroups) return;
  constexpr int buffers = gradient_buffers<S, Depth>;
  static_assert(by == By::warps || buffers == 1);
  constexpr bool keeps = !splits<S> && by == By::warps && Depth == 64;
  using Tile = TileOf<S, Depth, by>;
  constexpr int own_tiles = splits<S> ? 0 : 2;
  POOLGRAD_SHARED(float, scores_aside, scratch_floats);
  POOLGRAD_SHARED(float, products_aside, scratch_floats);
  POOLGRAD_SHARED(float, lse_of, buffers* mma_rows);
  POOLGRAD_SHARED(float, exponent_of, buffers* mma_rows);
  POOLGRAD_SHARED(float, delta_of, buffers* mma_rows);
  POOLGRAD_SHARED(float, terms, buffers* mma_rows);
  POOLGRAD_SHARED(std::uint32_t, dropped_of, mma_threads);
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const GradientShared shared{scores_aside, products_aside, lse_of, exponent_of, delta_of, terms, dropped_of};
  const AttentionProgram& program = call.program;
  const LaneOfTile at;
  const auto first_in = [&](int i) { return Tile{(own_tiles + i) * Tile::count}; };
  const auto last_in = [&](int i) { return Tile{(own_tiles + buffers + i) * Tile::count}; };
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    GradientTile<of> own_tile{call, item, program.tile[item.tile], at, shared};
    const Progression& tile = own_tile.tile;
    if (tile.count == 0) continue;
    const std::int32_t end = item.head + static_cast<std::int32_t>(call.items.heads_of_item);
    const bool works = by == By::warpgroup || at.first_row < tile.count;  // a warpgroup multiplies as a whole
    FragmentsC<Depth> results = {};

    POOLGRAD_ROLLED
    for (own_tile.head = item.head; own_tile.head < end; ++own_tile.head) {
      const auto stage = [&](const Operand& x, Tile to, const VisitedRows& rows) {
        stage_rows_async(staged, to, x, rows.of(program, x, item.batch, own_tile.visited_head()));
        cp_async_commit();
      };
      int buffer = 0;
      Visits<> visits(program, tile, program.of(own_tile.scheduled(), item.tile));
      VisitedRows next = visits.next();
      if (next.count == 0) continue;
      OwnRows<S, Tile, keeps> own(call.own, own_tile.own_rows(call.own), at),
          own_first(call.own_first, own_tile.own_rows(call.own_first), at);
      __syncthreads();  // all threads have read the staged rows
      if constexpr (!splits<S>) {
        own.stage(staged, Tile{0});
        own_first.stage(staged, Tile{Tile::count});
        cp_async_commit();
      }
      stage(call.staged_first, first_in(buffer), next);
      if (buffers > 1) stage(call.staged_last, last_in(buffer), next);
      const auto fetch = [&](const VisitedRows& rows) {
        own_tile.fetch(rows.count, [&](int i) { return rows.row(program, i); });
      };
      fetch(next);
      if constexpr (!splits<S>) {
        wait_for_staged<by, buffers>();  // own rows have arrived
        own.take(staged);
        own_first.take(staged);
      }
      POOLGRAD_ROLLED
      for (; next.count > 0; buffer ^= buffers - 1) {
        const VisitedRows now = next;
        const int first = buffer * mma_rows;
        if (call.rules.drops && works) own_tile.draw(now);
        Scores scores, products;
        if constexpr (buffers > 1) {
          own_tile.tell(now, first);
          wait_for_staged<by, 0>();  // visited rows have arrived, and the previous ones are read
          next = visits.next();
          if (next.count > 0) {
            stage(call.staged_first, first_in(buffer ^ 1), next);
            stage(call.staged_last, last_in(buffer ^ 1), next);
            if (own_tile.by_keys()) fetch(next);
          }
          if (!works) continue;
          multiply_staged(products, staged, own_first, first_in(buffer), at);
        } else {
          wait_for_staged<by, 0>();  // the first rows have arrived, and the previous ones are read
          stage(call.staged_last, last_in(buffer), now);
          own_tile.tell(now, first);
          if (works) multiply_staged(products, staged, own_first, first_in(buffer), at);
          wait_for_staged<by, 0>();  // the last rows have arrived, and the first ones are read
          next = visits.next();
          if (next.count > 0) {
            stage(call.staged_first, first_in(buffer), next);
            if (own_tile.by_keys()) fetch(next);
          }
          if (!works) continue;
        }
        if (own_tile.of_weights()) {
          POOLGRAD_UNROLL
          for (int f = 0; f < score_fragments; ++f) scores[f] = products[f];
        } else {
          multiply_staged(scores, staged, own, last_in(buffer), at);
        }
        own_tile.template weigh<S>(scores, products, now, first, turn.nan_safe());
        if (!call.result.data) continue;
        if (turn.nan_safe()) {
          const Operand& weighed = own_tile.of_weights() ? call.visited_out : call.visited;
          add_weighted_pairs<S, Depth>(results, scores, scores_aside, weighed,
                                       now.of(program, weighed, item.batch, own_tile.visited_head()));
        } else {
          add_weighted_staged<S, Depth>(results, scores, staged, last_in(buffer), at);
        }
      }
    }
    if (!turn.nan_safe() && any_is_not_finite(results, tile.count, at))
      turn.again();
    else if (call.result.data)
      store_results<S>(call.result, item.batch, own_tile.by_keys() ? own_tile.kv_head() : item.head, tile, results,
                       call.accumulate, at);
  }
}

/// Calls f(call, depth, items) if there are items. The call holds the staged operands; `depth` is the staged column
/// count, a compile-time constant.
template <class F>
void with_staged(GradientCall<float> call, const Operand& visited, const Operand& visited_out, const F& f) {
  const std::int64_t items = call.items.count(call.program);
  if (items == 0) return;
  call.own_first = call.of_weights ? call.own : call.own_out;
  call.staged_first = call.of_weights ? visited : visited_out;
  call.staged_last = call.of_weights ? visited_out : visited;
  if (call.own_first.depth == 0 || call.staged_first.depth == 0)  // without dO the product is 0 for any other operand
    call.own_first.depth = call.staged_first.depth = 0;
  with_staged_depth({call.own.depth, call.own_out.depth, call.visited_out.depth},
                    [&]<int Depth>(std::integral_constant<int, Depth> depth) { f(call, depth, items); });
}

template <class S, int Depth, By by, Of of>
void launch_by_fragments(Stream stream, const GradientCall<float>& call, std::int64_t items) {
  constexpr int tiles = 2 * gradient_buffers<S, Depth> + (splits<S> ? 0 : 2);
  const std::int64_t bytes = tiles * TileOf<S, Depth, by>::count * std::int64_t{sizeof(Chunk)};
  launch("attention backward", &sum_by_fragments<S, Depth, by, of>, shape_of_items(items, mma_threads, bytes), stream,
         call, items);
}

}  // namespace poolgrad::kernels::cuda
