// Which query rows the key tiles of a schedule visit. Tiles come in the order of their positions, so what is summed up
// for a query is complete long before the last tile where the pattern is local.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_schedule.h"
#include "kernels/cpu/workspace.h"

namespace poolgrad::kernels::attention {

/// Query rows that a key tile visits in one go, in order.
struct RowVisit {
  std::int64_t begin, end;  // a range that holds them
  std::int64_t rows, keys;
  double pairs() const { return static_cast<double>(rows) * static_cast<double>(keys); }
};
/// What the tile `keys` visits in the order in which it does; `by_key` is a transposed schedule, `head` one of its.
std::vector<RowVisit> row_visits(const AttentionSchedule& by_key, std::int64_t head, const Progression& keys);
/// Whether rows are visited in their order.
bool ascending(const std::vector<RowVisit>& visits);

class AttentionReach {
 public:
  struct Reach {
    double pairs = 0;                 // roughly; 0: nothing is visited
    std::int64_t begin = 0, end = 0;  // a range of query rows that holds what is visited
    std::int64_t complete = 0;        // neither this tile nor a later one visits a row before this one
    std::int64_t entered = 0;         // no earlier tile visits this row or one after it
    bool ascending = true;            // rows are visited in their order
  };

  /// `by_key` is a transposed schedule: its rows are keys. Heads are first_head .. first_head + heads - 1.
  AttentionReach(Stream stream, const AttentionSchedule& by_key, const RowTiling& tiling, std::int64_t first_head,
                 std::int64_t heads);

  /// `head` counts from first_head.
  const Reach& at(std::int64_t head, std::int64_t tile) const { return reach_.data()[head * tiles_ + tile]; }
  std::int64_t tiles() const { return tiles_; }
  /// Rows that are visited but not complete at any time, at most.
  std::int64_t span() const { return span_; }
  /// The pairs of these tiles and query rows, roughly.
  double pairs(std::int64_t head, Interval tiles, Interval rows) const;

 private:
  std::int64_t tiles_, span_ = 0;
  PlanningSpace<Reach> reach_;
};

}  // namespace poolgrad::kernels::attention
