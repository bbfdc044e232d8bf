// Which keys the rows of a tile visit: the one mechanism below every attention pattern. A schedule is a small value
// that says it by rules; kernels read what it comes to, tile by tile (kernels/schedule/program.h).
//
//   tiling       cuts the rows of one side into tiles, whose positions are arithmetic progressions
//   strips       what a tile of rows visits: progressions of key positions, each with an interval per row
//   runs         a strip's keys as indices of a tensor, through the map of positions (a shard has a part of them)
//   transposed   the same with queries and keys exchanged, for the gradients of keys and values
#pragma once

#include "kernels/definition/attention_term.h"

namespace poolgrad::kernels {

/// The whole of it. The pairs are those that the band and the documents admit and that the terms count.
struct AttentionSchedule {
  static constexpr int max_terms = 4;

  PositionMap queries, keys;                         // of rows and of what they visit; exchanged by transposed()
  std::int64_t heads = 1;                            // query heads: phases and lists depend on the head
  std::int64_t left = unbounded, right = unbounded;  // -left <= key - row <= right
  const std::int64_t* documents = nullptr;           // document_count + 1 ascending positions
  std::uint64_t documents_identity = 0;              // a ListIdentity; 0: unknown
  std::int32_t document_count = 0;
  std::int32_t term_count = 1;
  bool flipped = false;
  AttentionTerm term[max_terms];
  /// Rows of a tile agree mod `modulus`, so that one set of strips serves them all, and lie between two multiples of
  /// `cut` (0: anywhere).
  std::int64_t modulus = 1, cut = 0;

  AttentionSchedule transposed() const;

  /// Whether a pair counts for branch `part` of term number `t`, whose strips have it: whether no bitmap leaves it out,
  /// and no earlier term of the group, nor an earlier branch of a united term, has counted it. What masked runs are
  /// asked for, pair by pair.
  POOLGRAD_HD bool keeps(int t, int part, std::int64_t h, std::int64_t row, std::int64_t key) const;

  /// Head h sees what head h mod head_period() sees, of as many as there are: 1 where all see the same.
  std::int64_t head_period() const;

  /// Pairs that are visited, over all heads; what a call costs. An estimate from a fixed sample where millions of
  /// masked pairs or drawn blocks would have to be looked at one by one, exact otherwise.
  double count_pairs() const;
};

POOLGRAD_HD inline bool AttentionSchedule::keeps(int t, int part, std::int64_t h, std::int64_t row,
                                                 std::int64_t key) const {
  const std::int64_t query = flipped ? key : row, visited = flipped ? row : key;
  for (int e = 0; e < t; ++e)
    if (term[e].group == term[t].group && term[e].multiplicity(h, heads, query, visited) > 0) return false;
  if (term[t].bits != nullptr && term[t].multiplicity(h, heads, query, visited) == 0) return false;
  if (term[t].unite && !term[t].nested)
    for (int b = 0; b < part; ++b)
      if (term[t].covers(b, h, heads, query, visited)) return false;
  return true;
}

/// Tiles of at most `limit` rows of a schedule's queries. Tile numbers are ordered by position; a tile may be empty.
/// Where rows may lie anywhere, all tiles of a piece are equally long but the last one, or the first where
/// `short_first`.
class RowTiling {
 public:
  RowTiling(const AttentionSchedule& schedule, std::int64_t limit, bool short_first = false);
  std::int64_t tiles() const { return tiles_[0] + tiles_[1]; }
  Progression tile(std::int64_t number) const;

 private:
  PositionMap map_;
  std::int64_t classes_;      // progressions of rows that interleave
  std::int64_t cut_, parts_;  // parts of a cut, each part_ positions long but the last
  std::int64_t part_;
  std::int64_t origin_[2], first_part_[2], tiles_[2];  // of a piece: where cuts count from; its parts and tiles
};

}  // namespace poolgrad::kernels
