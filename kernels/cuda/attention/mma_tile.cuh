// What the attention kernels of tensor cores share. A block is four warps; a tile has 64 rows, of which each warp has
// 16, and visits 64 rows at a time. Both are staged in shared memory as they are stored, in f16 or bf16; how f32 is
// multiplied stands in split_tile.cuh.
//
//   scores    16 x 64 a warp, in eight fragments of C: the products of its rows with the rows that are visited
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

#include "kernels/cuda/attention/calls.cuh"
#include "kernels/cuda/mma/mma.cuh"
#include "kernels/cuda/mma/staged.h"

namespace poolgrad::kernels::cuda {

inline constexpr int mma_threads = 128, mma_rows = 64, rows_of_warp = 16;
inline constexpr int score_fragments = mma_rows / 8, scores_of_lane = score_fragments * elements_of_c;
inline constexpr int set_aside_count = scores_of_lane * mma_threads;
inline constexpr int weight_fragments = mma_rows / 16, lanes_of_fragment_row = 4;
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

/// Begins to copy rows of an operand, whole tiles: rows and columns that are not there are zeros.
template <class Tile>
__device__ void stage_rows_async(const Shared<Chunk>& staged, Tile to, const Operand& x, const TileRows& rows) {
  constexpr int chunks = Tile::chunks, rows_at_once = mma_threads / chunks;
  const int first_row = static_cast<int>(threadIdx.x) / chunks, chunk = static_cast<int>(threadIdx.x) % chunks;
  const int count = chunk * elements_of_chunk < static_cast<int>(x.depth) ? rows.count : 0;
  const auto* from =
      reinterpret_cast<const std::uint16_t*>(x.data) + rows.first + first_row * rows.step + chunk * elements_of_chunk;
  POOLGRAD_UNROLL
  for (int row = 0; row < mma_rows; row += rows_at_once) {
    cp_async_16(staged, to.at(first_row + row, chunk), from, first_row + row < count);
    from += rows_at_once * rows.step;
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
    for (int w = 0; w < weight_fragments; ++w) {
      const FragmentAB b = ldmatrix_x4<false>(staged, visited.at(16 * w + place.row, 2 * f ^ place.column));
      mma_m16n8k16<S>(scores[2 * w], a, b.word[0], b.word[1]);
      mma_m16n8k16<S>(scores[2 * w + 1], a, b.word[2], b.word[3]);
    }
  });
}

/// f(word, two neighbouring weights) for the words of fragment w of A that scores become, as place_in_a() has them:
/// rows 0 and 8 of the left half, then of the right.
template <class F>
__device__ void for_each_weight_pair(const Scores& scores, int w, const F& f) {
  POOLGRAD_UNROLL
  for (int part = 0; part < 4; ++part) {
    const FragmentC& half = scores[2 * w + part / 2];
    f(part, half.value[part % 2 * 2], half.value[part % 2 * 2 + 1]);
  }
}

/// Fragments 2 w and 2 w + 1 of scores, rounded, as a fragment of A.
template <class S>
__device__ FragmentAB rounded_weights(const Scores& scores, int w) {
  FragmentAB weights;
  for_each_weight_pair(
      scores, w, [&](int word, float first, float second) { weights.word[word] = packed_pair<S>(first, second); });
  return weights;
}

/// results += weights, rounded, * visited rows.
template <class S, int Depth>
__device__ void add_weighted_staged(FragmentsC<Depth>& results, const Scores& scores, const Shared<Chunk>& staged,
                                    StagedTile<Depth> visited, const LaneOfTile& at) {
  FragmentAB weights[weight_fragments];
  POOLGRAD_UNROLL
  for (int w = 0; w < weight_fragments; ++w) weights[w] = rounded_weights<S>(scores, w);
  const Place place = rows_before_columns(at.lane);
  POOLGRAD_UNROLL
  for (int w = 0; w < weight_fragments; ++w) {
    POOLGRAD_UNROLL
    for (int c = 0; c < Depth / 16; ++c) {
      const FragmentAB b = ldmatrix_x4<true>(staged, visited.at(16 * w + place.row, 2 * c ^ place.column));
      mma_m16n8k16<S>(results[2 * c], weights[w], b.word[0], b.word[1]);
      mma_m16n8k16<S>(results[2 * c + 1], weights[w], b.word[2], b.word[3]);
    }
  }
}

/// The same, pair by pair, with weights that have been set aside, and are not rounded: those of gradients may be more
/// than S has. One that does not count (`uncounted`) is multiplied with nothing. A NaN or an infinity then does not
/// reach the rows that do not see it, as it does through the product of fragments, where 0 times it is NaN.
template <class S, int Depth>
__device__ void add_weighted_pairs(FragmentsC<Depth>& results, const Shared<float>& aside, const Operand& x,
                                   const TileRows& visited) {
  const int own = thread_of_block();
  const int quad = own % lanes_of_fragment_row, first_thread = own - quad;
  POOLGRAD_ROLLED
  for (int j = 0; j < visited.count; ++j) {
    const S* from = reinterpret_cast<const S*>(x.data) + visited.first + j * visited.step + 2 * quad;
    POOLGRAD_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int element = j / 8 * elements_of_c + 2 * half + j % 2, thread = first_thread + j % 8 / 2;
      const float weight = aside[element * mma_threads + thread];
      if (!counts(weight)) continue;
      POOLGRAD_UNROLL
      for (int f = 0; f < Depth / 8; ++f) {
        if (8 * f >= static_cast<int>(x.depth)) continue;
        POOLGRAD_UNROLL
        for (int i = 0; i < 2; ++i) results[f].value[2 * half + i] += weight * widened<float>(from[8 * f + i]);
      }
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

/// Rows of one run that a tile visits together, and what all of them share.
struct VisitedRows {
  std::int64_t first = 0;           // step of the run
  std::int32_t run = 0, count = 0;  // of the program, which has less than 2^31
  bool whole = false;               // they are mma_rows, and every row of the tile sees all of them
  std::uint8_t flags = 0, period = 0;

  /// In the tensors. It is looked up where it is asked for, as registers are scarce.
  __device__ std::int64_t row(const AttentionProgram& program, int i) const {
    const Progression& keys = program.run[run].keys;
    return keys.row + (first + i) * keys.stride;
  }
  __device__ TileRows of(const AttentionProgram& program, const Operand& x, std::int64_t batch,
                         std::int64_t head) const {
    return {offset_of(x, batch, head, row(program, 0)), program.run[run].keys.stride * x.row, count};
  }
};
/// All that a tile visits, in the order of the program.
class Visits {
 public:
  __device__ Visits(const AttentionProgram& program, const Progression& tile, std::int64_t number)
      : program_(program), tile_(tile), end_(static_cast<std::int32_t>(program.tile_begin[number + 1])) {
    now_.run = static_cast<std::int32_t>(program.tile_begin[number]) - 1;
  }

  /// Count is 0 behind the last.
  __device__ VisitedRows next() {
    now_.first += now_.count;
    while (now_.first >= steps_end_) {
      if (++now_.run >= end_) {
        now_.count = 0;
        return now_;
      }
      begin(program_.run[now_.run]);
    }
    now_.count = static_cast<std::int32_t>(steps_end_ - now_.first < mma_rows ? steps_end_ - now_.first : mma_rows);
    now_.whole = now_.count == mma_rows && all_see_.begin <= now_.first && now_.first + mma_rows <= all_see_.end;
    return now_;
  }

 private:
  /// No end of what a row sees decreases from row to row: the first and the last row say what any and what all see.
  __device__ void begin(const AttentionRun& run) {
    Interval first{0, run.keys.count}, last = first;
    if (!run.has(AttentionRun::whole)) {
      first = last = {0, 0};
      if (!run.rows.empty()) {
        first = program_.steps_seen(run, run.keys, tile_.position + run.rows.begin * tile_.step);
        last = program_.steps_seen(run, run.keys, tile_.position + (run.rows.end - 1) * tile_.step);
      }
    }
    steps_end_ = last.end;
    all_see_ = {last.begin, first.end};
    if (!run.has(AttentionRun::whole) && (run.rows.begin > 0 || run.rows.end < tile_.count)) all_see_ = {0, 0};
    now_.first = first.begin;
    now_.flags = run.flags;
    now_.period = run.period;
  }

  const AttentionProgram& program_;
  const Progression& tile_;
  std::int32_t end_;
  std::int64_t steps_end_ = 0;
  Interval all_see_{0, 0};
  VisitedRows now_;
};

/// Columns of the scores, of 64, that row i of the tile sees.
struct Columns {
  int begin, end;

  __device__ bool contain(int column) const { return begin <= column && column < end; }
};
__device__ inline Columns columns_seen(const AttentionProgram& program, const VisitedRows& visited,
                                       const Progression& tile, int i) {
  const Interval steps = steps_of_row(program, program.run[visited.run], tile, i);
  const auto column = [&](std::int64_t step) {
    const std::int64_t apart = step - visited.first;
    return apart < 0 ? 0 : apart < mma_rows ? static_cast<int>(apart) : mma_rows;
  };
  return {column(steps.begin), column(steps.end)};
}

/// Whether scores are products that are scaled, and a term of each column: no option asks about pairs.
__device__ inline bool only_scales(const ScoreRules<float>& rules, const VisitedRows& visited) {
  return rules.softcap == 0 && !rules.bias && !rules.alibi && !(visited.flags & AttentionRun::masked);
}
/// What is added to the scores of a column: the logarithm of how often its pairs count.
__device__ inline float term_of_column(const AttentionProgram& program, const VisitedRows& visited, int column) {
  const AttentionRun& run = program.run[visited.run];
  return Visit{program, run, 0, 0}.log_multiplicity<float>(visited.first + column);
}

/// Adds terms of columns, from `first` on.
__device__ inline void add_terms(Scores& scores, const Shared<float>& terms, int first, const LaneOfTile& at) {
  POOLGRAD_UNROLL
  for (int f = 0; f < score_fragments; ++f) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) scores[f].value[i] += terms[first + at.column(f, i)];
  }
}
/// Sets scores of pairs that do not count to -infinity: those outside of what their rows see.
__device__ inline void cut(Scores& scores, const AttentionProgram& program, const VisitedRows& visited,
                           const Progression& tile, const LaneOfTile& at) {
  POOLGRAD_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Columns seen = columns_seen(program, visited, tile, at.row(half));
    POOLGRAD_UNROLL
    for (int f = 0; f < score_fragments; ++f) {
      POOLGRAD_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i)
        if (!seen.contain(at.column(f, i))) scores[f].value[i] = -std::numeric_limits<float>::infinity();
    }
  }
}

/// Of products that only_scales(): what they, or what is now in their place, are multiplied with to be scores. `terms`
/// of columns lie from `first` on.
__device__ inline float scale_and_cut(Scores& products, const ScoreRules<float>& rules, const AttentionProgram& program,
                                      const VisitedRows& visited, const Progression& tile, const Shared<float>& terms,
                                      int first, const LaneOfTile& at) {
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

/// The logarithm of a weight to base 2 is score * log2(e) - in_base_2(of the largest score, or lse), in one rounding:
/// that of the subtrahend is in all weights of a row, and divided out. Where it would be seen there is a NaN instead;
/// then results are not finite, and the tile is done again with care.
__device__ inline float in_base_2(float score) {
  constexpr float most = 1 << 24, infinity = std::numeric_limits<float>::infinity();
  const float size = score < 0 ? -score : score;
  return size <= most || size == infinity ? score * log2_e : std::numeric_limits<float>::quiet_NaN();
}

/// Element e of a thread to [e * mma_threads + threadIdx.x], where it can be had by its number.
__device__ inline void set_aside(const Shared<float>& aside, const Scores& scores) {
  POOLGRAD_UNROLL
  for (int e = 0; e < scores_of_lane; ++e)
    aside[e * mma_threads + static_cast<int>(threadIdx.x)] = scores[e / elements_of_c].value[e % elements_of_c];
}
__device__ inline void take_from_aside(Scores& scores, const Shared<float>& aside) {
  POOLGRAD_UNROLL
  for (int e = 0; e < scores_of_lane; ++e)
    scores[e / elements_of_c].value[e % elements_of_c] = aside[e * mma_threads + static_cast<int>(threadIdx.x)];
}
/// f(element, row half, column, value&) for all scores of a thread, in a loop that is not unrolled: what can be asked
/// about a pair is much code. So the scores go through shared memory, where each thread has its own place.
template <class F>
__device__ void for_each_score(Scores& scores, const Shared<float>& aside, const LaneOfTile& at, const F& f) {
  const int own = static_cast<int>(threadIdx.x);
  set_aside(aside, scores);
  POOLGRAD_ROLLED
  for (int e = 0; e < scores_of_lane; ++e) {
    float value = aside[e * mma_threads + own];
    f(e, e / 2 % 2, at.column(e / elements_of_c, e % elements_of_c), value);
    aside[e * mma_threads + own] = value;
  }
  __syncwarp();  // lanes have asked different things, and multiply together next
  take_from_aside(scores, aside);
}

/// What is dropped, bit e for score e, times 0, and the rest times `kept`.
__device__ inline void keep(Scores& scores, std::uint32_t dropped, float kept) {
  POOLGRAD_UNROLL
  for (int e = 0; e < scores_of_lane; ++e)
    scores[e / elements_of_c].value[e % elements_of_c] *= dropped >> e & 1 ? 0 : kept;
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
