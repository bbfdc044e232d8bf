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

#include "kernels/attention_strips.h"

namespace poolgrad::kernels {

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

  /// Pairs that are visited, over all heads; what a call costs. An estimate from a fixed sample where millions of
  /// masked pairs or drawn blocks would have to be looked at one by one, exact otherwise.
  double count_pairs() const;
};
static_assert(sizeof(AttentionSchedule) <= 4096, "goes to kernels by value");

/// Tiles of at most `limit` rows of a schedule's queries. Tile numbers are ordered by position; a tile may be empty.
/// Where rows may lie anywhere, all tiles of a piece are equally long but the last one, or the first where
/// `short_first`.
class RowTiling {
 public:
  RowTiling(const AttentionSchedule& schedule, std::int64_t limit, bool short_first = false);
  std::int64_t tiles() const { return tiles_[0] + tiles_[1]; }
  POOLGRAD_HD Progression tile(std::int64_t number) const;

 private:
  PositionMap map_;
  std::int64_t classes_;      // progressions of rows that interleave
  std::int64_t cut_, parts_;  // parts of a cut, each part_ positions long but the last
  std::int64_t part_;
  std::int64_t origin_[2], first_part_[2], tiles_[2];  // of a piece: where cuts count from; its parts and tiles
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
