// Tiles that the four warps of a block multiply together, as a warpgroup, where the GPU can (Hopper): mma_tile.cuh's,
// but that products are begun, and that other work is done until they are there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/split_tile.cuh"
#include "kernels/cuda/mma/warpgroup.cuh"

namespace poolgrad::kernels::cuda {

/// Who multiplies: each warp its rows, or the warps of a block together.
enum class By { warps, warpgroup };

template <int Depth>
using WarpgroupTile = PanelRows<mma_rows, Depth>;
template <class S, int Depth, By by>
using TileOf = std::conditional_t<splits<S>, SplitTile<Depth>,
                                  std::conditional_t<by == By::warps, StagedTile<Depth>, WarpgroupTile<Depth>>>;

/// What the threads have begun to copy to shared memory is there for all, but for their last `Pending` groups.
template <By by, int Pending>
__device__ void wait_for_staged() {
  cp_async_wait<Pending>();
  if constexpr (by == By::warpgroup) fence_for_products();
  __syncthreads();
}

/// Copies the rows of an operand that a tile visits, a group of copies for each visit. Where they are is looked up each
/// time, or kept from visit to visit of a run (`Kept`), where there are registers for it.
template <class Tile, bool Kept>
class Stager {
 public:
  __device__ Stager(const AttentionProgram& program, const Operand& x, std::int32_t batch, std::int32_t head)
      : program_(program), x_(x), batch_(batch), head_(head) {}
  __device__ void stage(const Shared<Chunk>& staged, Tile to, const VisitedRows& rows) const {
    stage_rows_async(staged, to, x_, rows.of(program_, x_, batch_, head_));
    cp_async_commit();
  }

 private:
  const AttentionProgram& program_;
  const Operand& x_;
  const std::int32_t batch_, head_;
};
template <int Depth>
class Stager<WarpgroupTile<Depth>, true> {
 public:
  __device__ Stager(const AttentionProgram& program, const Operand& x, std::int32_t batch, std::int32_t head)
      : program_(program), x_(x), batch_(batch), head_(head) {}
  __device__ void stage(const Shared<Chunk>& staged, WarpgroupTile<Depth> to, const VisitedRows& rows) {
    constexpr int chunks = WarpgroupTile<Depth>::chunks, rows_at_once = mma_threads / chunks;
    const int first_row = static_cast<int>(threadIdx.x) / chunks, chunk = static_cast<int>(threadIdx.x) % chunks;
    if (rows.run != run_) {
      run_ = rows.run;
      const Progression& keys = program_.run[run_].keys;
      step_ = keys.stride * x_.row;
      from_ = reinterpret_cast<const std::uint16_t*>(x_.data) + offset_of(x_, batch_, head_, keys.row) +
              (rows.first + first_row) * step_ + chunk * elements_of_chunk;
    }
    const int count = chunk * elements_of_chunk < static_cast<int>(x_.depth) ? rows.count : 0;
    POOLGRAD_UNROLL
    for (int row = 0; row < mma_rows; row += rows_at_once) {
      cp_async_16(staged, to.at(first_row + row, chunk), from_, first_row + row < count);
      from_ += rows_at_once * step_;
    }
    cp_async_commit();
  }

 private:
  const AttentionProgram& program_;
  const Operand& x_;
  const std::int32_t batch_, head_;
  std::int32_t run_ = -1;
  const std::uint16_t* from_ = nullptr;
  std::int64_t step_ = 0;
};

/// Begins scores = own rows, where they are staged, * visited rows.
template <class S, int Depth>
__device__ void begin_multiply(Scores& scores, const Shared<Chunk>& staged,
                               const OwnRows<S, WarpgroupTile<Depth>, false>& own, WarpgroupTile<Depth> visited) {
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

/// Begins results += weights, rounded, * visited rows.
template <class S, int Depth>
__device__ void begin_add_weighted(FragmentsC<Depth>& results, const Scores& scores, const Shared<Chunk>& staged,
                                   WarpgroupTile<Depth> visited) {
  FragmentAB weights[weight_fragments];
  POOLGRAD_UNROLL
  for (int w = 0; w < weight_fragments; ++w) weights[w] = rounded_weights<S>(scores, w);
  begin_products();
  POOLGRAD_UNROLL
  for (int w = 0; w < weight_fragments; ++w)
    multiply_in_warpgroup<S, true>(results, weights[w], staged, StagedMatrix::rows(visited, 16 * w), true);
  commit_products();
}
template <class S, int Depth>
__device__ void add_weighted_staged(FragmentsC<Depth>& results, const Scores& scores, const Shared<Chunk>& staged,
                                    WarpgroupTile<Depth> visited, const LaneOfTile&) {
  begin_add_weighted<S, Depth>(results, scores, staged, visited);
  wait_for_products<0>(results);
}

}  // namespace poolgrad::kernels::cuda
