// Elements of attention schedules: positions in arithmetic progression, intervals, edges that move with a row. A term
// is one summand of a pattern and defines each single pair. Strips implement that definition. Host and device.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels {

inline constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
/// Beyond every position, with room for sums.
inline constexpr std::int64_t far_away = std::int64_t{1} << 61;

POOLGRAD_HD constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
POOLGRAD_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return floor_div(a + b - 1, b); }
POOLGRAD_HD constexpr std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return a - floor_div(a, b) * b; }

/// Absolute positions of the rows of a tensor: at most two pieces, each a progression of the same stride, increasing
/// throughout. Whole sequences are {offset, 1}. Shards of a ring are chunks, pairs of chunks (zigzag) or every R-th
/// position (striped). Queries before the first key have negative positions.
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
  std::int64_t begin, end;  // half-open; empty if begin >= end

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

/// Returns the document that contains a position: `count` documents lie between count + 1 ascending positions. Empty
/// outside all documents.
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

/// Finalizer of SplitMix64 (Steele, Lea, Flood 2014).
POOLGRAD_HD constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Identity of lists that schedules point to, unique during the process: every object has its own number, copies too.
class ListIdentity {
 public:
  ListIdentity();
  ListIdentity(const ListIdentity&) : ListIdentity() {}
  ListIdentity& operator=(const ListIdentity&) {
    number_ = ListIdentity().number_;
    return *this;
  }
  std::uint64_t number() const { return number_; }
  /// Lists compare equal regardless of identity.
  friend bool operator==(const ListIdentity&, const ListIdentity&) { return true; }

 private:
  std::uint64_t number_;
};

/// One term of a pattern. Terms of one group form a union: a pair admitted by several counts once, for the first.
struct AttentionTerm {
  enum class Kind : std::uint8_t { all, columns, rows, segment, residue, dilated, offsets, listed, random };
  static constexpr int max_branches = 16, max_runs = 32, max_sets = 8, max_period = 64;

  Kind kind = Kind::all;
  bool visited = true;  // false: only excludes its pairs from later terms of its group
  std::int16_t group = 0;
  std::int64_t size = 0;  // columns, rows: count; segment: length; residue: modulus; blocks: positions per block
  std::int64_t left = unbounded, right = unbounded;  // the term's own band, -left <= key - query <= right

  // dilated; `nested`: w_1 | w_2 | ..., r_1 | r_2 | ..., r_b | w_b, phases h mod r_b, the last r <= max_period
  bool grouped = false, contiguous_offset = false, nested = false, unite = false;
  std::int32_t branches = 0;
  std::uint32_t visited_branches = ~std::uint32_t{0};
  std::int64_t segment_length[max_branches] = {}, dilation_rate[max_branches] = {};

  // offsets: head h takes the runs run[set_begin[s] .. set_begin[s + 1]) with s = h mod sets, ascending. Each run holds
  // every step-th offset from `first` to `last`, both included.
  struct OffsetRun {
    std::int32_t first, last;
    friend bool operator==(const OffsetRun&, const OffsetRun&) = default;
  };
  std::int32_t sets = 0, step = 1;
  std::int16_t set_begin[max_sets + 1] = {};
  OffsetRun run[max_runs] = {};

  // listed: list l = h mod lists. Its rows are row_begin[l * (block_rows + 1) ..], indices into `columns`.
  std::int32_t lists = 0, block_rows = 0, block_columns = 0;
  const std::int64_t *row_begin = nullptr, *column_begin = nullptr;
  const std::int32_t *columns = nullptr, *rows = nullptr;  // the list and its transpose
  std::uint64_t lists_identity = 0;                        // a ListIdentity; 0: unknown
  // Bitmap of each listed block, indexed like `columns` and like `rows`. -1, or no array, admits every pair. In bitmap
  // n, bit c of bits[n * size + r] is the pair of row r and column c of the block. Blocks then have size 64.
  const std::int32_t *column_bitmap = nullptr, *row_bitmap = nullptr;
  const std::uint64_t* bits = nullptr;
  std::int32_t bitmaps = 0;

  // random
  std::uint64_t seed = 0, threshold = 0;  // keeps a block if 53 bits of its hash are below `threshold`

  friend bool operator==(const AttentionTerm&, const AttentionTerm&) = default;

  /// Lengths of the arrays of a listed term.
  POOLGRAD_HD std::int64_t row_begins() const { return lists * (std::int64_t{block_rows} + 1); }
  POOLGRAD_HD std::int64_t column_begins() const { return lists * (std::int64_t{block_columns} + 1); }
  POOLGRAD_HD std::int64_t listed_blocks() const { return row_begins() > 0 ? row_begin[row_begins() - 1] : 0; }
  /// Whether the pair counts in a block with this bitmap.
  POOLGRAD_HD bool has_bit(std::int64_t bitmap, std::int64_t query, std::int64_t key) const {
    return bitmap < 0 || (bits[bitmap * size + floor_mod(query, size)] >> floor_mod(key, size) & 1) != 0;
  }

  /// Multiplicity of the pair in head h of `heads`, ignoring other terms.
  POOLGRAD_HD std::int64_t multiplicity(std::int64_t h, std::int64_t heads, std::int64_t query, std::int64_t key) const;

  /// The branch of head h in grouped mode: consecutive groups of heads. The first (heads mod branches) groups have one
  /// more head.
  POOLGRAD_HD std::int64_t branch_of(std::int64_t h, std::int64_t heads) const {
    const std::int64_t heads_each = heads / branches, larger = heads % branches;
    return h < larger * (heads_each + 1) ? h / (heads_each + 1) : larger + (h - larger * (heads_each + 1)) / heads_each;
  }
  /// The phase of a branch.
  POOLGRAD_HD std::int64_t phase(std::int64_t b, std::int64_t h, std::int64_t heads) const {
    const std::int64_t r = dilation_rate[b];
    return grouped ? b % r : contiguous_offset ? h / ceil_div(heads, r) : h % r;
  }
  /// Whether branch b covers the pair.
  POOLGRAD_HD bool covers(std::int64_t b, std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) const {
    if (grouped && b != branch_of(h, heads)) return false;
    const std::int64_t w = segment_length[b], r = dilation_rate[b], p = phase(b, h, heads);
    return floor_div(i, w) == floor_div(j, w) && floor_mod(i, w) % r == p && floor_mod(j, w) % r == p;
  }

  /// Hash key of random blocks in head h, and whether a block is drawn.
  POOLGRAD_HD std::uint64_t draw_key(std::int64_t h) const {
    return mix(seed + mix(static_cast<std::uint64_t>(h) + 0x9E3779B97F4A7C15u));
  }
  POOLGRAD_HD bool draws(std::uint64_t key, std::int64_t query_block, std::int64_t key_block) const {
    return query_block == key_block || mix(key + static_cast<std::uint64_t>(query_block) * 0xD6E8FEB86659FD93u +
                                           static_cast<std::uint64_t>(key_block) * 0xA0761D6478BD642Fu) >>
                                           11 < threshold;
  }
};

POOLGRAD_HD inline std::int64_t AttentionTerm::multiplicity(std::int64_t h, std::int64_t heads, std::int64_t query,
                                                            std::int64_t key) const {
  if (left != unbounded && key < query - left) return 0;
  if (right != unbounded && key > query + right) return 0;
  switch (kind) {
    case Kind::all: return 1;
    case Kind::columns: return key < size;
    case Kind::rows: return query < size;
    case Kind::segment: return floor_div(query, size) == floor_div(key, size);
    case Kind::residue: return floor_mod(query, size) == floor_mod(key, size);
    case Kind::dilated: {
      std::int64_t count = 0;
      for (int b = 0; b < branches; ++b) count += covers(b, h, heads, query, key);
      return unite && count > 1 ? 1 : count;
    }
    case Kind::offsets: {
      const std::int64_t apart = floor_div(key, size) - floor_div(query, size);
      for (int n = set_begin[h % sets]; n < set_begin[h % sets + 1]; ++n)
        if (run[n].first <= apart && apart <= run[n].last && (apart - run[n].first) % step == 0) return 1;
      return 0;
    }
    case Kind::listed: {
      const std::int64_t row = floor_div(query, size), column = floor_div(key, size);
      if (row < 0 || row >= block_rows) return 0;
      const std::int64_t* begin = row_begin + h % lists * (block_rows + 1) + row;
      std::int64_t below = begin[0], above = begin[1];  // columns ascend
      while (below < above) {
        const std::int64_t middle = below + (above - below) / 2;
        (columns[middle] < column ? below : above) = columns[middle] < column ? middle + 1 : middle;
      }
      if (below == begin[1] || columns[below] != column) return 0;
      return column_bitmap == nullptr || has_bit(column_bitmap[below], query, key);
    }
    case Kind::random: return draws(draw_key(h), floor_div(query, size), floor_div(key, size));
  }
  return 0;
}

}  // namespace poolgrad::kernels
