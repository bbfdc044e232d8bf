// Computes out and lse by warpgroups, with the softmax of mma_forward.cuh and more keys per visit. Registers limit the
// blocks per multiprocessor, and more blocks keep its tensor cores busier. So one thread finds the next visit for all.
//
//   visit n    starts the scores; starts copies of its values and of the keys of visit n + 1
//              turns scores into weights
//              multiplies the weights with the values
//
// Shared memory holds two tiles of keys and one of values. A visit has two barriers.
#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_forward.cuh"

namespace poolgrad::kernels::cuda {
namespace {

/// Keys per visit, and blocks per multiprocessor, limited by registers and shared memory.
template <int Depth>
inline constexpr int keys_of_visit = Depth <= 64 ? 2 * mma_rows : mma_rows;
template <int Depth>
[[maybe_unused]] inline constexpr int blocks_of_warpgroup = Depth <= 64 ? 3 : 2;

template <class S, int Depth>
__global__ __launch_bounds__(mma_threads, blocks_of_warpgroup<Depth>) void attend_by_warpgroup(
    const __grid_constant__ ForwardCall<float> call, const std::int64_t items) {
  if constexpr (!multiplies_in_warpgroups) return;
  constexpr int rows = keys_of_visit<Depth>, words = rows / mma_rows;
  using Tile = WarpgroupTile<Depth, rows>;
  using OwnTile = WarpgroupTile<Depth>;
  using Told = TileBroadcast<rows>;
  POOLGRAD_SHARED(float, scratch, scratch_floats);
  POOLGRAD_SHARED(float, terms, rows);                              // per column
  POOLGRAD_SHARED(std::uint32_t, dropped_of, words * mma_threads);  // per thread, for its scores
  POOLGRAD_SHARED(typename Told::State, visits_so_far, 1);
  POOLGRAD_SHARED(ToldRows, told, Told::slots);
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const AttentionProgram& program = call.program;
  const ScoreRules<float>& rules = call.rules;
  const LaneOfTile at;
  const Told visits(visits_so_far, told);
  const auto keys_in = [](int i) { return Tile{OwnTile::count + i * Tile::count}; };
  constexpr Tile values{OwnTile::count + 2 * Tile::count};
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    const QueryTile own_tile{call, item, program.tile[item.tile], at};
    const Progression& tile = own_tile.tile;
    if (tile.count == 0) continue;
    const auto stage = [&](const Operand& x, Tile to, const ToldRows& visited) {
      stage_rows_async(staged, to, x, visited.of(x, item.batch, own_tile.kv_head()));
      cp_async_commit();
    };
    RowState state[2];
    FragmentsC<Depth> results = {};
    own_tile.begin(state, results);

    __syncthreads();  // all threads have read the last tile's staged rows and groups
    const TileRows queries = own_tile.queries();
    OwnRows<S, OwnTile, false> own(call.q, queries, at);
    visits.begin(program, tile, program.of(own_tile.scheduled(), item.tile));
    __syncthreads();
    int slot = 0, buffer = 0;
    if (const ToldRows first = visits.at(slot); first.count > 0) {
      own.stage(staged, OwnTile{0});
      stage(call.k, keys_in(buffer), first);
      tell_terms<rows>(terms, 0, program, first);
    }
    POOLGRAD_ROLLED
    for (; visits.at(slot).count > 0; buffer ^= 1) {
      wait_for_staged<By::warpgroup, 0>();  // keys have arrived, and the previous ones are read
      const int after = slot == Told::slots - 1 ? 0 : slot + 1, found = Told::slots - slot - after;
      FragmentsC<rows> scores;
      begin_multiply(scores, staged, own, keys_in(buffer));
      stage(call.v, values, visits.at(slot));
      if (const ToldRows next = visits.at(after); next.count > 0)
        stage(call.k, keys_in(buffer ^ 1), next);
      else
        cp_async_commit();
      visits.find(program, tile, after, found);
      if (rules.drops) own_tile.draw<rows>(dropped_of, visits.at(slot));
      wait_for_products<0>(scores);
      const ToldRows now = visits.at(slot);
      const bool only_scaled = only_scales(rules, now) && !turn.nan_safe();
      float unit = 1, factor[2];
      if (only_scaled)
        unit = scale_and_cut(scores, rules, program, now, tile, terms, 0, at);
      else
        own_tile.score_pairs<S>(scores, scratch, now);
      const std::uint64_t counted = turn.nan_safe() ? counted_of(scores) : 0;
      weigh(scores, unit, only_scaled, state, factor);
      rescale(results, factor);
      if (rules.drops) {
        POOLGRAD_UNROLL
        for (int part = 0; part < words; ++part)
          keep(scores, dropped_of[part * mma_threads + thread_of_block()], rules.kept, part);
      }
      wait_for_staged<By::warpgroup, 1>();  // values have arrived, and the product of scores is done
      if (const ToldRows next = visits.at(after); next.period > 0) tell_terms<rows>(terms, 0, program, next);
      if (turn.nan_safe()) {
        mark_uncounted(scores, counted);
        add_weighted_pairs<S, Depth>(results, scores, scratch, call.v,
                                     visits.at(slot).of(call.v, item.batch, own_tile.kv_head()));
      } else {
        begin_add_weighted<S>(results, scores, staged, values);
        wait_for_products<0>(results);
      }
      slot = after;
    }
    if (!own_tile.end<S>(state, results, turn.nan_safe())) turn.again();
  }
}

template <class S>
void attend(Stream stream, const ForwardCall<float>& call) {
  launch_forward(
      stream, call, []<int Depth>(std::integral_constant<int, Depth>) { return &attend_by_warpgroup<S, Depth>; },
      []<int Depth>(std::integral_constant<int, Depth>) {
        return WarpgroupTile<Depth>::count + 3 * WarpgroupTile<Depth, keys_of_visit<Depth>>::count;
      });
}

}  // namespace

void attend_by_warpgroups(Stream stream, const ForwardCall<float>& call, DType dtype) {
  dtype == DType::f16 ? attend<Half>(stream, call) : attend<BFloat16>(stream, call);
}

}  // namespace poolgrad::kernels::cuda
