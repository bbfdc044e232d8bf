// What a schedule comes to, tile by tile, in flat arrays: all that kernels read of it, on the host and on devices
// alike. docs/attention.md, section "programs". Made once by kernels/schedule/tiles.h and kept.
#pragma once

#include "kernels/schedule/attention_schedule.h"

namespace poolgrad::kernels {

/// Keys that rows of a tile visit together. A row sees an interval of them, none of whose ends ever decreases from one
/// row to the next: from both its lows on, and below both its highs. A bound that cuts no row of the tile is far away.
struct AttentionRun {
  enum Flag : std::uint8_t {
    masked = 1,     // AttentionSchedule::keeps() decides pair by pair
    documents = 2,  // a row sees only its document, in which not all rows are
    whole = 4,      // every row of the tile sees every key
  };

  Progression keys;
  Interval rows;                                          // steps of the tile: other rows see nothing
  std::int64_t low = -far_away, high = far_away;          // low <= key - row < high
  Edge low_block{1, -far_away}, high_block{1, far_away};  // low_block.at(row) <= key < high_block.at(row)
  std::int32_t table = 0;                                 // of AttentionProgram::log_multiplicity
  std::uint8_t period = 0;                                // its entries; 0: there is none
  std::uint8_t flags = 0;
  std::uint8_t term = 0, part = 0;  // of the schedule; of the term: the branch

  POOLGRAD_HD constexpr bool has(Flag flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(AttentionRun) == 112);

/// Steps [begin, begin + count) of a progression.
POOLGRAD_HD constexpr Progression part_of(const Progression& p, std::int64_t begin, std::int64_t count) {
  return {p.row + begin * p.stride, p.stride, count, p.position + begin * p.step, p.step};
}

/// The arrays; whoever made them owns them. Tile n in query head h has number `of(h, n)`.
struct AttentionProgram {
  const AttentionSchedule* schedule = nullptr;  // the rules, which masked runs are held against, and the documents
  std::int64_t tiles = 0, head_period = 1;
  const Progression* tile = nullptr;            // [tiles]: the rows
  const std::int64_t* tile_begin = nullptr;     // [head_period * tiles + 1]: the runs of a tile, in the order of visits
  const std::int32_t* longest_first = nullptr;  // [head_period * tiles]: numbers of tiles; equally long ones ascend
  const std::int32_t* level_begin = nullptr;    // [levels + 1]: where, in that order, tiles of another length begin
  std::int32_t levels = 0;
  const AttentionRun* run = nullptr;
  const double* log_multiplicity = nullptr;  // run.table + floor_mod(key position, run.period)

  POOLGRAD_HD std::int64_t of(std::int64_t h, std::int64_t n) const { return h % head_period * tiles + n; }

  /// Positions between which the row at `position` sees keys of a run. May end before it begins: then none.
  POOLGRAD_HD Interval seen(const AttentionRun& of_run, std::int64_t position) const {
    Interval keys{position + of_run.low, position + of_run.high};
    keys = keys & Interval{of_run.low_block.at(position), of_run.high_block.at(position)};
    if (of_run.has(AttentionRun::documents))
      keys = keys & document_of(schedule->documents, schedule->document_count, position);
    return keys;
  }
  /// The steps of `keys`, a part of the run, that the row at `position` sees: a sub-interval of [0, keys.count). The
  /// row is one of run.rows.
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
  /// For masked runs: whether the pair counts in head h, being in its interval.
  POOLGRAD_HD bool keeps(const AttentionRun& of_run, std::int64_t h, std::int64_t row, std::int64_t key) const {
    return schedule->keeps(of_run.term, of_run.part, h, row, key);
  }
};

}  // namespace poolgrad::kernels
