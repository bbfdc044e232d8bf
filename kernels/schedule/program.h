// Expansion of a schedule, tile by tile, in flat arrays: all mask data that kernels read, on host and devices.
// docs/reference/attention.md, section "programs". kernels/schedule/tiles.h builds and caches it.
#pragma once

#include "kernels/schedule/attention_schedule.h"

namespace poolgrad::kernels {

/// Keys that rows of a tile visit together. Each row sees an interval of them: from both its lows on, and below both
/// its highs. Neither end of the interval decreases from one row to the next. A bound that cuts no row of the tile is
/// far away.
struct AttentionRun {
  enum Flag : std::uint8_t {
    masked = 1,     // AttentionSchedule::keeps() decides pair by pair
    documents = 2,  // a row sees only its document; not all rows share one
    whole = 4,      // every row of the tile sees every key
  };

  Progression keys;
  Interval rows;                                          // steps of the tile; other rows see no key
  std::int64_t low = -far_away, high = far_away;          // low <= key - row < high
  Edge low_block{1, -far_away}, high_block{1, far_away};  // low_block.at(row) <= key < high_block.at(row)
  std::int32_t table = 0;                                 // index into AttentionProgram::log_multiplicity
  std::uint8_t period = 0;                                // entries of the table; 0: no table
  std::uint8_t flags = 0;
  std::uint8_t term = 0, part = 0;  // term of the schedule; branch of the term

  POOLGRAD_HD constexpr bool has(Flag flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(AttentionRun) == 112);

/// Steps [begin, begin + count) of a progression.
POOLGRAD_HD constexpr Progression part_of(const Progression& p, std::int64_t begin, std::int64_t count) {
  return {p.row + begin * p.stride, p.stride, count, p.position + begin * p.step, p.step};
}

/// Pointers to the arrays; their creator owns them. Tile n in query head h has index `of(h, n)`.
struct AttentionProgram {
  const AttentionSchedule* schedule = nullptr;  // rules, for masked runs, and documents
  std::int64_t tiles = 0, head_period = 1;
  const Progression* tile = nullptr;            // [tiles]: the rows
  const std::int64_t* tile_begin = nullptr;     // [head_period * tiles + 1]: runs of each tile, in the order of visits
  const std::int32_t* longest_first = nullptr;  // [head_period * tiles]: tile indices by length; equal lengths ascend
  const std::int32_t* level_begin = nullptr;    // [levels + 1]: starts of equal lengths in longest_first
  std::int32_t levels = 0;
  const AttentionRun* run = nullptr;
  const double* log_multiplicity = nullptr;  // run.table + floor_mod(key position, run.period)

  POOLGRAD_HD std::int64_t of(std::int64_t h, std::int64_t n) const { return h % head_period * tiles + n; }

  /// Interval of key positions that the row at `position` sees in a run. Empty if it ends before it begins.
  POOLGRAD_HD Interval seen(const AttentionRun& of_run, std::int64_t position) const {
    Interval keys{position + of_run.low, position + of_run.high};
    keys = keys & Interval{of_run.low_block.at(position), of_run.high_block.at(position)};
    if (of_run.has(AttentionRun::documents))
      keys = keys & document_of(schedule->documents, schedule->document_count, position);
    return keys;
  }
  /// Steps of `keys`, a part of the run, that the row at `position` sees: a sub-interval of [0, keys.count). The row
  /// must be one of run.rows.
  POOLGRAD_HD Interval steps_seen(const AttentionRun& of_run, const Progression& keys, std::int64_t position) const {
    const Interval positions = seen(of_run, position);
    const std::int64_t beyond = keys.last_position() + 1;
    const auto step_at = [&](std::int64_t key) {
      if (key <= keys.position) return std::int64_t{0};
      if (key >= beyond) return keys.count;
      const std::int64_t apart = key - keys.position;
      return keys.step == 1 ? apart : ceil_div(apart, keys.step);
    };
    return {step_at(positions.begin), step_at(positions.end)};
  }
  /// For masked runs: whether a pair inside its interval counts in head h.
  POOLGRAD_HD bool keeps(const AttentionRun& of_run, std::int64_t h, std::int64_t row, std::int64_t key) const {
    return schedule->keeps(of_run.term, of_run.part, h, row, key);
  }
};

}  // namespace poolgrad::kernels
