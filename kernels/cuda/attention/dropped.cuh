// Finds the dropped scores of a lane. One Philox draw serves four neighboring keys (attention_dropout.h), which a
// warp's fragments spread over several lanes. If keys are consecutive and start at a multiple of four, the lanes share
// the draws and exchange bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma_tile.cuh"

namespace poolgrad::kernels::cuda {

/// Positions of the rows or columns of a tile of scores.
struct Positions {
  std::int64_t first, step;

  __device__ std::int64_t at(int i) const { return first + i * step; }
  __device__ bool fill_groups() const { return step == 1 && first % 4 == 0; }
};
/// Returns the positions from row `first` of a progression.
__device__ inline Positions positions_of(const Progression& rows, std::int64_t first) {
  return {rows.position + first * rows.step, rows.step};
}

class DroppedPairs {
 public:
  __device__ DroppedPairs(const ScoreRules<float>& rules, std::int64_t batch, std::int64_t head, const LaneOfTile& at)
      : dropout_(rules.dropout), batch_(rules.first_batch + batch), head_(rules.first_head + head), at_(at) {}

  /// Sets bit e if dropout drops the weight of the lane's score e. All threads of the warp must call it.
  __device__ std::uint32_t of(const Positions& rows, const Positions& columns, bool rows_are_keys) const {
    if (rows_are_keys) return rows.fill_groups() ? of_rows(rows, columns) : one_by_one(columns, rows, true);
    return columns.fill_groups() ? of_columns(rows, columns) : one_by_one(rows, columns, false);
  }

 private:
  /// Returns a bit for each of the keys 4 g .. 4 g + 3 of a query.
  __device__ std::uint32_t draw(std::int64_t query, std::int64_t group) const {
    const PhiloxWords words = dropout_.words(batch_, head_, query, group);
    std::uint32_t bits = 0;
    POOLGRAD_UNROLL
    for (int i = 0; i < 4; ++i) bits |= static_cast<std::uint32_t>(words.word[i] < dropout_.threshold) << i;
    return bits;
  }

  /// Keys are columns: two neighboring lanes hold the keys of a group in two rows each. Each lane draws for one row.
  __device__ std::uint32_t of_columns(const Positions& queries, const Positions& keys) const {
    const int half = at_.lane % 2, first = at_.column(0, 0) / 4 * 4;
    std::uint32_t own = 0;  // four bits per fragment
    POOLGRAD_ROLLED
    for (int f = 0; f < score_fragments; ++f)
      own |= draw(queries.at(at_.row(half)), keys.at(8 * f + first) / 4) << (4 * f);
    const std::uint32_t other = shuffle_xor(own, 1), upper = half == 0 ? own : other, lower = half == 0 ? other : own;
    constexpr std::uint32_t two = 0x33333333;  // the lane's two of four bits
    return (upper >> (2 * half) & two) | (lower >> (2 * half) & two) << 2;
  }
  /// Keys are rows: four lanes, one below the other, hold the keys of a group. Each lane draws for a quarter of the
  /// columns.
  __device__ std::uint32_t of_rows(const Positions& keys, const Positions& queries) const {
    const int own_row = at_.lane / 4 % 4, first_row = at_.row(0) - own_row, first_lane = at_.lane - 4 * own_row;
    std::uint32_t own = 0;  // four bits for each of eight elements
    POOLGRAD_ROLLED
    for (int n = 0; n < 8; ++n) {
      const std::int64_t query = queries.at(at_.column(2 * own_row + n / elements_of_c, n % elements_of_c));
      own |= draw(query, keys.at(first_row + n / 2 % 2 * 8) / 4) << (4 * n);
    }
    std::uint32_t dropped = 0;
    POOLGRAD_UNROLL
    for (int lane = 0; lane < 4; ++lane) {
      std::uint32_t bits = __shfl_sync(all_threads_of_warp, own, first_lane + 4 * lane) >> own_row & 0x11111111u;
      bits = (bits | bits >> 3) & 0x03030303u;
      bits = (bits | bits >> 6) & 0x000f000fu;
      dropped |= ((bits | bits >> 12) & 0xffu) << (8 * lane);
    }
    return dropped;
  }
  __device__ std::uint32_t one_by_one(const Positions& queries, const Positions& keys, bool rows_are_keys) const {
    std::uint32_t dropped = 0;
    POOLGRAD_ROLLED
    for (int e = 0; e < scores_of_lane; ++e) {
      const int row = at_.row(e / 2 % 2), column = at_.column(e / elements_of_c, e % elements_of_c);
      const std::int64_t query = queries.at(rows_are_keys ? column : row), key = keys.at(rows_are_keys ? row : column);
      dropped |= (draw(query, key >> 2) >> (key & 3) & 1) << e;
    }
    return dropped;
  }

  const AttentionDropout& dropout_;
  const std::int64_t batch_, head_;
  const LaneOfTile& at_;
};

}  // namespace poolgrad::kernels::cuda
