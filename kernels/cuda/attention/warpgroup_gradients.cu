// Gradients by warpgroups, as in mma_gradients.cuh. One launch sums dk and dv, and one thread finds the next visit for
// all. A block copies the rows of the next visit while it processes the current ones. Rows of 128 elements do not fit
// twice; mma_gradients.cuh handles them.
#include <algorithm>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_gradients.cuh"

namespace poolgrad::kernels::cuda {
namespace {

/// Tiles of each kind of visited rows: the current and the next visit.
constexpr int visited_tiles = 2;
/// Most columns of dk and dv for which both stay in registers.
constexpr int most_of_both = 64;

/// Shared memory holds own rows, the own rows of the second product, and the tiles of visited rows.
template <class S, int Depth, Of of>
__global__ __launch_bounds__(mma_threads, 2) void sum_by_warpgroup(const __grid_constant__ GradientCall<float> call,
                                                                   const std::int64_t items) {
  if constexpr (!multiplies_in_warpgroups) return;
  using Tile = WarpgroupTile<Depth>;
  using Told = TileBroadcast<mma_rows>;
  constexpr bool both = of == Of::both, of_weights = of == Of::weights;
  POOLGRAD_SHARED(float, scores_aside, scratch_floats);
  POOLGRAD_SHARED(float, products_aside, scratch_floats);
  POOLGRAD_SHARED(float, lse_of, 2 * mma_rows);
  POOLGRAD_SHARED(float, exponent_of, 2 * mma_rows);
  POOLGRAD_SHARED(float, delta_of, 2 * mma_rows);
  POOLGRAD_SHARED(float, terms, 2 * mma_rows);
  POOLGRAD_SHARED(std::uint32_t, dropped_of, mma_threads);
  POOLGRAD_SHARED(typename Told::State, visits_so_far, 1);
  POOLGRAD_SHARED(ToldRows, told, Told::slots);
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const GradientShared shared{scores_aside, products_aside, lse_of, exponent_of, delta_of, terms, dropped_of};
  const AttentionProgram& program = call.program;
  const LaneOfTile at;
  const Told visits(visits_so_far, told);
  const auto first_in = [](int i) { return Tile{(2 + i) * Tile::count}; };
  const auto last_in = [](int i) { return Tile{(2 + visited_tiles + i) * Tile::count}; };
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    GradientTile<of> own_tile{call, item, program.tile[item.tile], at, shared};
    const Progression& tile = own_tile.tile;
    if (tile.count == 0) continue;
    const std::int32_t end = item.head + static_cast<std::int32_t>(call.items.heads_of_item);
    FragmentsC<Depth> results = {};
    FragmentsC<both ? Depth : 8> results_out = {};  // dv
    POOLGRAD_ROLLED
    for (own_tile.head = item.head; own_tile.head < end; ++own_tile.head) {
      OwnRows<S, Tile, false> own(call.own, own_tile.own_rows(call.own), at),
          own_first(call.own_first, own_tile.own_rows(call.own_first), at);
      const auto stage = [&](const ToldRows& rows, int buffer) {
        stage_rows_async(staged, first_in(buffer), call.staged_first,
                         rows.of(call.staged_first, item.batch, own_tile.visited_head()));
        stage_rows_async(staged, last_in(buffer), call.staged_last,
                         rows.of(call.staged_last, item.batch, own_tile.visited_head()));
        cp_async_commit();
      };
      const auto fetch = [&](const ToldRows& rows) { own_tile.fetch(rows.count, [&](int i) { return rows.row(i); }); };
      __syncthreads();  // all threads have read the last tile's staged rows and groups
      visits.begin(program, tile, program.of(own_tile.scheduled(), item.tile));
      __syncthreads();
      int buffer = 0, slot = 0;
      if (const ToldRows first = visits.at(slot); first.count > 0) {
        own.stage(staged, Tile{0});
        own_first.stage(staged, Tile{Tile::count});
        stage(first, buffer);
        fetch(first);
      }
      POOLGRAD_ROLLED
      for (; visits.at(slot).count > 0; buffer ^= 1) {
        const int first = buffer * mma_rows;
        own_tile.tell(visits.at(slot), first);
        wait_for_staged<By::warpgroup, 0>();  // visited rows have arrived, and the previous ones are read
        const int after = slot == Told::slots - 1 ? 0 : slot + 1, found = Told::slots - slot - after;
        Scores scores, products;
        begin_multiply(products, staged, own_first, first_in(buffer));
        if constexpr (!of_weights) begin_multiply(scores, staged, own, last_in(buffer));
        if (const ToldRows next = visits.at(after); next.count > 0) {
          stage(next, buffer ^ 1);
          if (own_tile.by_keys()) fetch(next);
        }
        visits.find(program, tile, after, found);
        if (call.rules.drops) own_tile.draw(visits.at(slot));
        wait_for_products<0>(products);
        if constexpr (of_weights) {
          POOLGRAD_UNROLL
          for (int f = 0; f < score_fragments; ++f) scores[f] = products[f];
        } else {
          wait_for_products<0>(scores);
        }
        own_tile.template weigh<S>(scores, products, visits.at(slot), first, turn.nan_safe());
        if (turn.nan_safe()) {
          const auto add = [&](auto& sums, const Scores& weights, const Operand& x) {
            add_weighted_pairs<S, Depth>(sums, weights, scores_aside, x,
                                         visits.at(slot).of(x, item.batch, own_tile.visited_head()));
          };
          add(results, scores, of_weights ? call.visited_out : call.visited);
          if constexpr (both) add(results_out, products, call.visited_out);
        } else {
          begin_add_weighted<S>(results, scores, staged, last_in(buffer));
          if constexpr (both) begin_add_weighted<S>(results_out, products, staged, first_in(buffer));
          wait_for_products<0>(results);
          if constexpr (both) wait_for_products<0>(results_out);
        }
        slot = after;
      }
    }
    bool not_finite = !turn.nan_safe() && any_is_not_finite(results, tile.count, at);
    if constexpr (both) not_finite |= !turn.nan_safe() && any_is_not_finite(results_out, tile.count, at);
    if (not_finite) {
      turn.again();
      continue;
    }
    if (call.result.data)
      store_results<S>(call.result, item.batch, own_tile.by_keys() ? own_tile.kv_head() : item.head, tile, results,
                       call.accumulate, at);
    if constexpr (both)
      store_results<S>(call.result_out, item.batch, own_tile.kv_head(), tile, results_out, call.accumulate, at);
  }
}

template <class S, Of of>
void sum(Stream stream, const GradientCall<float>& call) {
  with_staged(
      call, call.visited, call.visited_out,
      [&]<int Depth>(const GradientCall<float>& staged, std::integral_constant<int, Depth>, std::int64_t items) {
        if constexpr (Depth <= most_of_both) {
          const std::int64_t bytes =
              (2 + 2 * visited_tiles) * WarpgroupTile<Depth>::count * std::int64_t{sizeof(Chunk)};
          launch("attention backward", &sum_by_warpgroup<S, Depth, of>, shape_of_items(items, mma_threads, bytes),
                 stream, staged, items);
        } else if constexpr (of != Of::both) {
          launch_by_fragments<S, Depth, By::warpgroup, of>(stream, staged, items);
        }
      });
}

template <class S>
void sum(Stream stream, const std::vector<GradientCall<float>>& calls) {
  GradientCall<float> first = calls.front();
  if (calls.size() == 2 && std::max(first.own.depth, first.own_out.depth) <= most_of_both) {
    first.result_out = calls.back().result;
    return sum<S, Of::both>(stream, first);
  }
  for (const GradientCall<float>& call : calls)
    call.of_weights ? sum<S, Of::weights>(stream, call) : sum<S, Of::scores>(stream, call);
}

}  // namespace

void sum_gradients_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls, DType dtype) {
  dtype == DType::f16 ? sum<Half>(stream, calls) : sum<BFloat16>(stream, calls);
}

}  // namespace poolgrad::kernels::cuda
