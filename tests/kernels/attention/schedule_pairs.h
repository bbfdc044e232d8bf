// Compares the pairs that a schedule visits with a definition.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/schedule/generator.h"
#include "kernels/schedule/tiles.h"
#include "tests/kernels/attention/program_walk.h"

namespace poolgrad::kernels::testing_support {

/// Calls f(strip, run) for tiles of at most `limit` keys that some row of `tile` sees in query head h.
template <class F>
void for_each_key_tile(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, std::int64_t limit,
                       const F& f) {
  for_each_run_of_tile(schedule, h, tile, [&](const Strip& strip, Interval, const Progression& run) {
    for (std::int64_t t = 0; t < run.count; t += limit)
      f(strip, Progression{run.row + t * run.stride, run.stride, std::min(run.count - t, limit),
                           run.position + t * run.step, run.step});
  });
}

/// The steps of `run` that the row at `position` sees: an interval within [0, run.count).
inline Interval steps_seen(const Strip& strip, const Progression& run, std::int64_t position) {
  const Interval seen = strip.interval(position);
  const auto step_at = [&](std::int64_t key) {
    return std::clamp<std::int64_t>(ceil_div(key - run.position, run.step), 0, run.count);
  };
  if (!strip.rows.contains(position)) return {0, 0};
  return {step_at(seen.begin), step_at(seen.end)};
}

/// Multiplicity of the key at position j for the query at position i in head h.
using Definition = std::function<std::int64_t(std::int64_t h, std::int64_t i, std::int64_t j)>;

/// Rows x visited rows of one head: the sum of the multiplicities of each pair.
class VisitedPairs {
 public:
  VisitedPairs(const AttentionSchedule& schedule, std::int64_t h, std::int64_t row_limit, std::int64_t key_limit)
      : columns_(schedule.keys.count),
        weight_(static_cast<std::size_t>(schedule.queries.count * schedule.keys.count)),
        seen_(static_cast<std::size_t>(schedule.queries.count)) {
    const RowTiling tiling(schedule, row_limit);
    const AttentionTiles tiles(schedule, row_limit);  // shared between heads and between schedules
    for (std::int64_t n = 0; n < tiling.tiles(); ++n) {
      const Progression tile = tiling.tile(n);
      EXPECT_LE(tile.count, row_limit);
      for (std::int64_t t = 0; t < tile.count; ++t) {
        EXPECT_EQ(schedule.queries.position(tile.row + t * tile.stride), tile.position + t * tile.step);
        ++seen_.at(static_cast<std::size_t>(tile.row + t * tile.stride));
      }
      for_each_strip(schedule, h, tile, [&](const Strip& strip) { expect_monotone(strip, tile); });
      for_each_key_tile(schedule, h, tile, key_limit, [&](const Strip& strip, const Progression& run) {
        EXPECT_LE(run.count, key_limit);
        for (std::int64_t t = 0; t < tile.count; ++t)
          add_row(schedule, h, strip, run, tile.row + t * tile.stride, tile.position + t * tile.step);
      });
      expect_program(schedule, h, tile, *tiles.whole(), n);
    }
    for (const int times : seen_) EXPECT_EQ(times, 1) << "every row belongs to one tile";
  }

  double weight(std::int64_t row, std::int64_t key) const {
    return weight_[static_cast<std::size_t>(row * columns_ + key)];
  }
  double pairs() const { return pairs_; }

 private:
  static void expect_monotone(const Strip& strip, const Progression& tile) {
    Interval before{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::min()};
    const Interval rows = rows_of(strip, tile);
    for (std::int64_t t = rows.begin; t < rows.end; ++t) {
      const Interval seen = strip.interval(tile.position + t * tile.step);
      EXPECT_TRUE(before.begin <= seen.begin && before.end <= seen.end) << "an end decreases";
      before = seen;
    }
  }
  /// Checks that the program visits the same pairs for every row, in the same order.
  static void expect_program(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile,
                             const AttentionProgram& program, std::int64_t n) {
    std::vector<RowWalk> expected(static_cast<std::size_t>(tile.count));
    for_each_key_tile(schedule, h, tile, unbounded, [&](const Strip& strip, const Progression& run) {
      for (std::int64_t t = 0; t < tile.count; ++t) {
        const std::int64_t row = tile.position + t * tile.step;
        const Interval steps = steps_seen(strip, run, row);
        for (std::int64_t s = steps.begin; s < steps.end; ++s) {
          const std::int64_t key = run.position + s * run.step;
          if (strip.masked && !schedule.keeps(strip.term, strip.part, h, row, key)) continue;
          expected[static_cast<std::size_t>(t)].add(
              key, strip.period == 0 ? 0.0 : strip.log_multiplicity[floor_mod(key, strip.period)]);
        }
      }
    });
    int errors = 0;
    for (std::int64_t t = 0; t < tile.count && errors < 5; ++t) {
      RowWalk walk;
      walk_row(program, program.of(h, n), t, [&](const AttentionRun& run, std::int64_t key, double log_multiplicity) {
        if (!run.has(AttentionRun::masked) || program.keeps(run, h, tile.position + t * tile.step, key))
          walk.add(key, log_multiplicity);
      });
      if (walk.order == expected[static_cast<std::size_t>(t)].order) continue;
      ++errors;
      ADD_FAILURE() << "head " << h << ", tile " << n << ", row " << t << ": not what the generator has";
    }
  }
  void add_row(const AttentionSchedule& schedule, std::int64_t h, const Strip& strip, const Progression& run,
               std::int64_t row, std::int64_t position) {
    const Interval steps = steps_seen(strip, run, position);
    EXPECT_TRUE(steps.empty() || (steps.begin >= 0 && steps.end <= run.count));
    for (std::int64_t s = steps.begin; s < steps.end; ++s) {
      const std::int64_t key = run.row + s * run.stride, at = run.position + s * run.step;
      EXPECT_EQ(schedule.keys.position(key), at);
      if (strip.masked && !schedule.keeps(strip.term, strip.part, h, position, at)) continue;
      pairs_ += 1;
      weight_[static_cast<std::size_t>(row * columns_ + key)] +=
          strip.period == 0 ? 1.0 : std::exp(strip.log_multiplicity[floor_mod(at, strip.period)]);
    }
  }

  std::int64_t columns_;
  std::vector<double> weight_;
  std::vector<int> seen_;
  double pairs_ = 0;
};

/// Checks that the schedule and its transposition visit the pairs of the definition, for row tiles of several sizes.
inline void expect_visits(const AttentionSchedule& schedule, const Definition& definition, const std::string& what,
                          const std::vector<std::int64_t>& limits = {1, 16, 37, 128}) {
  const AttentionSchedule other = schedule.transposed();
  for (const std::int64_t limit : limits) {
    double pairs = 0;
    for (std::int64_t h = 0; h < schedule.heads; ++h) {
      const VisitedPairs visited(schedule, h, limit, 64), mirrored(other, h, limit, 50);
      pairs += visited.pairs();
      int errors = 0;
      for (std::int64_t i = 0; i < schedule.queries.count && errors < 5; ++i)
        for (std::int64_t j = 0; j < schedule.keys.count && errors < 5; ++j) {
          const auto expected =
              static_cast<double>(definition(h, schedule.queries.position(i), schedule.keys.position(j)));
          if (std::abs(visited.weight(i, j) - expected) < 1e-12 && std::abs(mirrored.weight(j, i) - expected) < 1e-12)
            continue;
          ++errors;
          ADD_FAILURE() << what << ", tiles of " << limit << ", head " << h << ": query position "
                        << schedule.queries.position(i) << ", key position " << schedule.keys.position(j) << " counts "
                        << visited.weight(i, j) << " (transposed " << mirrored.weight(j, i) << "), expected "
                        << expected;
        }
    }
    EXPECT_EQ(schedule.count_pairs(), pairs) << what << ", tiles of " << limit;
    EXPECT_EQ(other.count_pairs(), pairs) << what << " transposed";
    EXPECT_EQ(kept_pairs(schedule), pairs) << what << ", kept";
  }
}

/// Position maps of `count` rows in all, for whole sequences and for shards of a ring.
inline std::vector<PositionMap> shards(std::int64_t count, std::int64_t offset = 0) {
  const std::int64_t half = count / 2;
  return {PositionMap::contiguous(count, offset), {count, half, offset + count, offset + 5 * count - half, 1},
          {count, count, offset + 2, 0, 3},       {count, half, offset, offset + 7 * half + 1, 2},
          PositionMap::contiguous(0, offset),     {count, 0, 0, offset + 1, 1}};
}

}  // namespace poolgrad::kernels::testing_support
