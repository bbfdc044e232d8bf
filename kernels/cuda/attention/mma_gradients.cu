// The gradients of attention by tensor cores: gradients.cu's tiles, launches and order of sums, with weights and
// gradients of scores that are rounded to the type of the operands before the last product.
#include <type_traits>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_tile.cuh"
#include "kernels/elementwise.h"

namespace poolgrad::kernels::cuda {
namespace {

/// Tiles of visited rows that are in shared memory at once: where there are two, the next are copied while those before
/// them are weighed. Rows of 128 elements have no room for that on every GPU.
template <int Depth>
inline constexpr int gradient_buffers = Depth <= 64 ? 2 : 1;

/// In shared memory lie own rows, what of them belongs to results, and as many tiles of both of visited rows as there
/// are buffers.
template <class S, int Depth>
__global__ __launch_bounds__(mma_threads, 2) void sum_by_fragments(const __grid_constant__ GradientCall<float> call) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  constexpr int buffers = gradient_buffers<Depth>;
  using Tile = StagedTile<Depth>;
  POOLGRAD_SHARED(float, scores_aside, set_aside_count);
  POOLGRAD_SHARED(float, products_aside, set_aside_count);
  POOLGRAD_SHARED(float, lse_of, buffers* mma_rows);  // of the tile's queries, or of those that it visits
  POOLGRAD_SHARED(float, delta_of, buffers* mma_rows);
  POOLGRAD_SHARED(float, terms, buffers* mma_rows);  // of columns
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const AttentionProgram& program = call.program;
  const ScoreRules<float>& rules = call.rules;
  const LaneOfTile at;
  // Without dO, on either side, they are 0, whatever they would be multiplied with.
  const bool has_products = !call.of_weights && call.own_out.depth > 0 && call.visited_out.depth > 0;
  const std::int64_t items = call.items.count(program);
  const auto visited_in = [&](int i) { return Tile{(2 + i) * Tile::count}; };
  const auto visited_out_in = [&](int i) { return Tile{(2 + buffers + i) * Tile::count}; };
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    const Progression& tile = program.tile[item.tile];  // a copy would take registers that sm_80 lacks
    if (tile.count == 0) continue;
    const std::int64_t kv_head = item.head / call.group;
    const bool works = at.first_row < tile.count;
    FragmentsC<Depth> results = {};
    OwnRows<Depth> own(Tile{0}, at), own_out(Tile{Tile::count}, at);

    POOLGRAD_ROLLED
    for (std::int64_t head = item.head; head < item.head + call.items.heads_of_item; ++head) {
      const std::int64_t own_head = call.by_keys ? kv_head : head, visited_head = call.by_keys ? head : kv_head,
                         scheduled = call.items.first_head + head;
      const auto stage = [&](const VisitedRows& rows, int i) {
        stage_rows_async<Depth>(staged, visited_in(i), call.visited, rows.of(call.visited, item.batch, visited_head));
        stage_rows_async<Depth>(staged, visited_out_in(i), call.visited_out,
                                rows.of(call.visited_out, item.batch, visited_head));
        cp_async_commit();
      };
      float lse = 0, delta = 0;  // that this thread puts where all find them
      const auto fetch = [&](const VisitedRows& rows) {
        const int i = thread_of_block();
        if (i >= mma_rows) return;
        const std::int64_t query = call.by_keys ? rows.row + i * rows.stride : tile.row + i * tile.stride;
        const bool exists = i < (call.by_keys ? rows.count : tile.count);
        lse = exists ? call.lse.at(item.batch, head, query) : nothing;
        delta = exists ? call.delta.at(item.batch, head, query) : 0;
      };
      int buffer = 0;
      Visits visits(program, tile, program.of(scheduled, item.tile));
      VisitedRows next = visits.next();
      if (next.count == 0) continue;
      __syncthreads();  // what was staged before has been read
      const auto own_part = [&](const Operand& x) {
        return rows_of(x, item.batch, own_head, tile, 0, static_cast<int>(tile.count));
      };
      stage_rows_async<Depth>(staged, Tile{0}, call.own, own_part(call.own));
      stage_rows_async<Depth>(staged, Tile{Tile::count}, call.own_out, own_part(call.own_out));
      cp_async_commit();
      if (buffers > 1) {
        stage(next, buffer);
        fetch(next);
      }
      cp_async_wait<buffers - 1>();
      __syncthreads();  // own rows are there
      own.take(staged);
      own_out.take(staged);
      POOLGRAD_ROLLED
      for (; next.count > 0; buffer ^= buffers - 1) {
        const VisitedRows now = next;
        if (buffers == 1) {
          __syncthreads();  // what was visited before has been read
          stage(now, buffer);
          fetch(now);
        }
        const int first = buffer * mma_rows;
        if (const int i = thread_of_block(); i < mma_rows) {
          lse_of[first + i] = lse == nothing ? -nothing : lse;  // no weight is left of any score
          delta_of[first + i] = delta;
          if (now.period > 0) terms[first + i] = i < now.count ? term_of_column(program, now, i) : 0;
        }
        cp_async_wait<0>();
        __syncthreads();  // all of it is there; with two buffers, what was visited before has been read
        next = visits.next();
        if (buffers > 1 && next.count > 0) {
          stage(next, buffer ^ 1);
          if (call.by_keys) fetch(next);
        }
        if (!works) continue;

        Scores scores, products = {};
        multiply_staged<S, Depth>(scores, staged, own, visited_in(buffer), at);
        if (has_products) multiply_staged<S, Depth>(products, staged, own_out, visited_out_in(buffer), at);
        if (only_scales(rules, now) && !call.dbias && !turn.with_care()) {
          POOLGRAD_UNROLL
          for (FragmentC& part : scores) {
            POOLGRAD_UNROLL
            for (float& score : part.value) score *= rules.scale;
          }
          if (now.period > 0) add_terms(scores, terms, first, at);
          const auto weigh = [&](const auto& query_of) {
            POOLGRAD_UNROLL
            for (int f = 0; f < score_fragments; ++f) {
              POOLGRAD_UNROLL
              for (int i = 0; i < elements_of_c; ++i) {
                const int query = first + query_of(f, i);
                float& score = scores[f].value[i];
                const float weight = exp2_approx((score - lse_of[query]) * log2_e);
                score = call.of_weights ? weight : weight * (products[f].value[i] - delta_of[query]) * rules.scale;
              }
            }
          };
          if (call.by_keys)
            weigh([&](int f, int i) { return at.column(f, i); });
          else
            weigh([&](int, int i) { return at.row(i / 2); });
          if (!now.whole) cut(scores, program, now, tile, 0, at);
        } else {
          const AttentionRun& run = program.run[now.run];
          const Columns seen[2] = {columns_seen(program, now, tile, at.row(0)),
                                   columns_seen(program, now, tile, at.row(1))};
          set_aside(products_aside, products);
          for_each_score(scores, scores_aside, at, [&](int e, int half, int column, float& score) {
            const Columns row = {half ? seen[1].begin : seen[0].begin, half ? seen[1].end : seen[0].end};
            const std::int64_t step = now.first + column, own_row = tile.row + at.row(half) * tile.stride;
            const Visit visit{program, run, scheduled, tile.position + at.row(half) * tile.step};
            float result = uncounted<float>;
            if (row.contain(column) && visit.keeps(step)) {
              const std::int64_t other_row = run.keys.row + step * run.keys.stride, position = visit.position(step);
              const Pair pair = call.by_keys ? Pair{other_row, own_row, position, visit.row_position}
                                             : Pair{own_row, other_row, visit.row_position, position};
              const int query = first + (call.by_keys ? column : at.row(half));
              float slope;
              const float whole =
                  rules.score(score, item.batch, head, pair, slope) + visit.log_multiplicity<float>(step);
              const float weight = exp2_approx(at_most_0(whole - lse_of[query]) * log2_e),
                          kept = rules.kept_of(item.batch, head, pair);
              if (call.of_weights) {
                if (whole != nothing) result = weight * kept + 0.0f;  // -0 counts
              } else if (whole != nothing) {
                const float gradient =
                    weight * (products_aside[e * mma_threads + static_cast<int>(threadIdx.x)] * kept - delta_of[query]);
                if (call.dbias && !turn.with_care())
                  call.dbias[item.batch * call.dbias_strides[0] + head * call.dbias_strides[1] +
                             pair.query * call.dbias_strides[2] + pair.key * call.dbias_strides[3]] += gradient;
                result = gradient * slope * rules.scale + 0.0f;
              }
            }
            score = result;
          });
        }
        if (!call.result.data) continue;
        const Tile weighed = call.of_weights ? visited_out_in(buffer) : visited_in(buffer);
        if (turn.with_care()) {
          const std::int64_t depth = call.of_weights ? call.visited_out.depth : call.visited.depth;
          add_weighted_pairs<S, Depth>(results, scores_aside, staged, weighed, depth, now.count);
        } else {
          Weights weights;
          round_weights<S>(weights, scores);
          add_weighted_staged<S, Depth>(results, weights, staged, weighed, at);
        }
      }
    }
    if (!turn.with_care() && any_is_not_finite(results, tile.count, at)) {
      turn.again();
      continue;
    }
    if (call.result.data)
      store_results<S>(call.result, item.batch, call.by_keys ? kv_head : item.head, tile, results, call.accumulate, at);
  }
}

}  // namespace

void sum_gradients_by_mma(Stream stream, const GradientCall<float>& call) {
  const std::int64_t items = call.items.count(call.program);
  if (items == 0) return;
  with_staged_depth({call.own.depth, call.own_out.depth, call.visited_out.depth}, [&](auto depth) {
    const auto run = [&]<class S>(S) {
      constexpr int Depth = decltype(depth)::value;
      const std::int64_t bytes =
          2 * (1 + gradient_buffers<Depth>)*StagedTile<Depth>::count * std::int64_t{sizeof(Chunk)};
      launch("attention backward", &sum_by_fragments<S, Depth>, shape_of_items(items, mma_threads, bytes), stream,
             call);
    };
    if (call.own.dtype == DType::f16)
      run(Half{});
    else
      run(BFloat16{});
  });
}

}  // namespace poolgrad::kernels::cuda
