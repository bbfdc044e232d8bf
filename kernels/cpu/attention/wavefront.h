// Which query rows the key tiles of a schedule visit. Tiles come in the order of their positions, so what is summed up
// for a query is complete long before the last tile where the pattern is local.
//
// Items that add to the same rows, each after the one before it: a chain. Several run at the same time, each as far
// behind the one before it as the rows demand, so every element is summed up in the order of the items.
//
// Nothing can wait for ever as long as items begin in ascending order and whoever begins one goes on with nothing else
// until it has ended, as parallel_items() does: the item before has begun, on a thread that waits for earlier ones
// only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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
    std::int32_t runs = 0;            // that it visits rows in
  };

  /// Tiles of a transposed schedule: its rows are keys. Heads are first_head .. first_head + heads - 1.
  AttentionReach(Stream stream, const AttentionTiles& by_key, std::int64_t first_head, std::int64_t heads);

  /// `head` counts from first_head.
  const Reach& at(std::int64_t head, std::int64_t tile) const { return reach_.data()[head % heads_ * tiles_ + tile]; }
  std::int64_t tiles() const { return tiles_; }
  /// Rows that are visited but not complete at any time, at most.
  std::int64_t span() const { return span_; }
  /// Runs of a tile, at most.
  std::int64_t most_runs() const { return most_runs_; }
  /// The pairs of these tiles and query rows, roughly.
  double pairs(std::int64_t head, Interval tiles, Interval rows) const;

 private:
  std::int64_t heads_, tiles_, span_ = 0, most_runs_ = 0;  // heads that differ
  PlanningSpace<Reach> reach_;
};

class Wavefront {
 public:
  /// Every item passes the rows before `rows`. `passed` has room for one number per item.
  Wavefront(std::atomic<std::int64_t>* passed, std::int64_t items, std::int64_t rows) : rows_(rows), passed_(passed) {
    std::uninitialized_fill_n(passed, items, 0);
  }

  /// An item while it runs. However it ends, it has passed all rows then, and so have those before it.
  class Turn {
   public:
    /// `before` is the item that it comes after, one that has begun; -1: none.
    Turn(Wavefront& wavefront, std::int64_t item, std::int64_t before)
        : front_(wavefront), item_(item), before_(before) {}
    ~Turn() {
      wait(front_.rows_);
      pass(front_.rows_, front_.rows_);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Whether the item before, and with it all earlier ones, has passed the rows before `row`.
    bool ready(std::int64_t row) const {
      return before_ < 0 || front_.at(before_).load(std::memory_order_acquire) >= row;
    }
    /// Returns when it has.
    void wait(std::int64_t row) const;
    /// This item touches no row before `row` any more, of which earlier items touch those before `shared`. An item that
    /// runs ahead of them, in rows of its own, says nothing yet: those behind it would take theirs for passed, too.
    void pass(std::int64_t row, std::int64_t shared) const {
      if (ready(shared)) front_.at(item_).store(row, std::memory_order_release);
    }

   private:
    Wavefront& front_;
    std::int64_t item_, before_;
  };

 private:
  std::atomic<std::int64_t>& at(std::int64_t item) { return passed_[item]; }

  std::int64_t rows_;
  std::atomic<std::int64_t>* passed_;
};

// How long a wavefront of key tiles takes, before it is begun.

class WavefrontLength {
 public:
  /// Doubles of scratch for as many tiles, those of all heads, where a tile has `most_runs` at most.
  static std::int64_t elements(std::int64_t tiles_of_heads, std::int64_t most_runs, std::int64_t threads);

  /// The tiles and heads as in `reach`. `group` heads follow each other in one item; `step` rows are visited at a time,
  /// by `threads` threads at most.
  WavefrontLength(Stream stream, const AttentionReach& reach, const AttentionTiles& by_key, std::int64_t first_head,
                  std::int64_t heads, std::int64_t group, std::int64_t step, std::int64_t threads);

  /// How long `threads` threads take for all key tiles of groups [groups) one after another, each behind the one before
  /// it, in pairs that one thread visits: from the sum over `threads`, where tiles share few rows or reach far, up to
  /// the sum, where a tile begins with the rows that the one before it ends with. Groups beyond the last one begin
  /// again with the first, for the next batch entry.
  double of(Interval groups, std::int64_t threads) const;

 private:
  std::int64_t tiles_, count_;  // of tiles; of items: a group's tile
  PlanningSpace<double> space_;
  double *pairs_, *delay_;  // by group, then tile
  double* free_;            // by thread
};

}  // namespace poolgrad::kernels::attention
