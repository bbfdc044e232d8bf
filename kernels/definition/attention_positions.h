// What attention schedules are made of: positions in arithmetic progression, intervals, and bounds that move with a
// row. Host and device.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/definition/host_device.h"

namespace poolgrad::kernels {

inline constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
/// Beyond every position, with room for sums.
inline constexpr std::int64_t far_away = std::int64_t{1} << 61;

POOLGRAD_HD constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
POOLGRAD_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return floor_div(a + b - 1, b); }
POOLGRAD_HD constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return a - floor_div(a, b) * b; }

/// The absolute positions of the rows of a tensor: at most two pieces, each a progression of the same stride, and
/// increasing throughout. Whole sequences are {offset, 1}; shards of a ring are chunks, pairs of chunks (zigzag) or
/// every R-th position (striped). Queries before the first key have negative positions.
struct PositionMap {
  std::int64_t count = 0;   // rows
  std::int64_t split = 0;   // rows of the first piece
  std::int64_t first = 0;   // position of row 0
  std::int64_t second = 0;  // position of row `split`
  std::int64_t stride = 1;

  POOLGRAD_HD static constexpr PositionMap contiguous(std::int64_t count, std::int64_t offset = 0) {
    return {count, count, offset, offset, 1};
  }
  POOLGRAD_HD constexpr std::int64_t position(std::int64_t row) const {
    return row < split ? first + row * stride : second + (row - split) * stride;
  }
  /// The positions of the rows [begin, end).
  POOLGRAD_HD constexpr PositionMap part(std::int64_t begin, std::int64_t end) const {
    const std::int64_t of_first = (split < end ? split : end) - begin, beyond = begin - split;
    return {end - begin, of_first > 0 ? of_first : 0, first + begin * stride,
            beyond > 0 ? second + beyond * stride : second, stride};
  }
  struct Piece {
    std::int64_t row, count, position;
  };
  POOLGRAD_HD constexpr Piece piece(int n) const {
    return n == 0 ? Piece{0, split, first} : Piece{split, count - split, second};
  }
  friend bool operator==(const PositionMap&, const PositionMap&) = default;
};

/// Rows row + t * stride for 0 <= t < count, at positions position + t * step.
struct Progression {
  std::int64_t row, stride, count, position, step;

  POOLGRAD_HD constexpr std::int64_t last_position() const { return position + (count - 1) * step; }
};

struct Interval {
  std::int64_t begin, end;  // half-open; empty where begin >= end

  POOLGRAD_HD constexpr bool empty() const { return begin >= end; }
  POOLGRAD_HD constexpr bool contains(std::int64_t x) const { return begin <= x && x < end; }
  POOLGRAD_HD constexpr Interval operator&(const Interval& other) const {
    return {begin > other.begin ? begin : other.begin, end < other.end ? end : other.end};
  }
};
inline constexpr Interval everywhere{-far_away, far_away};

/// x -> floor(x / step) * step + add: never decreases.
struct Edge {
  std::int64_t step = 1, add = 0;
  POOLGRAD_HD constexpr std::int64_t at(std::int64_t x) const {
    return (step == 1 ? x : floor_div(x, step) * step) + add;
  }
};

/// The document of a position: `count` of them lie between count + 1 ascending positions. Empty outside all of them.
POOLGRAD_HD inline Interval document_of(const std::int64_t* documents, int count, std::int64_t position) {
  if (position >= documents[count]) return {documents[count], documents[count]};
  if (position < documents[0]) return {documents[0], documents[0]};
  int below = 0, above = count;  // documents[below] <= position < documents[above]
  while (above - below > 1) {
    const int middle = below + (above - below) / 2;
    (documents[middle] <= position ? below : above) = middle;
  }
  return {documents[below], documents[above]};
}

}  // namespace poolgrad::kernels
