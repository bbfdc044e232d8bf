// Which query rows the key tiles of a schedule visit. Tiles come in the order of their positions, so what is summed up
// for a query is complete long before the last tile where the pattern is local.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_schedule.h"

namespace poolgrad::kernels::attention {

class AttentionReach {
 public:
  struct Reach {
    double pairs = 0;                 // roughly; 0: nothing is visited
    std::int64_t begin = 0, end = 0;  // a range of query rows that holds what is visited
    std::int64_t complete = 0;        // neither this tile nor a later one visits a row before this one
    std::int64_t entered = 0;         // no earlier tile visits this row or one after it
    bool ascending = true;            // rows are visited in their order
    double delay = 0;  // pairs that the tile before is to be ahead, so that this one need not wait for it
  };

  /// `by_key` is a transposed schedule: its rows are keys. Heads are first_head .. first_head + heads - 1. `step` rows
  /// are visited at a time.
  AttentionReach(const AttentionSchedule& by_key, const RowTiling& tiling, std::int64_t first_head, std::int64_t heads,
                 std::int64_t step);

  /// `head` counts from first_head.
  const Reach& at(std::int64_t head, std::int64_t tile) const {
    return reach_[static_cast<std::size_t>(head * tiles_ + tile)];
  }
  std::int64_t tiles() const { return tiles_; }
  /// Rows that are visited but not complete at any time, at most.
  std::int64_t span() const { return span_; }
  /// The pairs of these tiles and query rows, roughly.
  double pairs(std::int64_t head, Interval tiles, Interval rows) const;

 private:
  std::int64_t tiles_, span_ = 0;
  std::vector<Reach> reach_;
};

}  // namespace poolgrad::kernels::attention
