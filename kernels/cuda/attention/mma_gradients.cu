// The gradients of attention by tensor cores: gradients.cu's tiles, launches and order of sums, with weights and
// gradients of scores that are rounded to the type of the operands before the last product.
#include <type_traits>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_tile.cuh"
#include "kernels/elementwise.h"

namespace poolgrad::kernels::cuda {
namespace {

/// Own rows, visited ones, and of both what belongs to results lie one after another.
template <class S, int Depth>
__global__ __launch_bounds__(mma_threads, 2) void sum_by_fragments(const __grid_constant__ GradientCall<float> call) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  constexpr StagedTile<Depth> own{0}, visited{own.count}, own_out{2 * own.count}, visited_out{3 * own.count};
  POOLGRAD_SHARED(float, scores_aside, set_aside_count);
  POOLGRAD_SHARED(float, products_aside, set_aside_count);
  POOLGRAD_SHARED(float, lse_of, mma_rows);  // of the tile's queries, or of those that it visits
  POOLGRAD_SHARED(float, delta_of, mma_rows);
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const AttentionProgram& program = call.program;
  const ScoreRules<float>& rules = call.rules;
  const LaneOfTile at;
  // Without dO, on either side, they are 0, and nothing of it is staged.
  const std::int64_t depth_of_products =
      call.own_out.depth < call.visited_out.depth ? call.own_out.depth : call.visited_out.depth;
  const std::int64_t items = call.items.count(program);
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    const Progression& tile = program.tile[item.tile];  // a copy would take registers that sm_80 lacks
    if (tile.count == 0) continue;
    const std::int64_t kv_head = item.head / call.group;
    const bool works = at.first_row < tile.count;
    bool begun = false;
    FragmentsC<Depth> results = {};

    POOLGRAD_ROLLED
    for (std::int64_t head = item.head; head < item.head + call.items.heads_of_item; ++head) {
      const std::int64_t own_head = call.by_keys ? kv_head : head, visited_head = call.by_keys ? head : kv_head,
                         scheduled = call.items.first_head + head;
      Visits visits(program, tile, program.of(scheduled, item.tile));
      POOLGRAD_ROLLED
      while (visits.next().count > 0) {
        const VisitedRows now = visits.now();
        const AttentionRun& run = program.run[now.run];
        __syncthreads();  // what was staged before has been read
        if (!begun) {
          const auto own_part = [&](const Operand& x) {
            return rows_of(x, item.batch, own_head, tile, 0, static_cast<int>(tile.count));
          };
          stage_rows_async<Depth>(staged, own, call.own, own_part(call.own));
          if (!call.of_weights) stage_rows_async<Depth>(staged, own_out, call.own_out, own_part(call.own_out));
          begun = true;
        }
        const auto visited_part = [&](const Operand& x) {
          return rows_of(x, item.batch, visited_head, run.keys, now.first, now.count);
        };
        stage_rows_async<Depth>(staged, visited, call.visited, visited_part(call.visited));
        stage_rows_async<Depth>(staged, visited_out, call.visited_out, visited_part(call.visited_out));
        cp_async_commit();
        if (const int i = static_cast<int>(threadIdx.x); i < mma_rows) {
          const std::int64_t query =
              call.by_keys ? run.keys.row + (now.first + i) * run.keys.stride : tile.row + i * tile.stride;
          const bool exists = i < (call.by_keys ? now.count : tile.count);
          const float lse = exists ? call.lse.at(item.batch, head, query) : nothing;
          lse_of[i] = lse == nothing ? -nothing : lse;  // no weight is left of any score
          delta_of[i] = exists ? call.delta.at(item.batch, head, query) : 0;
        }
        cp_async_wait<0>();
        __syncthreads();  // all of it is there
        if (!works) continue;

        const Columns seen[2] = {columns_seen(program, now, tile, at.row(0)),
                                 columns_seen(program, now, tile, at.row(1))};
        const bool plain = seen[0].are_all() && seen[1].are_all() && only_scales(rules, run) && !call.dbias;
        Scores scores, products;
        multiply_staged<S, Depth>(scores, staged, own, visited, call.own.depth, now.count, at);
        if (!call.of_weights)
          multiply_staged<S, Depth>(products, staged, own_out, visited_out, depth_of_products, now.count, at);
        if (__all_sync(all_threads_of_warp, plain && !turn.with_care())) {
          POOLGRAD_UNROLL
          for (int f = 0; f < score_fragments; ++f) {
            POOLGRAD_UNROLL
            for (int i = 0; i < elements_of_c; ++i) {
              const int query = call.by_keys ? at.column(f, i) : at.row(i / 2);
              float& score = scores[f].value[i];
              const float weight = exp2_approx((score * rules.scale - lse_of[query]) * log2_e);
              score = call.of_weights ? weight : weight * (products[f].value[i] - delta_of[query]) * rules.scale;
            }
          }
        } else {
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
              const int query = call.by_keys ? column : at.row(half);
              float slope;
              const float whole =
                  rules.score(score, item.batch, head, pair, slope) + visit.log_multiplicity<float>(step);
              const float weight = exp2_approx((whole - lse_of[query]) * log2_e),
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
        const StagedTile<Depth> weighed = call.of_weights ? visited_out : visited;
        const std::int64_t depth = call.of_weights ? call.visited_out.depth : call.visited.depth;
        if (turn.with_care()) {
          add_weighted_pairs<S, Depth>(results, scores_aside, staged, weighed, depth, now.count);
        } else {
          Weights weights;
          round_weights<S>(weights, scores);
          add_weighted_staged<S, Depth>(results, weights, staged, weighed, depth, now.count, at);
        }
      }
    }
    if (!turn.with_care() && any_is_not_finite(results)) {
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
  const auto run = [&]<class S, int Depth>(S, std::integral_constant<int, Depth>) {
    const std::int64_t bytes = 4 * StagedTile<Depth>::count * std::int64_t{sizeof(Chunk)};
    launch("attention backward", &sum_by_fragments<S, Depth>, shape_of_items(items, mma_threads, bytes), stream, call);
  };
  const auto run_of_depth = [&]<class S>(S type) {
    if (call.own.depth <= 64 && call.own_out.depth <= 64 && call.visited_out.depth <= 64)
      run(type, std::integral_constant<int, 64>{});
    else
      run(type, std::integral_constant<int, 128>{});
  };
  if (call.own.dtype == DType::f16)
    run_of_depth(Half{});
  else
    run_of_depth(BFloat16{});
}

}  // namespace poolgrad::kernels::cuda
