// What the attention kernels of tensor cores share. A block is four warps; a tile has 64 rows, of which each warp has
// 16, and visits 64 rows at a time. Both are staged in shared memory as they are stored, in f16 or bf16; how f32 is
// multiplied stands in split_tile.cuh.
//
//   scores    16 x 64 a warp, in eight fragments of C: the products of its rows with the rows that are visited; of 128
//             rows at a time (warpgroup_forward.cu) 16 x 128
//   weights   scores, rounded to the stored type: as fragments of A they are where they were as fragments of C
//   results   16 x depth a warp, in fragments of C, += weights * visited rows
//
// What a row does not see has no effect on it, though a weight of 0 would not hide a NaN or an infinity: a tile whose
// results are not finite is done again with care, and then the pairs that count are weighed one by one.
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
inline constexpr int set_aside_count = scores_of_lane * mma_threads;
inline constexpr int lanes_of_fragment_row = 4;
inline constexpr float log2_e = 1.44269504088896340736f;

/// The items of a block in turn; one that is asked for again comes once more, with care. It is one number: registers
/// are scarce.
class Turns {
 public:
  __device__ explicit Turns(std::int64_t items) : state_(4 * std::int64_t{blockIdx.x}), end_(4 * items) {}
  __device__ bool are_left() const { return state_ < end_; }
  __device__ std::int64_t item() const { return state_ / 4; }
  __device__ bool with_care() const { return state_ & 2; }
  __device__ void again() { state_ |= 1; }
  __device__ void next() { state_ = state_ & 1 ? state_ + 1 : (state_ / 4 + gridDim.x) * 4; }

 private:
  std::int64_t state_, end_;
};

/// What a lane has of a warp's rows.
template <int Columns>
using FragmentsC = FragmentC[static_cast<std::size_t>(Columns / 8)];
using Scores = FragmentsC<mma_rows>;

template <int Depth>
using StagedTile = StagedRows<mma_rows, Depth>;
/// f(the columns that rows are staged with, a constant), for operands of so many at most.
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

/// Where a thread is, and the rows of the tile that it has elements of: row(0) and row(1).
struct LaneOfTile {
  int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
  int first_row = static_cast<int>(threadIdx.x) / threads_per_warp * rows_of_warp;

  __device__ int row(int half) const { return first_row + place_in_c(lane, 2 * half).row; }
  /// Of its element 4 f + i, in fragment f: the column of the scores or results.
  __device__ int column(int f, int i) const { return 8 * f + place_in_c(lane, i).column; }
};

/// Begins to copy rows of an operand, whole tiles: rows and columns that are not there are zeros. A thread copies one
/// chunk of some rows, which are so far apart that all are turned alike.
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

/// Rows of the warp as fragments of A, one for 16 columns: kept in registers, or read from where they are staged, or,
/// of f32, from memory, each time.
template <class S, class Tile, bool Kept>
class OwnRows {
 public:
  static constexpr int count = Tile::depth / 16;

  __device__ OwnRows(const Operand& x, const TileRows& rows, const LaneOfTile& at) : x_(x), rows_(rows), at_(at) {}
  /// Begins to stage them.
  __device__ void stage(const Shared<Chunk>& staged, Tile tile) {
    tile_ = tile;
    stage_rows_async(staged, tile, x_, rows_);
  }
  /// Once they are staged.
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

/// f(number of a fragment) for those of own rows. Where they are not kept, all at once would take registers.
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

/// f(word, two neighbouring weights) for the words of fragment w of A that scores become, as place_in_a() has them:
/// rows 0 and 8 of the left half, then of the right.
template <std::size_t Fragments, class F>
__device__ void for_each_weight_pair(const FragmentC (&scores)[Fragments], int w, const F& f) {
  POOLGRAD_UNROLL
  for (int part = 0; part < 4; ++part) {
    const FragmentC& half = scores[2 * w + part / 2];
    f(part, half.value[part % 2 * 2], half.value[part % 2 * 2 + 1]);
  }
}

/// Scores of so many columns, rounded, as fragments of A: each of two of theirs.
template <int Columns>
using FragmentsA = FragmentAB[static_cast<std::size_t>(Columns / 16)];
template <class S, std::size_t Count>
__device__ void round_weights(const FragmentC (&scores)[2 * Count], FragmentAB (&weights)[Count]) {
  POOLGRAD_UNROLL
  for (int w = 0; w < static_cast<int>(Count); ++w)
    for_each_weight_pair(
        scores, w, [&](int word, float first, float second) { weights[w].word[word] = packed_pair<S>(first, second); });
}

/// results += weights, rounded, * visited rows.
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

/// Whether the results of any thread of the block hold a NaN or an infinity, in the tile's first `count` rows.
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

/// Whether scores are products that are scaled, and a term of each column: no option asks about pairs.
__device__ inline bool only_scales(const ScoreRules<float>& rules, const VisitedRows& visited) {
  return rules.softcap == 0 && !rules.bias && !rules.alibi && !(visited.flags & AttentionRun::masked);
}
/// Adds terms of columns, from `first` on.
template <std::size_t Fragments>
__device__ void add_terms(FragmentC (&scores)[Fragments], const Shared<float>& terms, int first, const LaneOfTile& at) {
  POOLGRAD_UNROLL
  for (int f = 0; f < static_cast<int>(Fragments); ++f) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) scores[f].value[i] += terms[first + at.column(f, i)];
  }
}
/// Sets scores of pairs that do not count to -infinity: those outside of what their rows see.
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

/// Of products that only_scales(): what they, or what is now in their place, are multiplied with to be scores. `terms`
/// of columns lie from `first` on.
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

/// Of 64 columns each, which are set aside at once.
template <std::size_t Fragments>
inline constexpr int parts_of_scores = static_cast<int>(Fragments) / score_fragments;
/// f(number of a part), a number that the compiler knows.
template <std::size_t Fragments, class F>
__device__ void for_each_part(const F& f) {
  POOLGRAD_UNROLL
  for (int part = 0; part < parts_of_scores<Fragments>; ++part) f(part);
}

/// The logarithm of a weight to base 2 is score * log2(e) - in_base_2(of the largest score, or lse), in one rounding:
/// that of the subtrahend is in all weights of a row, and divided out. Where it would be seen there is a NaN instead;
/// then results are not finite, and the tile is done again with care.
__device__ inline float in_base_2(float score) {
  constexpr float most = 1 << 24, infinity = std::numeric_limits<float>::infinity();
  const float size = score < 0 ? -score : score;
  return size <= most || size == infinity ? score * log2_e : std::numeric_limits<float>::quiet_NaN();
}

/// Element e of a thread's scores of 64 columns, the `part`-th, to [e * mma_threads + threadIdx.x], where it can be had
/// by its number.
template <std::size_t Fragments>
__device__ void set_aside(const Shared<float>& aside, const FragmentC (&scores)[Fragments], int part = 0) {
  for_each_part<Fragments>([&](int p) {
    if (p != part) return;
    POOLGRAD_UNROLL
    for (int e = 0; e < scores_of_lane; ++e)
      aside[e * mma_threads + static_cast<int>(threadIdx.x)] =
          scores[p * score_fragments + e / elements_of_c].value[e % elements_of_c];
  });
}
template <std::size_t Fragments>
__device__ void take_from_aside(FragmentC (&scores)[Fragments], const Shared<float>& aside, int part = 0) {
  for_each_part<Fragments>([&](int p) {
    if (p != part) return;
    POOLGRAD_UNROLL
    for (int e = 0; e < scores_of_lane; ++e)
      scores[p * score_fragments + e / elements_of_c].value[e % elements_of_c] =
          aside[e * mma_threads + static_cast<int>(threadIdx.x)];
  });
}
/// f(element, row half, column, value&) for all scores of a thread, in a loop that is not unrolled: what can be asked
/// about a pair is much code. So the scores go through shared memory, where each thread has its own place.
template <std::size_t Fragments, class F>
__device__ void for_each_score(FragmentC (&scores)[Fragments], const Shared<float>& aside, const LaneOfTile& at,
                               const F& f) {
  const int own = static_cast<int>(threadIdx.x);
  POOLGRAD_ROLLED
  for (int part = 0; part < parts_of_scores<Fragments>; ++part) {
    set_aside(aside, scores, part);
    POOLGRAD_ROLLED
    for (int e = 0; e < scores_of_lane; ++e) {
      float value = aside[e * mma_threads + own];
      f(e, e / 2 % 2, part * mma_rows + at.column(e / elements_of_c, e % elements_of_c), value);
      aside[e * mma_threads + own] = value;
    }
    __syncwarp();  // lanes have asked different things, and multiply together next
    take_from_aside(scores, aside, part);
  }
}

/// A weight as round_weights() has it; unrounded where S has no such number: of f16, gradients of scores may be larger.
template <class S>
__device__ float rounded_weight(float weight) {
  const float rounded = widened<float>(narrowed<S>(weight));
  return rounded - rounded == 0 ? rounded : weight;
}

/// results += weights, rounded, * visited rows, pair by pair. One that does not count (`uncounted`) is multiplied with
/// nothing. A NaN or an infinity then does not reach the rows that do not see it, as it does through the product of
/// fragments, where 0 times it is NaN. Weights are rounded as in add_weighted_staged(), so that rows of the same tile
/// which see nothing of it keep their results, but for the order of sums. Weights go through shared memory, where
/// neighbours find them.
template <class S, int Depth, std::size_t Fragments>
__device__ void add_weighted_pairs(FragmentsC<Depth>& results, const FragmentC (&weights)[Fragments],
                                   const Shared<float>& aside, const Operand& x, const TileRows& visited) {
  const int own = thread_of_block();
  const int quad = own % lanes_of_fragment_row, first_thread = own - quad;
  POOLGRAD_ROLLED
  for (int part = 0; part < parts_of_scores<Fragments>; ++part) {
    set_aside(aside, weights, part);
    __syncwarp();
    POOLGRAD_ROLLED
    for (int j = 0; j < mma_rows && part * mma_rows + j < visited.count; ++j) {
      const S* from =
          reinterpret_cast<const S*>(x.data) + visited.first + (part * mma_rows + j) * visited.step + 2 * quad;
      POOLGRAD_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int element = j / 8 * elements_of_c + 2 * half + j % 2, thread = first_thread + j % 8 / 2;
        float weight = aside[element * mma_threads + thread];
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
    __syncwarp();  // the next are set aside where these were
  }
}

/// What is dropped, bit e for score e of the `part`-th 64 columns, times 0, and the rest of those times `kept`.
template <std::size_t Fragments>
__device__ void keep(FragmentC (&scores)[Fragments], std::uint32_t dropped, float kept, int part = 0) {
  POOLGRAD_UNROLL
  for (int e = 0; e < scores_of_lane; ++e)
    scores[part * score_fragments + e / elements_of_c].value[e % elements_of_c] *= dropped >> e & 1 ? 0 : kept;
}

/// A NaN is not the larger one: what it is a maximum of shows it in a sum.
__device__ inline float larger(float a, float b) {
#if defined(__CUDACC__)
  return fmaxf(a, b);
#else
  return std::fmax(a, b);
#endif
}

template <std::size_t Fragments>
__device__ void scale_row(FragmentC (&results)[Fragments], int half, float factor) {
  POOLGRAD_UNROLL
  for (FragmentC& part : results) {
    part.value[2 * half] *= factor;
    part.value[2 * half + 1] *= factor;
  }
}

/// Results of a thread to rows of an operand, in its dtype, S or f32.
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
