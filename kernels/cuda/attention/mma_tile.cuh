// Shared parts of the tensor-core attention kernels. A block has four warps. A tile has 64 rows, 16 per warp, and
// visits 64 rows at a time. Shared memory stages both as stored, in f16 or bf16. split_tile.cuh multiplies f32.
//
//   scores    16 x 64 per warp, in eight fragments of C: own rows times visited rows; 16 x 128 in warpgroup_forward.cu,
//             which visits 128 rows at a time
//   weights   scores rounded to the stored type; a fragment of C has the layout of a fragment of A
//   results   16 x depth per warp, in fragments of C, += weights * visited rows
//
// A masked pair must not affect a row, but a weight of 0 times NaN or infinity is NaN. If the results of a tile are not
// finite, the block repeats the tile and adds the pairs that count one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/attention/visits.cuh"
#include "kernels/cuda/mma/mma.cuh"
#include "kernels/cuda/mma/staged.h"

namespace poolgrad::kernels::cuda {

inline constexpr int rows_of_warp = 16;
inline constexpr int score_fragments = mma_rows / 8, scores_of_lane = score_fragments * elements_of_c;
inline constexpr int scratch_floats = scores_of_lane * mma_threads;
inline constexpr int lanes_of_fragment_row = 4;
inline constexpr float log2_e = 1.44269504088896340736f;

/// Iterates over the items of a block. An item marked by again() comes a second time, pair by pair. The state is one
/// number because registers are scarce.
class Turns {
 public:
  __device__ explicit Turns(std::int64_t items) : state_(4 * std::int64_t{blockIdx.x}), end_(4 * items) {}
  __device__ bool are_left() const { return state_ < end_; }
  __device__ std::int64_t item() const { return state_ / 4; }
  __device__ bool nan_safe() const { return state_ & 2; }
  __device__ void again() { state_ |= 1; }
  __device__ void next() { state_ = state_ & 1 ? state_ + 1 : (state_ / 4 + gridDim.x) * 4; }

 private:
  std::int64_t state_, end_;
};

/// A lane's share of a warp's rows.
template <int Columns>
using FragmentsC = FragmentC[static_cast<std::size_t>(Columns / 8)];
using Scores = FragmentsC<mma_rows>;

template <int Depth>
using StagedTile = StagedRows<mma_rows, Depth>;
/// Calls f(depth) with the smallest staged column count that covers all `depths`, a compile-time constant.
template <class F>
void with_staged_depth(std::initializer_list<std::int64_t> depths, const F& f) {
  const std::int64_t most = std::max(depths);
  if (most <= 32)
    f(std::integral_constant<int, 32>{});
  else if (most <= 64)
    f(std::integral_constant<int, 64>{});
  else
    f(std::integral_constant<int, 128>{});
}

/// Position of a thread in the tile. Its elements are in rows row(0) and row(1).
struct LaneOfTile {
  int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
  int first_row = static_cast<int>(threadIdx.x) / threads_per_warp * rows_of_warp;

  __device__ int row(int half) const { return first_row + place_in_c(lane, 2 * half).row; }
  /// Returns the column of element i of fragment f.
  __device__ int column(int f, int i) const { return 8 * f + place_in_c(lane, i).column; }
};

/// Starts the copy of whole tiles of an operand to shared memory; missing rows and columns become zero. A thread copies
/// one chunk of several rows, spaced so that all have the same swizzle.
template <class Tile>
__device__ void stage_rows_async(const Shared<Chunk>& staged, Tile to, const Operand& x, const TileRows& rows) {
  constexpr int chunks = Tile::chunks, rows_at_once = mma_threads / chunks;
  static_assert(rows_at_once % 8 == 0);
  const int first_row = static_cast<int>(threadIdx.x) / chunks, chunk = static_cast<int>(threadIdx.x) % chunks;
  const int place = to.first + Tile{0}.at(first_row, chunk);
  const int count = chunk * elements_of_chunk < static_cast<int>(x.depth) ? rows.count : 0;
  const auto* from =
      reinterpret_cast<const std::uint16_t*>(x.data) + rows.first + first_row * rows.step + chunk * elements_of_chunk;
  const std::int64_t step = rows_at_once * rows.step;
  if (count == Tile::rows) {
    POOLGRAD_UNROLL
    for (int row = 0; row < Tile::rows; row += rows_at_once) {
      cp_async_16(staged, place + row * Tile::across, from, true);
      from += step;
    }
  } else {
    POOLGRAD_UNROLL
    for (int row = 0; row < Tile::rows; row += rows_at_once) {
      cp_async_16(staged, place + row * Tile::across, from, first_row + row < count);
      from += step;
    }
  }
}

/// The warp's rows as fragments of A, one per 16 columns. Each use takes a fragment from registers (`Kept`), from the
/// staged rows, or, for f32, from global memory.
template <class S, class Tile, bool Kept>
class OwnRows {
 public:
  static constexpr int count = Tile::depth / 16;

  __device__ OwnRows(const Operand& x, const TileRows& rows, const LaneOfTile& at) : x_(x), rows_(rows), at_(at) {}
  /// Starts the copy to shared memory.
  __device__ void stage(const Shared<Chunk>& staged, Tile tile) {
    tile_ = tile;
    stage_rows_async(staged, tile, x_, rows_);
  }
  /// Loads the kept fragments; the rows must be staged.
  __device__ void take(const Shared<Chunk>& staged) {
    if constexpr (Kept) {
      POOLGRAD_UNROLL
      for (int f = 0; f < count; ++f) fragment_[f] = load(staged, f);
    }
  }
  __device__ FragmentAB at(const Shared<Chunk>& staged, int f) const {
    if constexpr (Kept)
      return fragment_[f];
    else
      return load(staged, f);
  }
  __device__ const Tile& tile() const { return tile_; }

 private:
  __device__ FragmentAB load(const Shared<Chunk>& staged, int f) const {
    const Place place = rows_before_columns(at_.lane);
    return ldmatrix_x4<false>(staged, tile_.at(at_.first_row + place.row, 2 * f ^ place.column));
  }

  const Operand& x_;
  const TileRows rows_;
  const LaneOfTile& at_;
  Tile tile_{};
  FragmentAB fragment_[static_cast<std::size_t>(Kept ? count : 1)];
};

/// Calls f(index) for each fragment of own rows. If they are not kept, partial unrolling limits the registers.
template <class S, class Tile, bool Kept, class F>
__device__ void for_each_fragment(const OwnRows<S, Tile, Kept>& own, const F& f) {
  if constexpr (Kept) {
    POOLGRAD_UNROLL
    for (int n = 0; n < own.count; ++n) f(n);
  } else {
    POOLGRAD_UNROLL_TWO
    for (int n = 0; n < own.count; ++n) f(n);
  }
}

/// scores = rows of the warp * visited rows.
template <class S, int Depth, bool Kept>
__device__ void multiply_staged(Scores& scores, const Shared<Chunk>& staged,
                                const OwnRows<S, StagedTile<Depth>, Kept>& own, StagedTile<Depth> visited,
                                const LaneOfTile& at) {
  const Place place = columns_before_rows(at.lane);
  POOLGRAD_UNROLL
  for (auto& fragment : scores) fragment = {};
  for_each_fragment(own, [&](int f) {
    const FragmentAB a = own.at(staged, f);
    POOLGRAD_UNROLL
    for (int w = 0; w < score_fragments / 2; ++w) {
      const FragmentAB b = ldmatrix_x4<false>(staged, visited.at(16 * w + place.row, 2 * f ^ place.column));
      mma_m16n8k16<S>(scores[2 * w], a, b.word[0], b.word[1]);
      mma_m16n8k16<S>(scores[2 * w + 1], a, b.word[2], b.word[3]);
    }
  });
}

/// Calls f(word, two neighboring weights) for the words of fragment w of A, in the order of place_in_a(): rows 0 and 8
/// of the left half, then of the right half.
template <std::size_t Fragments, class F>
__device__ void for_each_weight_pair(const FragmentC (&scores)[Fragments], int w, const F& f) {
  POOLGRAD_UNROLL
  for (int part = 0; part < 4; ++part) {
    const FragmentC& half = scores[2 * w + part / 2];
    f(part, half.value[part % 2 * 2], half.value[part % 2 * 2 + 1]);
  }
}

/// Rounded scores as fragments of A; each takes two fragments of C.
template <int Columns>
using FragmentsA = FragmentAB[static_cast<std::size_t>(Columns / 16)];
template <class S, std::size_t Count>
__device__ void round_weights(const FragmentC (&scores)[2 * Count], FragmentAB (&weights)[Count]) {
  POOLGRAD_UNROLL
  for (int w = 0; w < static_cast<int>(Count); ++w)
    for_each_weight_pair(
        scores, w, [&](int word, float first, float second) { weights[w].word[word] = packed_pair<S>(first, second); });
}

/// results += rounded weights * visited rows.
template <class S, int Depth>
__device__ void add_weighted_staged(FragmentsC<Depth>& results, const Scores& scores, const Shared<Chunk>& staged,
                                    StagedTile<Depth> visited, const LaneOfTile& at) {
  FragmentsA<mma_rows> weights;
  round_weights<S>(scores, weights);
  const Place place = rows_before_columns(at.lane);
  POOLGRAD_UNROLL
  for (int w = 0; w < score_fragments / 2; ++w) {
    POOLGRAD_UNROLL
    for (int c = 0; c < Depth / 16; ++c) {
      const FragmentAB b = ldmatrix_x4<true>(staged, visited.at(16 * w + place.row, 2 * c ^ place.column));
      mma_m16n8k16<S>(results[2 * c], weights[w], b.word[0], b.word[1]);
      mma_m16n8k16<S>(results[2 * c + 1], weights[w], b.word[2], b.word[3]);
    }
  }
}

/// Returns whether the results of any thread of the block are NaN or infinite in the tile's first `count` rows.
template <std::size_t Fragments>
__device__ bool any_is_not_finite(const FragmentC (&results)[Fragments], std::int64_t count, const LaneOfTile& at) {
  bool found[2] = {};
  POOLGRAD_UNROLL
  for (const FragmentC& part : results) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) found[i / 2] |= part.value[i] - part.value[i] != 0;
  }
  const bool counts = (found[0] && at.row(0) < count) || (found[1] && at.row(1) < count);
  return block_reduce<reductions::Maximum, mma_threads>(counts ? 1.0f : 0.0f) != 0;
}

/// Returns whether a score is a scaled product plus a term per column, without rules that depend on the pair.
__device__ inline bool only_scales(const ScoreRules<float>& rules, const VisitedRows& visited) {
  return rules.softcap == 0 && !rules.bias && !rules.alibi && !(visited.flags & AttentionRun::masked);
}
/// Adds the terms of columns, stored from index `first`.
template <std::size_t Fragments>
__device__ void add_terms(FragmentC (&scores)[Fragments], const Shared<float>& terms, int first, const LaneOfTile& at) {
  POOLGRAD_UNROLL
  for (int f = 0; f < static_cast<int>(Fragments); ++f) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) scores[f].value[i] += terms[first + at.column(f, i)];
  }
}
/// Sets the scores of masked pairs to -infinity.
template <std::size_t Fragments>
__device__ void cut(FragmentC (&scores)[Fragments], const AttentionProgram& program, const VisitedRows& visited,
                    const Progression& tile, const LaneOfTile& at) {
  POOLGRAD_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Columns seen = columns_seen(program, visited, tile, at.row(half));
    POOLGRAD_UNROLL
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const std::uint32_t bits = seen.fragments(at.column(0, i));
      POOLGRAD_UNROLL
      for (int f = 0; f < static_cast<int>(Fragments); ++f)
        if (!(bits >> f & 1)) scores[f].value[i] = -std::numeric_limits<float>::infinity();
    }
  }
}

/// Prepares products for which only_scales() holds. Returns the factor that turns the products, as changed, into
/// scores. The `terms` of columns start at index `first`.
template <std::size_t Fragments>
__device__ float scale_and_cut(FragmentC (&products)[Fragments], const ScoreRules<float>& rules,
                               const AttentionProgram& program, const VisitedRows& visited, const Progression& tile,
                               const Shared<float>& terms, int first, const LaneOfTile& at) {
  float unit = 1;
  if (visited.period == 0 && rules.scale > 0) {
    unit = rules.scale;
  } else {
    POOLGRAD_UNROLL
    for (FragmentC& part : products) {
      POOLGRAD_UNROLL
      for (float& score : part.value) score *= rules.scale;
    }
    if (visited.period > 0) add_terms(products, terms, first, at);
  }
  if (!visited.whole) cut(products, program, visited, tile, at);
  return unit;
}

/// Number of 64-column parts of the scores. put_in_scratch() handles one part at a time.
template <std::size_t Fragments>
inline constexpr int parts_of_scores = static_cast<int>(Fragments) / score_fragments;
/// Calls f(part) with a constant part index.
template <std::size_t Fragments, class F>
__device__ void for_each_part(const F& f) {
  POOLGRAD_UNROLL
  for (int part = 0; part < parts_of_scores<Fragments>; ++part) f(part);
}

/// log2 of a weight is score * log2(e) - in_base_2(largest score or lse), in one rounding. The rounding error of
/// in_base_2() is common to all weights of a row and cancels in the quotient. For sizes above 2^24 the error matters,
/// so the function returns NaN. The block then repeats the tile pair by pair.
__device__ inline float in_base_2(float score) {
  constexpr float most = 1 << 24, infinity = std::numeric_limits<float>::infinity();
  const float size = score < 0 ? -score : score;
  return size <= most || size == infinity ? score * log2_e : std::numeric_limits<float>::quiet_NaN();
}

/// Copies element e of the thread's `part`-th 64 columns of scores to scratch[e * mma_threads + threadIdx.x]. There a
/// runtime index can select it.
template <std::size_t Fragments>
__device__ void put_in_scratch(const Shared<float>& scratch, const FragmentC (&scores)[Fragments], int part = 0) {
  for_each_part<Fragments>([&](int p) {
    if (p != part) return;
    POOLGRAD_UNROLL
    for (int e = 0; e < scores_of_lane; ++e)
      scratch[e * mma_threads + static_cast<int>(threadIdx.x)] =
          scores[p * score_fragments + e / elements_of_c].value[e % elements_of_c];
  });
}
template <std::size_t Fragments>
__device__ void take_from_scratch(FragmentC (&scores)[Fragments], const Shared<float>& scratch, int part = 0) {
  for_each_part<Fragments>([&](int p) {
    if (p != part) return;
    POOLGRAD_UNROLL
    for (int e = 0; e < scores_of_lane; ++e)
      scores[p * score_fragments + e / elements_of_c].value[e % elements_of_c] =
          scratch[e * mma_threads + static_cast<int>(threadIdx.x)];
  });
}
/// Calls f(element, row half, column, value&) for all scores of a thread. The loop is not unrolled because the per-pair
/// rules are much code. The scores go through shared memory, one slot per thread.
template <std::size_t Fragments, class F>
__device__ void for_each_score(FragmentC (&scores)[Fragments], const Shared<float>& scratch, const LaneOfTile& at,
                               const F& f) {
  const int own = static_cast<int>(threadIdx.x);
  POOLGRAD_ROLLED
  for (int part = 0; part < parts_of_scores<Fragments>; ++part) {
    put_in_scratch(scratch, scores, part);
    POOLGRAD_ROLLED
    for (int e = 0; e < scores_of_lane; ++e) {
      float value = scratch[e * mma_threads + own];
      f(e, e / 2 % 2, part * mma_rows + at.column(e / elements_of_c, e % elements_of_c), value);
      scratch[e * mma_threads + own] = value;
    }
    __syncwarp();  // reconverges the lanes before the next product
    take_from_scratch(scores, scratch, part);
  }
}

/// Returns a weight as round_weights() rounds it. Returns it unrounded if the result overflows S: gradients of scores
/// may exceed the range of f16.
template <class S>
__device__ float rounded_weight(float weight) {
  const float rounded = widened<float>(narrowed<S>(weight));
  return rounded - rounded == 0 ? rounded : weight;
}

/// results += rounded weights * visited rows, pair by pair. Skips pairs marked `uncounted`, so a NaN or infinity in a
/// masked row stays out of the results. The product of fragments would spread it, because 0 * NaN is NaN. Rounding
/// matches add_weighted_staged(): other rows of the tile differ only by the order of sums. Shared memory passes weights
/// to the neighboring lanes.
template <class S, int Depth, std::size_t Fragments>
__device__ void add_weighted_pairs(FragmentsC<Depth>& results, const FragmentC (&weights)[Fragments],
                                   const Shared<float>& scratch, const Operand& x, const TileRows& visited) {
  const int own = thread_of_block();
  const int quad = own % lanes_of_fragment_row, first_thread = own - quad;
  POOLGRAD_ROLLED
  for (int part = 0; part < parts_of_scores<Fragments>; ++part) {
    put_in_scratch(scratch, weights, part);
    __syncwarp();
    POOLGRAD_ROLLED
    for (int j = 0; j < mma_rows && part * mma_rows + j < visited.count; ++j) {
      const S* from =
          reinterpret_cast<const S*>(x.data) + visited.first + (part * mma_rows + j) * visited.step + 2 * quad;
      POOLGRAD_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int element = j / 8 * elements_of_c + 2 * half + j % 2, thread = first_thread + j % 8 / 2;
        float weight = scratch[element * mma_threads + thread];
        if (!counts(weight)) continue;
        weight = rounded_weight<S>(weight);
        POOLGRAD_UNROLL
        for (int f = 0; f < Depth / 8; ++f) {
          if (8 * f >= static_cast<int>(x.depth)) continue;
          POOLGRAD_UNROLL
          for (int i = 0; i < 2; ++i) results[f].value[2 * half + i] += weight * widened<float>(from[8 * f + i]);
        }
      }
    }
    __syncwarp();  // the next part reuses the memory
  }
}

/// Multiplies dropped scores (bit e for score e of the `part`-th 64 columns) by 0 and the others by `kept`.
template <std::size_t Fragments>
__device__ void keep(FragmentC (&scores)[Fragments], std::uint32_t dropped, float kept, int part = 0) {
  POOLGRAD_UNROLL
  for (int e = 0; e < scores_of_lane; ++e)
    scores[part * score_fragments + e / elements_of_c].value[e % elements_of_c] *= dropped >> e & 1 ? 0 : kept;
}

/// Returns the larger of two numbers and ignores a NaN; the sum of weights still shows it.
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }

template <std::size_t Fragments>
__device__ void scale_row(FragmentC (&results)[Fragments], int half, float factor) {
  POOLGRAD_UNROLL
  for (FragmentC& part : results) {
    part.value[2 * half] *= factor;
    part.value[2 * half + 1] *= factor;
  }
}

/// Stores the results of a thread to rows of an operand of dtype S or f32.
template <class S, std::size_t Fragments>
__device__ void store_results(const Operand& x, std::int64_t batch, std::int64_t head, const Progression& tile,
                              const FragmentC (&results)[Fragments], bool accumulate, const LaneOfTile& at) {
  const auto put = [&]<class R>(R) {
    POOLGRAD_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (at.row(half) >= tile.count) continue;
      R* to = reinterpret_cast<R*>(x.data) + batch * x.batch + head * x.head +
              (tile.row + at.row(half) * tile.stride) * x.row;
      POOLGRAD_UNROLL
      for (int f = 0; f < static_cast<int>(Fragments); ++f) {
        if (8 * f >= static_cast<int>(x.depth)) continue;
        POOLGRAD_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int column = at.column(f, i);
          const float value = results[f].value[2 * half + i];
          to[column] = narrowed<R>(accumulate ? widened<float>(to[column]) + value : value);
        }
      }
    }
  };
  if constexpr (!std::is_same_v<S, float>)
    if (x.dtype != DType::f32) return put(S{});
  put(float{});
}

}  // namespace poolgrad::kernels::cuda
