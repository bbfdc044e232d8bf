// Tiles that the four warps of a block multiply as a warpgroup (Hopper). Like mma_tile.cuh, but products are
// asynchronous and overlap with other work.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/split_tile.cuh"
#include "kernels/cuda/mma/warpgroup.cuh"

namespace poolgrad::kernels::cuda {

/// Unit of multiplication: each warp its own rows, or all warps of a block together.
enum class By { warps, warpgroup };

template <int Depth, int Rows = mma_rows>
using WarpgroupTile = PanelRows<Rows, Depth>;
template <class S, int Depth, By by>
using TileOf = std::conditional_t<splits<S>, SplitTile<Depth>,
                                  std::conditional_t<by == By::warps, StagedTile<Depth>, WarpgroupTile<Depth>>>;

/// Waits until all but the last `Pending` groups of copies are visible to the block.
template <By by, int Pending>
__device__ void wait_for_staged() {
  cp_async_wait<Pending>();
  if constexpr (by == By::warpgroup) fence_for_products();
  __syncthreads();
}

/// Starts scores = staged own rows * visited rows.
template <class S, int Depth, int Rows>
__device__ void begin_multiply(FragmentsC<Rows>& scores, const Shared<Chunk>& staged,
                               const OwnRows<S, WarpgroupTile<Depth>, false>& own, PanelRows<Rows, Depth> visited) {
  begin_products();
  POOLGRAD_UNROLL
  for (int f = 0; f < own.count; ++f)
    multiply_in_warpgroup<S>(scores, StagedMatrix::columns(own.tile(), 2 * f), staged,
                             StagedMatrix::columns(visited, 2 * f), f > 0);
  commit_products();
}
template <class S, int Depth>
__device__ void multiply_staged(Scores& scores, const Shared<Chunk>& staged,
                                const OwnRows<S, WarpgroupTile<Depth>, false>& own, WarpgroupTile<Depth> visited,
                                const LaneOfTile&) {
  begin_multiply(scores, staged, own, visited);
  wait_for_products<0>(scores);
}

/// Starts results += rounded weights * visited rows.
template <class S, int Depth, int Rows>
__device__ void begin_add_weighted(FragmentsC<Depth>& results, const FragmentsC<Rows>& scores,
                                   const Shared<Chunk>& staged, PanelRows<Rows, Depth> visited) {
  FragmentsA<Rows> weights;
  round_weights<S>(scores, weights);
  begin_products();
  POOLGRAD_UNROLL
  for (int w = 0; w < Rows / 16; ++w)
    multiply_in_warpgroup<S, true>(results, weights[w], staged, StagedMatrix::rows(visited, 16 * w), true);
  commit_products();
}
template <class S, int Depth>
__device__ void add_weighted_staged(FragmentsC<Depth>& results, const Scores& scores, const Shared<Chunk>& staged,
                                    WarpgroupTile<Depth> visited, const LaneOfTile&) {
  begin_add_weighted<S>(results, scores, staged, visited);
  wait_for_products<0>(results);
}

}  // namespace poolgrad::kernels::cuda
