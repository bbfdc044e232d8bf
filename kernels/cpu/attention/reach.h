// Which query rows the key tiles of a schedule visit. Tiles come in the order of their positions, so what is summed up
// for a query is complete long before the last tile where the pattern is local.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/workspace.h"
#include "kernels/schedule/tiles.h"

namespace poolgrad::kernels::attention {

/// Query rows that a key tile visits in one go.
struct RowVisit {
  std::int64_t begin, end;  // a range that holds them
  std::int64_t rows, keys;

  RowVisit(const AttentionRun& run, const Progression& tile)
      : begin(run.keys.row),
        end(run.keys.row + (run.keys.count - 1) * run.keys.stride + 1),
        rows(run.keys.count),
        keys(tile.count) {}
  double pairs() const { return static_cast<double>(rows) * static_cast<double>(keys); }
};
/// Whether a tile visits rows in their order.
bool ascending(std::span<const AttentionRun> runs);

class AttentionReach {
 public:
  struct Reach {
    double pairs = 0;                 // roughly; 0: nothing is visited
    std::int64_t begin = 0, end = 0;  // a range of query rows that holds what is visited
    std::int64_t complete = 0;        // neither this tile nor a later one visits a row before this one
    std::int64_t entered = 0;         // no earlier tile visits this row or one after it
    bool ascending = true;            // rows are visited in their order
  };

  /// Tiles of a transposed schedule: its rows are keys. Heads are first_head .. first_head + heads - 1.
  AttentionReach(Stream stream, const AttentionTiles& by_key, std::int64_t first_head, std::int64_t heads);

  /// `head` counts from first_head.
  const Reach& at(std::int64_t head, std::int64_t tile) const { return reach_.data()[head % heads_ * tiles_ + tile]; }
  std::int64_t tiles() const { return tiles_; }
  /// Rows that are visited but not complete at any time, at most.
  std::int64_t span() const { return span_; }
  /// The pairs of these tiles and query rows, roughly.
  double pairs(std::int64_t head, Interval tiles, Interval rows) const;

 private:
  std::int64_t heads_, tiles_, span_ = 0;  // heads that differ
  PlanningSpace<Reach> reach_;
};

}  // namespace poolgrad::kernels::attention
