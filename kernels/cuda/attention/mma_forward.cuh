// Computes out and lse on tensor cores by the online softmax of forward.cu. Weights are rounded to the operand type
// before the product with values (Dao 2023). Sums and results are f32. f32 operands are split, not rounded
// (split_tile.cuh). Each warp multiplies its own rows here; warpgroup_forward.cu multiplies by warpgroups.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/dropped.cuh"
#include "kernels/cuda/attention/warpgroup_tile.cuh"

namespace poolgrad::kernels::cuda {

/// Softmax state of a row, spread over four neighboring lanes. `maximum` is the row's; `sum` covers the lane's own
/// scores.
struct RowState {
  float maximum, sum;
};

/// A tile of queries of one head, as a thread sees it.
struct QueryTile {
  const ForwardCall<float>& call;
  const TileItems::Item& item;
  const Progression& tile;  // a reference: a copy takes registers that sm_80 lacks
  const LaneOfTile& at;

  __device__ std::int64_t query_of(int half) const { return tile.row + at.row(half) * tile.stride; }
  __device__ std::int32_t kv_head() const { return item.head / static_cast<std::int32_t>(call.group); }
  /// Returns the head in the schedule.
  __device__ std::int64_t scheduled() const { return call.items.first_head + item.head; }
  __device__ TileRows queries() const {
    return rows_of(call.q, item.batch, item.head, tile, 0, static_cast<int>(tile.count));
  }

  /// Sets states and results to their values before the first key.
  template <std::size_t Fragments>
  __device__ void begin(RowState (&state)[2], FragmentC (&results)[Fragments]) const {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    POOLGRAD_UNROLL
    for (int half = 0; half < 2; ++half) {
      state[half] = {nothing, 0};
      if (at.row(half) >= tile.count) continue;
      state[half].maximum = call.first_maximum(item.batch, item.head, query_of(half));
      if (state[half].maximum == nothing) continue;
      if (at.lane % lanes_of_fragment_row == 0) state[half].sum = 1;
      if (!call.carry_out.data) continue;
      const float* from = reinterpret_cast<const float*>(call.carry_out.data) + item.batch * call.carry_out.batch +
                          item.head * call.carry_out.head + query_of(half) * call.carry_out.row;
      POOLGRAD_UNROLL
      for (int f = 0; f < static_cast<int>(Fragments); ++f) {
        if (8 * f >= static_cast<int>(call.v.depth)) continue;
        POOLGRAD_UNROLL
        for (int i = 0; i < 2; ++i) results[f].value[2 * half + i] = from[at.column(f, i)];
      }
    }
  }

  /// Turns products into scores pair by pair and applies all score rules.
  template <class S, std::size_t Fragments>
  __device__ void score_pairs(FragmentC (&scores)[Fragments], const Shared<float>& scratch,
                              const VisitedRows& keys) const {
    const AttentionProgram& program = call.program;
    const AttentionRun& run = program.run[keys.run];
    const Columns seen[2] = {columns_seen(program, keys, tile, at.row(0)),
                             columns_seen(program, keys, tile, at.row(1))};
    for_each_score(scores, scratch, at, [&](int, int half, int column, float& score) {
      const Columns row = {half ? seen[1].begin : seen[0].begin, half ? seen[1].end : seen[0].end};
      const std::int64_t step = keys.first + column;
      const Visit visit{program, run, scheduled(), tile.position + at.row(half) * tile.step};
      if (row.contain(column) && visit.keeps(step)) {
        const Pair pair{query_of(half), run.keys.row + step * run.keys.stride, visit.row_position,
                        visit.position(step)};
        if constexpr (splits<S>)
          score = product_unless_finite(score, call.q, offset_of(call.q, item.batch, item.head, pair.query), call.k,
                                        offset_of(call.k, item.batch, kv_head(), pair.key));
        float slope;
        score = call.rules.score(score, item.batch, item.head, pair, slope) + visit.log_multiplicity<float>(step);
      } else {
        score = -std::numeric_limits<float>::infinity();
      }
    });
  }

  /// Stores the thread's dropped-score bits, one word per 64 columns, at dropped_of[threadIdx.x] in steps of a block.
  template <int Rows>
  __device__ void draw(const Shared<std::uint32_t>& dropped_of, const VisitedRows& keys) const {
    POOLGRAD_UNROLL
    for (int part = 0; part < Rows / mma_rows; ++part)
      dropped_of[part * mma_threads + thread_of_block()] =
          DroppedPairs(call.rules, item.batch, item.head, at)
              .of(positions_of(tile, 0), positions_of(call.program.run[keys.run].keys, keys.first + part * mma_rows),
                  false);
  }

  /// Writes out and lse. Returns false for results that are not finite; the caller then repeats the tile pair by pair.
  template <class S, std::size_t Fragments>
  __device__ bool end(const RowState (&state)[2], FragmentC (&results)[Fragments], bool nan_safe) const {
    if (!nan_safe && any_is_not_finite(results, tile.count, at)) return false;
    POOLGRAD_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = warp_reduce<reductions::Sum>(state[half].sum, lanes_of_fragment_row);
      if (at.row(half) < tile.count && call.lse.data && at.lane % lanes_of_fragment_row == 0)
        call.lse.at(item.batch, item.head, query_of(half)) = state[half].maximum + Math<float>::log(total);
      scale_row(results, half, total == 0 ? 0 : 1 / total);
    }
    store_results<S>(call.out, item.batch, item.head, tile, results, false, at);
    return true;
  }
};

/// Replaces scores by weights. A score is value * unit; without `only_scaled` it is the value itself. Sets `factor`,
/// the multiplier for the results so far.
template <std::size_t Fragments>
__device__ void weigh(FragmentC (&scores)[Fragments], float unit, bool only_scaled, RowState (&state)[2],
                      float (&factor)[2]) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  constexpr int fragments = static_cast<int>(Fragments);
  float highest[2][2] = {{nothing, nothing}, {nothing, nothing}};  // two per row, to shorten the dependency chain
  POOLGRAD_UNROLL
  for (int f = 0; f < fragments; ++f) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) highest[i / 2][f % 2] = larger(highest[i / 2][f % 2], scores[f].value[i]);
  }
  float shift[2], sum[2][2] = {};
  POOLGRAD_UNROLL
  for (int half = 0; half < 2; ++half) {
    float found = larger(highest[half][0], highest[half][1]);
    found = larger(found, shuffle_xor(found, 2));
    found = larger(state[half].maximum, unit * larger(found, shuffle_xor(found, 1)));
    shift[half] = found == nothing ? 0 : found;
    factor[half] = exp2_approx((state[half].maximum - shift[half]) * log2_e);
    state[half].maximum = found;
  }
  unit *= log2_e;
  if (only_scaled) {
    shift[0] = in_base_2(shift[0]), shift[1] = in_base_2(shift[1]);
  } else {  // subtract first, so that a large bias cancels
    POOLGRAD_UNROLL
    for (FragmentC& part : scores) {
      POOLGRAD_UNROLL
      for (int i = 0; i < elements_of_c; ++i) part.value[i] -= shift[i / 2];
    }
    shift[0] = shift[1] = 0;
  }
  POOLGRAD_UNROLL
  for (int f = 0; f < fragments; ++f) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) {
      float& score = scores[f].value[i];
      score = exp2_approx(Math<float>::fma(score, unit, -shift[i / 2]));
      sum[i / 2][f % 2] += score;
    }
  }
  POOLGRAD_UNROLL
  for (int half = 0; half < 2; ++half) {
    settle(sum[half][0]), settle(sum[half][1]);  // keeps the compiler from copying weights for the dropout below
    state[half].sum = state[half].sum * factor[half] + (sum[half][0] + sum[half][1]);
  }
}

/// Multiplies the results of a warp by `factor` after its rows found new maxima.
template <std::size_t Fragments>
__device__ void rescale(FragmentC (&results)[Fragments], const float (&factor)[2]) {
  if (__all_sync(all_threads_of_warp, factor[0] == 1 && factor[1] == 1)) return;
  scale_row(results, 0, factor[0]);
  scale_row(results, 1, factor[1]);
}

/// Sets bit e if the thread's score e is of a pair that counts.
template <std::size_t Fragments>
__device__ std::uint64_t counted_of(const FragmentC (&scores)[Fragments]) {
  std::uint64_t counted = 0;
  POOLGRAD_UNROLL
  for (int e = 0; e < static_cast<int>(Fragments) * elements_of_c; ++e) {
    const bool counts = scores[e / elements_of_c].value[e % elements_of_c] != -std::numeric_limits<float>::infinity();
    counted |= static_cast<std::uint64_t>(counts) << e;
  }
  return counted;
}
/// Marks the weights of all other pairs for add_weighted_pairs().
template <std::size_t Fragments>
__device__ void mark_uncounted(FragmentC (&weights)[Fragments], std::uint64_t counted) {
  POOLGRAD_UNROLL
  for (int e = 0; e < static_cast<int>(Fragments) * elements_of_c; ++e)
    if (!(counted >> e & 1)) weights[e / elements_of_c].value[e % elements_of_c] = uncounted<float>;
}

/// Blocks per multiprocessor, limited by registers and shared memory.
template <class S, int Depth>
inline constexpr int forward_blocks = Depth <= 32 && !splits<S> ? 3 : 2;

/// Whether queries stay in registers. Rows of 64 columns do; rows of 128 do not fit. With 32 columns a third block per
/// multiprocessor gains more. f32 keeps rows of 32 alone and has no third block.
template <class S, int Depth>
inline constexpr bool forward_keeps = splits<S> ? Depth == 32 : Depth == 64;

/// Tiles of keys, and of values, in shared memory at once.
template <class S>
inline constexpr int forward_buffers = splits<S> ? 1 : 2;

/// Shared memory holds the rows of queries, two tiles of keys and two of values. The next tiles are copied into the
/// free pair while the block processes the current keys. f32 has one tile of each kind. Its values arrive during the
/// product with keys, and the next keys during the softmax.
template <class S, int Depth>
__global__ __launch_bounds__(mma_threads, (forward_blocks<S, Depth>)) void attend_by_fragments(
    const __grid_constant__ ForwardCall<float> call, const std::int64_t items) {
  using Tile = TileOf<S, Depth, By::warps>;
  constexpr int buffers = forward_buffers<S>, own_tiles = splits<S> ? 0 : 1;
  POOLGRAD_SHARED(float, scratch, scratch_floats);
  POOLGRAD_SHARED(float, terms, buffers* mma_rows);         // per column
  POOLGRAD_SHARED(std::uint32_t, dropped_of, mma_threads);  // per thread, for its scores
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const AttentionProgram& program = call.program;
  const ScoreRules<float>& rules = call.rules;
  const LaneOfTile at;
  POOLGRAD_ROLLED
  for (Turns turn(items); turn.are_left(); turn.next()) {
    const TileItems::Item item = call.items.at(program, turn.item());
    if (!item.exists) continue;
    const QueryTile own_tile{call, item, program.tile[item.tile], at};
    const Progression& tile = own_tile.tile;
    if (tile.count == 0) continue;
    const std::int32_t kv_head = own_tile.kv_head();
    const bool works = at.first_row < tile.count;
    RowState state[2];
    FragmentsC<Depth> results = {};
    own_tile.begin(state, results);

    const TileRows queries = own_tile.queries();
    OwnRows<S, Tile, forward_keeps<S, Depth>> own(call.q, queries, at);
    int buffer = 0;
    const auto keys_in = [&](int i) { return Tile{(own_tiles + i) * Tile::count}; };
    const auto values_in = [&](int i) { return Tile{(own_tiles + buffers + i) * Tile::count}; };
    const auto stage = [&](const Operand& x, Tile to, const VisitedRows& rows) {
      stage_rows_async(staged, to, x, rows.of(program, x, item.batch, kv_head));
      cp_async_commit();
    };
    Visits<> visits(program, tile, program.of(own_tile.scheduled(), item.tile));
    VisitedRows next = visits.next();
    if (next.count > 0) {
      __syncthreads();  // all threads have read the last tile's staged rows
      if constexpr (!splits<S>) {
        own.stage(staged, Tile{0});
        cp_async_commit();
      }
      stage(call.staged_k, keys_in(buffer), next);
      if constexpr (!splits<S>) {
        stage(call.staged_v, values_in(buffer), next);
        wait_for_staged<By::warps, 2>();  // queries have arrived
        own.take(staged);
      }
    }
    POOLGRAD_ROLLED
    for (; next.count > 0; buffer ^= buffers - 1) {
      const VisitedRows keys = next;
      const auto tell = [&] { tell_terms<mma_rows>(terms, buffer * mma_rows, program, keys); };
      if (buffers > 1) tell();
      wait_for_staged<By::warps, 0>();  // keys are there, of two buffers values, too; those before them are read
      next = visits.next();
      if (rules.drops && works) own_tile.draw<mma_rows>(dropped_of, keys);
      Scores scores;
      if constexpr (buffers == 1) {
        stage(call.staged_v, values_in(buffer), keys);
        tell();
        if (works) multiply_staged(scores, staged, own, keys_in(buffer), at);
        wait_for_staged<By::warps, 0>();  // values have arrived, and keys have been read
        if (next.count > 0) stage(call.staged_k, keys_in(buffer), next);
        if (!works) continue;
      } else {
        if (next.count > 0) {
          stage(call.staged_k, keys_in(buffer ^ 1), next);
          stage(call.staged_v, values_in(buffer ^ 1), next);
        }
        if (!works) continue;
        multiply_staged(scores, staged, own, keys_in(buffer), at);
      }
      const bool only_scaled = only_scales(rules, keys) && !turn.nan_safe();
      float unit = 1, factor[2];
      if (only_scaled)
        unit = scale_and_cut(scores, rules, program, keys, tile, terms, buffer * mma_rows, at);
      else
        own_tile.score_pairs<S>(scores, scratch, keys);
      const std::uint64_t counted = turn.nan_safe() ? counted_of(scores) : 0;
      weigh(scores, unit, only_scaled, state, factor);
      rescale(results, factor);
      if (rules.drops) keep(scores, dropped_of[thread_of_block()], rules.kept);
      if (turn.nan_safe()) {
        mark_uncounted(scores, counted);
        add_weighted_pairs<S, Depth>(results, scores, scratch, call.v, keys.of(program, call.v, item.batch, kv_head));
      } else {
        add_weighted_staged<S, Depth>(results, scores, staged, values_in(buffer), at);
      }
    }
    if (!own_tile.end<S>(state, results, turn.nan_safe())) turn.again();
  }
}

/// Launches one block per tile of queries. kernel_of(depth) returns the kernel; chunks_of(depth) returns its shared
/// memory in chunks. `depth` is the staged column count, a compile-time constant.
template <class KernelOf, class ChunksOf>
void launch_forward(Stream stream, const ForwardCall<float>& call, const KernelOf& kernel_of,
                    const ChunksOf& chunks_of) {
  const std::int64_t items = call.items.count(call.program);
  if (items == 0) return;
  with_staged_depth({call.q.depth, call.v.depth}, [&](const auto depth) {
    const std::int64_t bytes = chunks_of(depth) * std::int64_t{sizeof(Chunk)};
    launch("attention", kernel_of(depth), shape_of_items(items, mma_threads, bytes), stream, call, items);
  });
}

}  // namespace poolgrad::kernels::cuda
