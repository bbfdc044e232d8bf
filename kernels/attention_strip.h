// What attention tiles are made of: positions in arithmetic progression, and strips of key positions of which every row
// of a tile sees an interval. kernels/attention_schedule.h puts them together.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>

#include "kernels/host_device.h"

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

/// Keys that the rows of a tile visit together: positions = phase (mod modulus), of which each row sees an interval.
/// Both ends of it never decrease from one row to the next among the rows that the strip is for.
struct Strip {
  static constexpr int max_edges = 8, max_period = 64;
  std::int64_t modulus = 1, phase = 0;
  Interval rows = everywhere;  // positions of rows that it is for
  Interval keys = everywhere;
  int lows = 0, highs = 0;
  Edge low[max_edges], high[max_edges];  // key >= every low.at(row), key < every high.at(row)
  const std::int64_t* documents = nullptr;
  int document_count = 0;
  bool masked = false;     // AttentionSchedule::keeps() decides pair by pair
  int term = 0, part = 0;  // of the schedule; of the term: the branch
  int period = 0;          // log_multiplicity[floor_mod(key position, period)] is added to the scores; 0: nothing
  double log_multiplicity[max_period];

  /// Key positions (of the strip's residue) that a row of `rows` sees. May end before it begins: then none.
  POOLGRAD_HD Interval interval(std::int64_t row) const;

  /// key >= edge.at(row), key < edge.at(row). Of two edges of one step the tighter stays. False: no room.
  POOLGRAD_HD bool add_low(Edge edge);
  POOLGRAD_HD bool add_high(Edge edge);
};

/// The steps [begin, end) of a tile of rows that the strip is for.
POOLGRAD_HD inline Interval rows_of(const Strip& strip, const Progression& tile) {
  const std::int64_t first = ceil_div(strip.rows.begin - tile.position, tile.step);
  const std::int64_t last = ceil_div(strip.rows.end - tile.position, tile.step);
  return Interval{first, last} & Interval{0, tile.count};
}

/// The positions between which everything lies that the tile's rows see of the strip.
POOLGRAD_HD inline Interval hull_of(const Strip& strip, const Progression& tile) {
  const Interval rows = rows_of(strip, tile);
  if (rows.empty()) return {0, 0};
  return {strip.interval(tile.position + rows.begin * tile.step).begin,
          strip.interval(tile.position + (rows.end - 1) * tile.step).end};
}

POOLGRAD_HD inline bool Strip::add_low(Edge edge) {
  for (int e = 0; e < lows; ++e)
    if (low[e].step == edge.step) {
      if (edge.add > low[e].add) low[e].add = edge.add;
      return true;
    }
  if (lows == max_edges) return false;
  low[lows++] = edge;
  return true;
}

POOLGRAD_HD inline bool Strip::add_high(Edge edge) {
  for (int e = 0; e < highs; ++e)
    if (high[e].step == edge.step) {
      if (edge.add < high[e].add) high[e].add = edge.add;
      return true;
    }
  if (highs == max_edges) return false;
  high[highs++] = edge;
  return true;
}

POOLGRAD_HD inline Interval Strip::interval(std::int64_t row) const {
  Interval seen = keys;
  for (int e = 0; e < lows; ++e) {
    const std::int64_t at = low[e].at(row);
    if (at > seen.begin) seen.begin = at;
  }
  for (int e = 0; e < highs; ++e) {
    const std::int64_t at = high[e].at(row);
    if (at < seen.end) seen.end = at;
  }
  if (documents) {
    Interval document{documents[0], documents[0]};
    if (row >= documents[document_count]) {
      document = {documents[document_count], documents[document_count]};
    } else if (row >= documents[0]) {
      int below = 0, above = document_count;  // documents[below] <= row < documents[above]
      while (above - below > 1) {
        const int middle = below + (above - below) / 2;
        (documents[middle] <= row ? below : above) = middle;
      }
      document = {documents[below], documents[above]};
    }
    seen = seen & document;
  }
  return seen;
}

}  // namespace poolgrad::kernels
