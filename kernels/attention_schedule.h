// Which keys the rows of a tile visit: the one mechanism below every attention pattern. A schedule is a small value
// that goes to kernels by value, on the host and on devices alike; nothing of the size of a sequence is ever made of it
// but the block lists that a user gives.
//
// The kernels see four things:
//   tiling       cuts the rows of one side into tiles, whose positions are arithmetic progressions
//   strips       what a tile of rows visits: progressions of key positions, each with an interval per row
//   runs         a strip's keys as indices of a tensor, through the map of positions (a shard has a part of them)
//   transposed   the same with queries and keys exchanged, for the gradients of keys and values
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>

#include "kernels/host_device.h"

namespace poolgrad::kernels {

inline constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();

POOLGRAD_HD constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
POOLGRAD_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return floor_div(a + b - 1, b); }
POOLGRAD_HD constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return a - floor_div(a, b) * b; }

/// The absolute positions of the rows of a tensor: at most two pieces, each a progression of the same stride, and
/// increasing throughout. Whole sequences are {offset, 1}; shards of a ring are chunks, pairs of chunks (zigzag) or
/// every R-th position (striped).
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
};

struct Interval {
  std::int64_t begin, end;  // half-open; empty where begin >= end
};

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
  Interval rows{0, unbounded};  // positions of rows that it is for
  Interval keys{0, unbounded};
  int lows = 0, highs = 0;
  Edge low[max_edges], high[max_edges];  // key >= every low.at(row), key < every high.at(row)
  const std::int64_t* documents = nullptr;
  int document_count = 0;
  bool masked = false;  // AttentionSchedule::keeps() decides pair by pair
  int term = 0;
  int period = 0;  // log_multiplicity[key position mod period] is added to the scores; 0: nothing
  float log_multiplicity[max_period];

  /// Key positions (of the strip's residue) that a row of `rows` sees. May end before it begins: then none.
  POOLGRAD_HD Interval interval(std::int64_t row) const;
};

/// One summand of a pattern. Terms of one group are united: a pair that several admit counts once, for the first.
struct AttentionTerm {
  enum class Kind : std::uint8_t { all, columns, rows, segment, residue, dilated, offsets, listed, random };
  static constexpr int max_branches = 16, max_offsets = 64, max_sets = 8;

  Kind kind = Kind::all;
  bool visited = true;  // false: only keeps other terms of its group from counting a pair again
  std::int16_t group = 0;
  std::int64_t size = 0;  // columns, rows: how many; segment: length; residue: modulus; blocks: positions of a block

  // dilated
  bool grouped = false, contiguous_offset = false, nested = false;
  std::int32_t branches = 0;
  std::int64_t segment_length[max_branches] = {}, dilation_rate[max_branches] = {};

  // offsets: head h takes offset[set_begin[s] .. set_begin[s + 1]) with s = h mod sets, ascending
  std::int32_t sets = 0;
  std::int16_t set_begin[max_sets + 1] = {};
  std::int32_t offset[max_offsets] = {};

  // listed: list l = h mod lists; its rows are row_begin[l * (block_rows + 1) ..], which index `columns`
  std::int32_t lists = 0, block_rows = 0, block_columns = 0;
  const std::int64_t *row_begin = nullptr, *column_begin = nullptr;
  const std::int32_t *columns = nullptr, *rows = nullptr;  // the list, and its transposition

  // random
  std::uint64_t seed = 0, threshold = 0;  // kept where the hash is below
};

/// The whole of it. The pairs are those that the band and the documents admit and that the terms count.
struct AttentionSchedule {
  static constexpr int max_terms = 4;

  PositionMap queries, keys;                         // of rows and of what they visit; exchanged by transposed()
  std::int64_t heads = 1;                            // query heads: phases and lists depend on the head
  std::int64_t left = unbounded, right = unbounded;  // -left <= key - row <= right
  const std::int64_t* documents = nullptr;           // document_count + 1 ascending positions
  std::int32_t document_count = 0;
  std::int32_t term_count = 1;
  bool flipped = false;
  AttentionTerm term[max_terms];
  /// Rows of a tile agree mod `modulus`, so that one set of strips serves them all, and lie between two multiples of
  /// `cut` (0: anywhere).
  std::int64_t modulus = 1, cut = 0;

  AttentionSchedule transposed() const;

  /// Calls f(const Strip&) for everything that rows of `tile`, a tile of this schedule's tiling, visit in query head h.
  /// A pair comes up once per multiplicity, or once with its logarithm.
  template <class F>
  POOLGRAD_HD void for_each_strip(std::int64_t h, const Progression& tile, F&& f) const;

  /// For masked strips: whether the pair counts for the strip's term, being in its interval.
  POOLGRAD_HD bool keeps(const Strip& strip, std::int64_t h, std::int64_t row, std::int64_t key) const;

  /// Pairs with their multiplicity, over all heads; what a call costs.
  double count_pairs() const;
};
static_assert(sizeof(AttentionSchedule) <= 4096, "goes to kernels by value");

/// Tiles of at most `limit` rows of a schedule's queries. Tile numbers are ordered by position; a tile may be empty.
class RowTiling {
 public:
  RowTiling(const AttentionSchedule& schedule, std::int64_t limit);
  std::int64_t tiles() const { return tiles_[0] + tiles_[1]; }
  POOLGRAD_HD Progression tile(std::int64_t number) const;

 private:
  PositionMap map_;
  std::int64_t classes_;      // progressions of rows that interleave
  std::int64_t cut_, parts_;  // parts of a cut, each part_ positions long but the last
  std::int64_t part_;
  std::int64_t first_cut_[2], tiles_[2];
};

/// Calls f(const Progression&) for the keys of a strip with positions in [hull), at most once per piece of the map.
template <class F>
POOLGRAD_HD void for_each_run(const PositionMap& keys, const Strip& strip, Interval hull, F&& f);

/// Calls f(strip, run) for tiles of at most `limit` keys that some row of `tile` sees in query head h.
template <class F>
POOLGRAD_HD void for_each_key_tile(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile,
                                   std::int64_t limit, F&& f);

/// The steps of `run` that the row at `position` sees: a sub-interval of [0, run.count).
POOLGRAD_HD Interval steps_seen(const Strip& strip, const Progression& run, std::int64_t position);

}  // namespace poolgrad::kernels

#include "kernels/attention_schedule_inline.h"
