// What online softmax keeps of a tile of queries, and the tile of keys that it meets. Internal to the forward kernel.
#pragma once

#include "kernels/cpu/attention/direct.h"
#include "kernels/cpu/attention/prefetch.h"
#include "kernels/cpu/attention/scores.h"
#include "kernels/cpu/attention/softmax_pairs.h"
#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/attention/unseen.h"

namespace poolgrad::kernels::attention {

/// Queries whose scores lie side by side: whole score blocks and whole rows of products.
template <class T>
inline constexpr int score_lanes = group_lanes<T> % rows_step == 0 ? group_lanes<T> : group_step<T>;

/// Rows of scores and operands that the keys which are packed at once may take.
inline constexpr std::int64_t key_room = round_up(key_tile, pair_depth_step);

/// Sizes of the tiles of one call.
struct TileShape {
  std::int64_t rows;  // a multiple of score_lanes
  std::int64_t depth, v_depth, v_padded;
  PairProduct product = nullptr;  // of bf16; null: in the compute type
};

/// Scratch of one thread, carved out of one allocation, and the state of one tile of queries.
template <class T>
struct SoftmaxTile {
  T *keys, *values, *queries, *scores, *out, *maximum, *sum, *factor, *first, *last, *multiplicity;
  SoftmaxPairs pairs;

  /// Returns the elements that a tile takes.
  static std::int64_t carve(T* base, const TileShape& shape, SoftmaxTile* tile) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t count) {
      T* part = base ? base + used : nullptr;
      used += round_up(count, lanes<T>);
      return part;
    };
    SoftmaxTile t{};
    t.keys = take(key_room * shape.depth + panel_slack<T>);
    t.values = take(key_room * round_up(shape.v_padded, group_lanes<T>));
    t.queries = take(std::max(shape.rows * shape.depth, direct_rows * round_up(shape.depth, lanes<T>)));
    t.scores = take(key_room * score_lanes<T>);
    t.out = take(shape.rows * shape.v_padded);
    t.maximum = take(shape.rows);
    t.sum = take(shape.rows);
    t.factor = take(score_lanes<T>);
    t.first = take(shape.rows);
    t.last = take(shape.rows);
    t.multiplicity = take(key_room);
    if constexpr (std::is_same_v<T, float>) {
      t.pairs = {shape.product, shape.rows, shape.depth, shape.v_depth, shape.v_padded};
      if (shape.product)
        t.pairs.carve(key_room, score_lanes<T>,
                      [&](std::int64_t words) { return reinterpret_cast<std::uint32_t*>(take(words)); });
    }
    if (tile) *tile = t;
    return round_up(used, 64);
  }
};

/// The packed tile of keys that is visited, and who sees what of it.
template <class T>
struct Visit {
  const TileShape& shape;
  const AttentionProgram& program;
  const AttentionRun& of;  // the run that the keys are a part of
  std::int64_t head;       // of the schedule
  Progression rows, run;
  Prefetch next_keys, next_values;
  const DirectOperands<T>& in_memory;
  bool direct = false;  // the keys are not packed
  bool full = true;     // every row sees every key; else first[row] <= step < last[row]
  const ScoreRules<T>* rules = nullptr;
  bool multiplicities = false;  // in SoftmaxTile::multiplicity
  WildRows wild = {};           // values; empty where all keys are seen by all

  bool masked() const { return of.has(AttentionRun::masked); }
  bool modified() const { return (rules && rules->modifies()) || masked(); }
  /// The steps that a row sees, pairs that are masked aside.
  Interval seen_by(std::int64_t row) const { return program.steps_seen(of, run, rows.position + row * rows.step); }
  /// Whether a row sees a key.
  bool sees(const SoftmaxTile<T>& t, std::int64_t row, std::int64_t key) const {
    if (!full && (static_cast<T>(key) < t.first[row] || static_cast<T>(key) >= t.last[row])) return false;
    return !masked() || program.keeps(of, head, rows.position + row * rows.step, run.position + key * run.step);
  }
};

/// The keys that some, and that all of the rows [begin, end) see.
struct Seen {
  Range any, all;
};
template <class T>
Seen keys_seen(const SoftmaxTile<T>& t, const Visit<T>& visit, std::int64_t begin, std::int64_t end) {
  const std::int64_t count = visit.run.count;
  if (visit.full) return {{0, count}, {0, round_up(count, rows_step)}};
  T low = static_cast<T>(count), high = 0, latest = 0, earliest = low;
  for (std::int64_t i = begin; i < end; ++i) {
    const T first = t.first[i], last = t.last[i];
    low = first < last ? std::min(low, first) : low;
    high = first < last ? std::max(high, last) : high;
    latest = std::max(latest, first);
    earliest = std::min(earliest, last);
  }
  Seen seen{{static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)},
            {static_cast<std::int64_t>(latest), static_cast<std::int64_t>(earliest)}};
  // What lies beyond the last key is a copy of it, which changes no maximum.
  if (seen.all.end == count) seen.all.end = round_up(count, rows_step);
  return seen;
}

}  // namespace poolgrad::kernels::attention
