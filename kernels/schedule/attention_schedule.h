// Mask specification of an attention call: the keys that each tile of rows visits, for every attention pattern. A
// schedule is a small value made of rules. Kernels read its expansion, tile by tile (kernels/schedule/program.h).
//
//   tiling       cuts the rows of one side into tiles; their positions are arithmetic progressions
//   strips       keys of a tile of rows: progressions of key positions, each with an interval per row
//   runs         a strip's keys as tensor indices, through the position map (a shard holds a part of them)
//   transposed   the same with queries and keys exchanged, for the gradients of keys and values
#pragma once

#include "kernels/functors/attention_term.h"

namespace poolgrad::kernels {

/// A whole mask specification. It admits pairs inside the band and the documents that its terms admit.
struct AttentionSchedule {
  static constexpr int max_terms = 4;

  PositionMap queries, keys;  // positions of rows and of visited keys; transposed() exchanges them
  std::int64_t heads = 1;     // query heads: phases and lists depend on the head
  std::int64_t left = unbounded, right = unbounded;  // -left <= key - row <= right
  const std::int64_t* documents = nullptr;           // document_count + 1 ascending positions
  std::uint64_t documents_identity = 0;              // a ListIdentity; 0: unknown
  std::int32_t document_count = 0;
  std::int32_t term_count = 1;
  bool flipped = false;
  AttentionTerm term[max_terms];
  /// Rows of a tile agree mod `modulus`, so one set of strips serves them all. They lie between two multiples of `cut`
  /// (0: no limit).
  std::int64_t modulus = 1, cut = 0;

  AttentionSchedule transposed() const;

  /// Whether a pair of a masked run counts for branch `part` of term `t`, pair by pair. A pair does not count if a
  /// bitmap excludes it. Nor does it count if an earlier term of the group, or an earlier branch of a united term, has
  /// counted it.
  POOLGRAD_HD bool keeps(int t, int part, std::int64_t h, std::int64_t row, std::int64_t key) const;

  /// Period of the pattern over heads: h and h mod head_period() admit the same pairs. 1 if all heads are alike.
  std::int64_t head_period() const;

  /// Number of visited pairs over all heads: the cost of a call. It is exact, or an estimate from a fixed sample if it
  /// would have to inspect millions of masked pairs or drawn blocks.
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

/// Tiles of at most `limit` rows of a schedule's queries, ordered by position; a tile may be empty. Without a cut, all
/// tiles of a piece have equal length except the last one, or the first one with `short_first`.
class RowTiling {
 public:
  RowTiling(const AttentionSchedule& schedule, std::int64_t limit, bool short_first = false);
  std::int64_t tiles() const { return tiles_[0] + tiles_[1]; }
  Progression tile(std::int64_t number) const;

 private:
  PositionMap map_;
  std::int64_t classes_;      // interleaved progressions of rows
  std::int64_t cut_, parts_;  // parts of a cut, each part_ positions long except the last
  std::int64_t part_;
  std::int64_t origin_[2], first_part_[2], tiles_[2];  // per piece: origin of cuts, its parts and tiles
};

}  // namespace poolgrad::kernels
