// f32 on tensor cores (Henry, Tang, Heinecke 2019). A number is the sum of three bf16 numbers with eight of its 24
// significant bits each. A product is the sum of six bf16 products; the three omitted ones together are below 2^-21 of
// it. split.h splits visited rows in advance, and shared memory holds them as three bf16 tiles. The rows of a warp are
// read from global memory and split at each use.
//
// Tensor cores do not round sums to nearest, so long sums drift. The products of each 64 visited rows are therefore
// summed from zero, small ones apart from large ones. The sums are then added to the results in f32.
//
// An infinity cannot be split: its products are NaN, and the block repeats the tile pair by pair.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/mma_tile.cuh"

namespace poolgrad::kernels::cuda {

/// Whether operands of a type are split.
template <class S>
inline constexpr bool splits = std::is_same_v<S, float>;

/// Words of two neighboring elements, the largest parts first.
struct SplitPair {
  std::uint32_t plane[split_planes];
};
/// A lane's part of A.
struct SplitFragment {
  FragmentAB plane[split_planes];

  __device__ void set(int word, const SplitPair& pair) {
    POOLGRAD_UNROLL
    for (int p = 0; p < split_planes; ++p) plane[p].word[word] = pair.plane[p];
  }
};

/// Splits two numbers by truncation, not rounding. Parts of finite numbers stay finite, and each remainder is exact.
POOLGRAD_HD inline SplitPair split(float first, float second) {
  SplitPair pair;
  POOLGRAD_UNROLL
  for (std::uint32_t& plane : pair.plane) {
    const auto low = std::bit_cast<std::uint32_t>(first), high = std::bit_cast<std::uint32_t>(second);
    plane = low >> 16 | (high & 0xffff0000u);
    first -= std::bit_cast<float>(low & 0xffff0000u);
    second -= std::bit_cast<float>(high & 0xffff0000u);
  }
  return pair;
}

/// 64 split rows in shared memory.
template <int Depth>
struct SplitTile {
  static constexpr int depth = Depth, count = split_planes * StagedTile<Depth>::count;
  int first;

  POOLGRAD_HD constexpr StagedTile<Depth> plane(int p) const { return {first + p * StagedTile<Depth>::count}; }
};

/// Starts the copy of rows that are already split.
template <int Depth>
__device__ void stage_rows_async(const Shared<Chunk>& staged, SplitTile<Depth> to, const Operand& x,
                                 const TileRows& rows) {
  POOLGRAD_UNROLL
  for (int p = 0; p < split_planes; ++p)
    stage_rows_async(staged, to.plane(p), x, {rows.first + p * x.depth, rows.step, rows.count});
}

template <int Depth, bool Kept>
class OwnRows<float, SplitTile<Depth>, Kept> {
 public:
  static constexpr int count = Depth / 16;

  __device__ OwnRows(const Operand& x, const TileRows& rows, const LaneOfTile& at) : x_(x) {
    POOLGRAD_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = at.row(half) < rows.count ? at.row(half) : 0;  // a missing row reads row 0; its result is unused
      row_[half] =
          reinterpret_cast<const float*>(x.data) + rows.first + row * rows.step + place_in_a(at.lane, 0).column;
    }
    if constexpr (Kept) {
      POOLGRAD_UNROLL
      for (int f = 0; f < count; ++f) {
        POOLGRAD_UNROLL
        for (int word = 0; word < 4; ++word) kept_[f][word] = load(f, word);
      }
    }
  }
  __device__ SplitFragment at(int f) const {
    SplitFragment fragment;
    POOLGRAD_UNROLL
    for (int word = 0; word < 4; ++word) {
      Two values;
      if constexpr (Kept)
        values = kept_[f][word];
      else
        values = load(f, word);
      fragment.set(word, split(values.value[0], values.value[1]));
    }
    return fragment;
  }

 private:
  using Two = Pack<float, 2>;
  __device__ Two load(int f, int word) const {
    const Place place = place_in_a(0, 2 * word);
    if (16 * f >= static_cast<int>(x_.depth)) return {};
    return load_whole<Two>(row_[place.row / 8] + 16 * f + place.column);
  }

  const Operand& x_;
  const float* row_[2];
  Two kept_[static_cast<std::size_t>(Kept ? count : 1)][4];
};

/// Fragments of C summed at once. Rows of 128 elements leave registers for four.
template <int Depth>
inline constexpr int split_fragments = Depth == 64 ? 8 : 4;

/// Sums of products of fragments: `large` of the largest parts, `small` of the others.
template <int Fragments>
struct SplitSums {
  static constexpr auto n = static_cast<std::size_t>(Fragments);
  FragmentC large[n] = {}, small[n] = {};

  /// Adds products. load(p, i) returns parts p of two neighboring fragments of B, index i. Successive products of the
  /// inner loop are independent.
  template <class Load>
  __device__ void add(const SplitFragment& a, const Load& load) {
    POOLGRAD_UNROLL
    for (int q = split_planes - 1; q >= 0; --q) {
      FragmentAB b[n / 2];
      POOLGRAD_UNROLL
      for (int i = 0; i < Fragments / 2; ++i) b[i] = load(q, i);
      POOLGRAD_UNROLL
      for (int p = split_planes - 1 - q; p >= 0; --p) {
        POOLGRAD_UNROLL
        for (int f = 0; f < Fragments; ++f)
          mma_m16n8k16<BFloat16>(p + q == 0 ? large[f] : small[f], a.plane[p], b[f / 2].word[f % 2 * 2],
                                 b[f / 2].word[f % 2 * 2 + 1]);
      }
    }
  }
  __device__ FragmentC sum(int f) const {
    FragmentC result;
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) result.value[i] = large[f].value[i] + small[f].value[i];
    return result;
  }
};

template <int Depth, bool Kept>
__device__ void multiply_staged(Scores& scores, const Shared<Chunk>& staged,
                                const OwnRows<float, SplitTile<Depth>, Kept>& own, SplitTile<Depth> visited,
                                const LaneOfTile& at) {
  const Place place = columns_before_rows(at.lane);
  constexpr int fragments = split_fragments<Depth>;
  POOLGRAD_UNROLL
  for (int first = 0; first < score_fragments; first += fragments) {
    SplitSums<fragments> sums;
    for_each_fragment(own, [&](int f) {
      sums.add(own.at(f), [&](int p, int i) {
        return ldmatrix_x4<false>(staged, visited.plane(p).at(8 * first + 16 * i + place.row, 2 * f ^ place.column));
      });
    });
    POOLGRAD_UNROLL
    for (int f = 0; f < fragments; ++f) scores[first + f] = sums.sum(f);
  }
}

/// Splits the weights instead of rounding them.
template <class S, int Depth>
__device__ void add_weighted_staged(FragmentsC<Depth>& results, const Scores& scores, const Shared<Chunk>& staged,
                                    SplitTile<Depth> visited, const LaneOfTile& at) {
  constexpr int fragments = split_fragments<Depth>;
  const Place place = rows_before_columns(at.lane);
  POOLGRAD_UNROLL
  for (int first = 0; first < Depth / 8; first += fragments) {
    SplitSums<fragments> sums;
    POOLGRAD_UNROLL
    for (int w = 0; w < score_fragments / 2; ++w) {
      SplitFragment weights;
      for_each_weight_pair(scores, w,
                           [&](int word, float left, float right) { weights.set(word, split(left, right)); });
      sums.add(weights, [&](int p, int i) {
        return ldmatrix_x4<true>(staged, visited.plane(p).at(16 * w + place.row, (first + 2 * i) ^ place.column));
      });
    }
    POOLGRAD_UNROLL
    for (int f = 0; f < fragments; ++f) {
      const FragmentC sum = sums.sum(f);
      POOLGRAD_UNROLL
      for (int i = 0; i < elements_of_c; ++i) results[first + f].value[i] += sum.value[i];
    }
  }
}

/// Returns `found` if it is finite. Otherwise recomputes the product of two rows in f32, which handles infinities.
__device__ inline float product_unless_finite(float found, const Operand& a, std::int64_t a_row, const Operand& b,
                                              std::int64_t b_row) {
  if (found - found == 0) return found;
  const float *x = reinterpret_cast<const float*>(a.data) + a_row, *y = reinterpret_cast<const float*>(b.data) + b_row;
  float sum = 0;
  POOLGRAD_ROLLED
  for (int c = 0; c < static_cast<int>(a.depth); ++c) sum += x[c] * y[c];
  return sum;
}

}  // namespace poolgrad::kernels::cuda
