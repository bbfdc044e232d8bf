// Query rows that the key tiles of a schedule visit. Tiles are ordered by position. For a local pattern, the sum of a
// query is therefore complete long before the last tile.
//
// Wavefront: a chain of items that add to the same rows, each after the previous one. Several items run at the same
// time, each as far behind the previous one as the rows demand. Every element therefore adds up in the order of the
// items.
//
// No deadlock: items must start in ascending order, and a thread must finish an item before it starts another, as
// parallel_items() does. The previous item has then started, on a thread that waits only for earlier items.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cpu/workspace.h"
#include "kernels/schedule/tiles.h"

namespace poolgrad::kernels::attention {

/// Query rows that a key tile visits in one run.
struct RowVisit {
  std::int64_t begin, end;  // a range that contains the rows
  std::int64_t rows, keys;

  RowVisit(const AttentionRun& run, const Progression& tile)
      : begin(run.keys.row),
        end(run.keys.row + (run.keys.count - 1) * run.keys.stride + 1),
        rows(run.keys.count),
        keys(tile.count) {}
  double pairs() const { return static_cast<double>(rows) * static_cast<double>(keys); }
};
/// Whether a tile visits rows in ascending order.
bool ascending(std::span<const AttentionRun> runs);

class AttentionReach {
 public:
  struct Reach {
    double pairs = 0;                 // approximate; 0: nothing is visited
    std::int64_t begin = 0, end = 0;  // a range of query rows that contains the visited rows
    std::int64_t complete = 0;        // neither this tile nor a later one visits a row before this one
    std::int64_t entered = 0;         // no earlier tile visits this row or one after it
    bool ascending = true;            // rows are visited in ascending order
    std::int32_t runs = 0;            // number of runs that visit rows
  };

  /// Tiles of a transposed schedule: its rows are keys. Heads are first_head .. first_head + heads - 1.
  AttentionReach(Stream stream, const AttentionTiles& by_key, std::int64_t first_head, std::int64_t heads);

  /// `head` counts from first_head.
  const Reach& at(std::int64_t head, std::int64_t tile) const { return reach_.data()[head % heads_ * tiles_ + tile]; }
  std::int64_t tiles() const { return tiles_; }
  /// Maximum number of rows that are visited but not complete at a time.
  std::int64_t span() const { return span_; }
  /// Maximum number of runs of a tile.
  std::int64_t most_runs() const { return most_runs_; }
  /// Approximate number of pairs of these tiles and query rows.
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

  /// A running item. Its destructor marks all rows as passed, after all earlier items.
  class Turn {
   public:
    /// `before` is the preceding item, which must have started; -1: none.
    Turn(Wavefront& wavefront, std::int64_t item, std::int64_t before)
        : front_(wavefront), item_(item), before_(before) {}
    ~Turn() {
      wait(front_.rows_);
      pass(front_.rows_, front_.rows_);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Whether the preceding item, and so every earlier one, has passed the rows before `row`.
    bool ready(std::int64_t row) const {
      return before_ < 0 || front_.at(before_).load(std::memory_order_acquire) >= row;
    }
    /// Blocks until ready(row).
    void wait(std::int64_t row) const;
    /// Declares that this item will not touch rows before `row`. Earlier items touch those before `shared`. While they
    /// do, pass() reports nothing: later items would take the earlier items' rows as passed.
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

// Estimates the duration of a wavefront of key tiles before it starts.

class WavefrontLength {
 public:
  /// Doubles of scratch for the tiles of all heads, with `most_runs` as the maximum per tile.
  static std::int64_t elements(std::int64_t tiles_of_heads, std::int64_t most_runs, std::int64_t threads);

  /// Tiles and heads as in `reach`. One item covers `group` consecutive heads. `step` rows are visited at a time, by at
  /// most `threads` threads.
  WavefrontLength(Stream stream, const AttentionReach& reach, const AttentionTiles& by_key, std::int64_t first_head,
                  std::int64_t heads, std::int64_t group, std::int64_t step, std::int64_t threads);

  /// Duration for `threads` threads and all key tiles of groups [groups), in pairs per thread. Each tile follows the
  /// previous one. If tiles share few rows or reach far, the duration is the sum of all pairs / `threads`. If a tile
  /// starts with the last rows of the previous one, it is the whole sum. Groups beyond the last wrap around to the
  /// first, for the next batch entry.
  double of(Interval groups, std::int64_t threads) const;

 private:
  std::int64_t tiles_, count_;  // tiles; items (a tile of a group)
  PlanningSpace<double> space_;
  double *pairs_, *delay_;  // by group, then tile
  double* free_;            // time at which each thread is free
};

}  // namespace poolgrad::kernels::attention
