// The gradients of attention by tensor cores: gradients.cu's tiles, launches and order of sums, with weights and
// gradients of scores that are rounded to the type of the operands before the last product; those of f32 are split.
// Warps multiply for themselves, or together (warpgroup_tile.cuh).
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/dropped.cuh"
#include "kernels/cuda/attention/warpgroup_tile.cuh"

namespace poolgrad::kernels::cuda {

/// Tiles of each kind of visited rows that are in shared memory at once. Of two, the next are copied while those before
/// them are weighed. Of one, for which rows of 128 elements and those of f32 have room on every GPU, that which is
/// multiplied first comes while the other is weighed, and that while the first is multiplied.
template <class S, int Depth>
inline constexpr int gradient_buffers = Depth <= 64 && !splits<S> ? 2 : 1;

/// Columns of dk and dv, of which both together stay in registers.
inline constexpr int most_of_both = 64;

/// What is summed up: gradients of scores times visited rows (dq, dk), weights times visited rows (dv), or dk and dv at
/// once; the former two may be told apart by the call.
enum class Of { either, scores, weights, both };

/// In shared memory lie own rows, what of them belongs to results, and as many tiles of both of visited rows as there
/// are buffers; of f32 no own rows.
template <class S, int Depth, By by, Of of>
__global__ __launch_bounds__(mma_threads, 2) void sum_by_fragments(const __grid_constant__ GradientCall<float> call,
                                                                   const std::int64_t items) {
  if constexpr (by == By::warpgroup && !multiplies_in_warpgroups) return;
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  constexpr int buffers = gradient_buffers<S, Depth>;
  static_assert(of != Of::both || buffers > 1);
  constexpr bool keeps = !splits<S> && by == By::warps && Depth == 64;
  using Tile = TileOf<S, Depth, by>;
  constexpr int own_tiles = splits<S> ? 0 : 2;
  POOLGRAD_SHARED(float, scores_aside, set_aside_count);
  POOLGRAD_SHARED(float, products_aside, set_aside_count);
  POOLGRAD_SHARED(float, lse_of, buffers* mma_rows);       // of the tile's queries, or of those that it visits
  POOLGRAD_SHARED(float, exponent_of, buffers* mma_rows);  // lse, times log2(e)
  POOLGRAD_SHARED(float, delta_of, buffers* mma_rows);
  POOLGRAD_SHARED(float, terms, buffers* mma_rows);         // of columns
  POOLGRAD_SHARED(std::uint32_t, dropped_of, mma_threads);  // of the thread's scores
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const AttentionProgram& program = call.program;
  const ScoreRules<float>& rules = call.rules;
  const LaneOfTile at;
  const bool by_keys = of == Of::both || of == Of::weights || call.by_keys;
  const bool of_weights = of == Of::weights || (of == Of::either && call.of_weights);
  const auto first_in = [&](int i) { return Tile{(own_tiles + i) * Tile::count}; };
  const auto last_in = [&](int i) { return Tile{(own_tiles + buffers + i) * Tile::count}; };
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    const Progression& tile = program.tile[item.tile];  // a copy would take registers that sm_80 lacks
    if (tile.count == 0) continue;
    const std::int32_t kv_head = item.head / static_cast<std::int32_t>(call.group),
                       end = item.head + static_cast<std::int32_t>(call.items.heads_of_item);
    const bool works = by == By::warpgroup || at.first_row < tile.count;  // a warpgroup multiplies as a whole
    FragmentsC<Depth> results = {};
    FragmentsC<of == Of::both ? Depth : 8> results_out = {};  // dv

    POOLGRAD_ROLLED
    for (std::int32_t head = item.head; head < end; ++head) {
      const std::int32_t own_head = by_keys ? kv_head : head, visited_head = by_keys ? head : kv_head;
      const std::int64_t scheduled = call.items.first_head + head;
      Stager<Tile, by == By::warpgroup && (Depth <= 64)> first_from(program, call.staged_first, item.batch,
                                                                    visited_head),
          last_from(program, call.staged_last, item.batch, visited_head);
      float lse = 0, delta = 0;  // that this thread puts where all find them
      const auto fetch = [&](const VisitedRows& rows) {
        const int i = thread_of_block();
        if (i >= mma_rows) return;
        const std::int64_t query = by_keys ? rows.row(program, i) : tile.row + i * tile.stride;
        const bool exists = i < (by_keys ? rows.count : tile.count);
        lse = exists ? call.lse.at(item.batch, head, query) : nothing;
        delta = exists ? call.delta.at(item.batch, head, query) : 0;
      };
      int buffer = 0;
      Visits visits(program, tile, program.of(scheduled, item.tile));
      VisitedRows next = visits.next();
      if (next.count == 0) continue;
      const auto own_part = [&](const Operand& x) {
        return rows_of(x, item.batch, own_head, tile, 0, static_cast<int>(tile.count));
      };
      OwnRows<S, Tile, keeps> own(call.own, own_part(call.own), at),
          own_first(call.own_first, own_part(call.own_first), at);
      __syncthreads();  // what was staged before has been read
      if constexpr (!splits<S>) {
        own.stage(staged, Tile{0});
        own_first.stage(staged, Tile{Tile::count});
        cp_async_commit();
      }
      first_from.stage(staged, first_in(buffer), next);
      if (buffers > 1) last_from.stage(staged, last_in(buffer), next);
      fetch(next);
      if constexpr (!splits<S>) {
        wait_for_staged<by, buffers>();  // own rows are there
        own.take(staged);
        own_first.take(staged);
      }
      POOLGRAD_ROLLED
      for (; next.count > 0; buffer ^= buffers - 1) {
        const VisitedRows now = next;
        const int first = buffer * mma_rows;
        const auto tell = [&] {
          const int i = thread_of_block();
          if (i >= mma_rows) return;
          if (lse == nothing) lse = -nothing;  // no weight is left of any score
          lse_of[first + i] = lse;
          exponent_of[first + i] = in_base_2(lse);
          delta_of[first + i] = delta;
          if (now.period > 0) terms[first + i] = i < now.count ? term_of_column(program, now, i) : 0;
        };
        if (rules.drops && works)
          dropped_of[thread_of_block()] =
              DroppedPairs(rules, item.batch, head, at)
                  .of(positions_of(tile, 0), positions_of(program.run[now.run].keys, now.first), by_keys);
        Scores scores, products;
        if constexpr (buffers > 1) {
          tell();
          wait_for_staged<by, 0>();  // all of it is there, and what was visited before has been read
          if constexpr (by == By::warpgroup) {
            begin_multiply(products, staged, own_first, first_in(buffer));
            if constexpr (of != Of::weights) begin_multiply(scores, staged, own, last_in(buffer));
          }
          next = visits.next();
          if (next.count > 0) {
            first_from.stage(staged, first_in(buffer ^ 1), next);
            last_from.stage(staged, last_in(buffer ^ 1), next);
            if (by_keys) fetch(next);
          }
          if (!works) continue;
          if constexpr (by == By::warps) {
            multiply_staged(products, staged, own_first, first_in(buffer), at);
          } else {
            wait_for_products<0>(products);
            if constexpr (of != Of::weights) wait_for_products<0>(scores);
          }
        } else {
          wait_for_staged<by, 0>();  // the first are there, and what was visited before has been read
          last_from.stage(staged, last_in(buffer), now);
          tell();
          if (works) multiply_staged(products, staged, own_first, first_in(buffer), at);
          wait_for_staged<by, 0>();  // the last are there, and the first have been read
          next = visits.next();
          if (next.count > 0) {
            first_from.stage(staged, first_in(buffer), next);
            if (by_keys) fetch(next);
          }
          if (!works) continue;
        }
        if (of_weights) {
          POOLGRAD_UNROLL
          for (int f = 0; f < score_fragments; ++f) scores[f] = products[f];
        } else if constexpr (by == By::warps || buffers == 1) {
          multiply_staged(scores, staged, own, last_in(buffer), at);
        }
        if (only_scales(rules, now) && !call.dbias && !turn.with_care()) {
          const float unit = log2_e * scale_and_cut(scores, rules, program, now, tile, terms, first, at);
          if (rules.drops && !of_weights) keep(products, dropped_of[thread_of_block()], rules.kept);
          const auto weigh = [&](const auto& query_of) {
            POOLGRAD_UNROLL
            for (int f = 0; f < score_fragments; ++f) {
              POOLGRAD_UNROLL
              for (int i = 0; i < elements_of_c; ++i) {
                const int query = first + query_of(f, i);
                float &score = scores[f].value[i], &product = products[f].value[i];
                const float weight = exp2_approx(Math<float>::fma(score, unit, -exponent_of[query]));
                score = of_weights ? weight : weight * (product * rules.scale - delta_of[query] * rules.scale);
                if constexpr (of == Of::both) product = weight;
              }
            }
          };
          if (by_keys)
            weigh([&](int f, int i) { return at.column(f, i); });
          else
            weigh([&](int, int i) { return at.row(i / 2); });
          if (rules.drops && (of == Of::both || of_weights))
            keep(of == Of::both ? products : scores, dropped_of[thread_of_block()], rules.kept);
        } else {
          const AttentionRun& run = program.run[now.run];
          const Columns seen[2] = {columns_seen(program, now, tile, at.row(0)),
                                   columns_seen(program, now, tile, at.row(1))};
          set_aside(products_aside, products);
          for_each_score(scores, scores_aside, at, [&](int e, int half, int column, float& score) {
            const Columns row = {half ? seen[1].begin : seen[0].begin, half ? seen[1].end : seen[0].end};
            const std::int64_t step = now.first + column, own_row = tile.row + at.row(half) * tile.stride;
            const Visit visit{program, run, scheduled, tile.position + at.row(half) * tile.step};
            float result = uncounted<float>, result_out = uncounted<float>;
            if (row.contain(column) && visit.keeps(step)) {
              const std::int64_t other_row = run.keys.row + step * run.keys.stride, position = visit.position(step);
              const Pair pair = by_keys ? Pair{other_row, own_row, position, visit.row_position}
                                        : Pair{own_row, other_row, visit.row_position, position};
              const int query = first + (by_keys ? column : at.row(half));
              float product = products_aside[e * mma_threads + static_cast<int>(threadIdx.x)];
              if constexpr (splits<S>) {
                const auto defined = [&](float found, const Operand& own_rows, const Operand& visited_rows) {
                  return product_unless_finite(found, own_rows, offset_of(own_rows, item.batch, own_head, own_row),
                                               visited_rows,
                                               offset_of(visited_rows, item.batch, visited_head, other_row));
                };
                score = defined(score, call.own, call.visited);
                if (!of_weights && call.own_first.depth > 0) product = defined(product, call.own_out, call.visited_out);
              }
              float slope;
              const float whole =
                  rules.score(score, item.batch, head, pair, slope) + visit.log_multiplicity<float>(step);
              const float weight = exp2_approx(at_most_0(whole - lse_of[query]) * log2_e),
                          kept = rules.drops && (dropped_of[thread_of_block()] >> e & 1) ? 0 : rules.kept;
              if (of_weights) {
                if (whole != nothing) result = weight * kept + 0.0f;  // -0 counts
              } else if (whole != nothing) {
                result_out = weight * kept + 0.0f;
                const float gradient = weight * (product * kept - delta_of[query]);
                if (call.dbias && !turn.with_care())
                  call.dbias[item.batch * call.dbias_strides[0] + head * call.dbias_strides[1] +
                             pair.query * call.dbias_strides[2] + pair.key * call.dbias_strides[3]] += gradient;
                result = gradient * slope * rules.scale + 0.0f;
              }
            }
            score = result;
            if constexpr (of == Of::both) products_aside[e * mma_threads + static_cast<int>(threadIdx.x)] = result_out;
          });
          if constexpr (of == Of::both) take_from_aside(products, products_aside);
        }
        if (!call.result.data) continue;
        if (turn.with_care()) {
          const Operand& weighed = of_weights ? call.visited_out : call.visited;
          add_weighted_pairs<S, Depth>(results, scores_aside, weighed,
                                       now.of(program, weighed, item.batch, visited_head));
          if constexpr (of == Of::both)
            add_weighted_pairs<S, Depth>(results_out, products_aside, call.visited_out,
                                         now.of(program, call.visited_out, item.batch, visited_head));
        } else {
          if constexpr (of == Of::both) {
            begin_add_weighted<S, Depth>(results, scores, staged, last_in(buffer));
            begin_add_weighted<S, Depth>(results_out, products, staged, first_in(buffer));
            wait_for_products<0>(results);
            wait_for_products<0>(results_out);
          } else {
            add_weighted_staged<S, Depth>(results, scores, staged, last_in(buffer), at);
          }
        }
      }
    }
    bool not_finite = !turn.with_care() && any_is_not_finite(results, tile.count, at);
    if constexpr (of == Of::both) not_finite |= !turn.with_care() && any_is_not_finite(results_out, tile.count, at);
    if (not_finite) {
      turn.again();
      continue;
    }
    if (call.result.data)
      store_results<S>(call.result, item.batch, by_keys ? kv_head : item.head, tile, results, call.accumulate, at);
    if constexpr (of == Of::both)
      store_results<S>(call.result_out, item.batch, kv_head, tile, results_out, call.accumulate, at);
  }
}

/// With the rows that are visited where they are staged from.
template <class S, By by, Of of>
void launch_gradient(Stream stream, GradientCall<float> call, const Operand& visited, const Operand& visited_out) {
  const std::int64_t items = call.items.count(call.program);
  if (items == 0) return;
  call.own_first = call.of_weights ? call.own : call.own_out;
  call.staged_first = call.of_weights ? visited : visited_out;
  call.staged_last = call.of_weights ? visited_out : visited;
  if (call.own_first.depth == 0 || call.staged_first.depth == 0)  // no dO: 0, whatever it would be multiplied with
    call.own_first.depth = call.staged_first.depth = 0;
  with_staged_depth({call.own.depth, call.own_out.depth, call.visited_out.depth},
                    [&]<int Depth>(std::integral_constant<int, Depth>) {
                      if constexpr (of != Of::both || Depth <= most_of_both) {
                        constexpr int tiles = 2 * gradient_buffers<S, Depth> + (splits<S> ? 0 : 2);
                        const std::int64_t bytes = tiles * TileOf<S, Depth, by>::count * std::int64_t{sizeof(Chunk)};
                        launch("attention backward", &sum_by_fragments<S, Depth, by, of>,
                               shape_of_items(items, mma_threads, bytes), stream, call, items);
                      }
                    });
}

}  // namespace poolgrad::kernels::cuda
