#include "kernels/schedule/attention_schedule.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/kernels/attention/schedule_pairs.h"

namespace poolgrad::kernels {
namespace {

using testing_support::expect_visits;
using testing_support::shards;
using Kind = AttentionTerm::Kind;

AttentionSchedule schedule_of(Kind kind, std::int64_t size, std::int64_t count = 150, std::int64_t heads = 1) {
  AttentionSchedule schedule;
  schedule.queries = schedule.keys = PositionMap::contiguous(count);
  schedule.heads = heads;
  schedule.term[0].kind = kind;
  schedule.term[0].size = size;
  return schedule;
}

std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}

TEST(AttentionSchedule, VisitsBandsFromAllAlignments) {
  for (const auto& [left, right] : {std::pair<std::int64_t, std::int64_t>{unbounded, unbounded},
                                    {unbounded, 0},
                                    {20, 0},
                                    {0, 33},
                                    {5, unbounded},
                                    {0, 0}})
    for (const std::int64_t offset : {0, 30, -30, 300}) {
      AttentionSchedule schedule = schedule_of(Kind::all, 0, 90);
      schedule.queries = PositionMap::contiguous(70, offset);
      schedule.left = left;
      schedule.right = right;
      const std::int64_t l = left, r = right;
      expect_visits(
          schedule,
          [=](auto, auto i, auto j) { return (l == unbounded || i - j <= l) && (r == unbounded || j - i <= r); },
          "band " + std::to_string(left) + ", " + std::to_string(right) + " offset " + std::to_string(offset));
    }
}

TEST(AttentionSchedule, VisitsColumnsRowsSegmentsAndResidues) {
  struct Case {
    Kind kind;
    std::int64_t size, modulus;
    bool (*counts)(std::int64_t i, std::int64_t j, std::int64_t size);
  };
  const Case cases[] = {
      {Kind::columns, 13, 1, [](auto, auto j, auto n) { return j < n; }},
      {Kind::rows, 21, 1, [](auto i, auto, auto n) { return i < n; }},
      {Kind::segment, 17, 1, [](auto i, auto j, auto n) { return floor_of(i, n) == floor_of(j, n); }},
      {Kind::segment, 64, 1, [](auto i, auto j, auto n) { return floor_of(i, n) == floor_of(j, n); }},
      {Kind::residue, 7, 7, [](auto i, auto j, auto n) { return (i - j) % n == 0; }},
      {Kind::residue, 40, 40, [](auto i, auto j, auto n) { return (i - j) % n == 0; }},
  };
  for (const Case& test : cases)
    for (const std::int64_t offset : {0, -25, 60}) {
      AttentionSchedule schedule = schedule_of(test.kind, test.size);
      schedule.queries = PositionMap::contiguous(99, offset);
      schedule.modulus = test.modulus;
      schedule.right = 40;
      expect_visits(
          schedule, [&](auto, auto i, auto j) { return j - i <= 40 && test.counts(i, j, test.size); },
          "kind " + std::to_string(static_cast<int>(test.kind)) + " of " + std::to_string(test.size));
    }
}

TEST(AttentionSchedule, VisitsDocuments) {
  const std::vector<std::int64_t> bounds{0, 10, 10, 45, 46, 100};
  AttentionSchedule schedule = schedule_of(Kind::all, 0, 120);
  schedule.queries = PositionMap::contiguous(130, -10);
  schedule.documents = bounds.data();
  schedule.document_count = 5;
  schedule.right = 0;
  const auto document = [&](std::int64_t at) -> std::int64_t {
    if (at < 0 || at >= 100) return -1;
    for (std::size_t d = 0;; ++d)
      if (at < bounds[d + 1]) return static_cast<std::int64_t>(d);
  };
  expect_visits(
      schedule, [&](auto, auto i, auto j) { return j <= i && document(i) >= 0 && document(i) == document(j); },
      "documents");
}

TEST(AttentionSchedule, VisitsShardsOfARing) {
  for (const PositionMap& queries : shards(60))
    for (const PositionMap& keys : shards(46, 12)) {
      AttentionSchedule schedule = schedule_of(Kind::all, 0);
      schedule.queries = queries;
      schedule.keys = keys;
      schedule.left = 70;
      schedule.right = 9;
      const std::string what = "queries from " + std::to_string(queries.first) + " by " +
                               std::to_string(queries.stride) + ", keys from " + std::to_string(keys.first) + " by " +
                               std::to_string(keys.stride);
      expect_visits(schedule, [](auto, auto i, auto j) { return i - j <= 70 && j - i <= 9; }, what, {1, 37});
      schedule.term[0].kind = Kind::residue;
      schedule.term[0].size = schedule.modulus = 6;
      expect_visits(schedule, [](auto, auto i, auto j) { return i - j <= 70 && j - i <= 9 && (i - j) % 6 == 0; },
                    what + ", residues", {1, 37});
    }
}

TEST(AttentionSchedule, TilesBreakAtTheGivenCuts) {
  for (const PositionMap& map : shards(100, -7))
    for (const std::int64_t cut : {1, 16, 48, 1000})
      for (const std::int64_t modulus : {1, 4, 6})
        for (const std::int64_t limit : {1, 7, 64}) {
          AttentionSchedule schedule = schedule_of(Kind::all, 0);
          schedule.queries = map;
          schedule.cut = cut;
          schedule.modulus = modulus;
          const RowTiling tiling(schedule, limit);
          std::int64_t rows = 0;
          for (std::int64_t n = 0; n < tiling.tiles(); ++n) {
            const Progression tile = tiling.tile(n);
            if (tile.count == 0) continue;
            rows += tile.count;
            EXPECT_LE(tile.count, limit);
            EXPECT_EQ(floor_of(tile.position, cut), floor_of(tile.last_position(), cut));
            if (tile.count > 1) {
              EXPECT_EQ(tile.step % modulus, 0);
            }
          }
          EXPECT_EQ(rows, map.count);
        }
}

TEST(AttentionSchedule, TheFirstTileMayBeShort) {
  for (const PositionMap& map : shards(100, -7))
    for (const std::int64_t modulus : {1, 4, 6})
      for (const std::int64_t limit : {1, 7, 20, 1000}) {
        AttentionSchedule schedule = schedule_of(Kind::all, 0);
        schedule.queries = map;
        schedule.modulus = modulus;
        const RowTiling tiling(schedule, limit, true);
        std::vector<int> seen(static_cast<std::size_t>(map.count));
        const std::int64_t classes = modulus / std::gcd(modulus, map.stride);
        std::int64_t full = 0;
        for (std::int64_t n = 0; n < tiling.tiles(); ++n) {
          const Progression tile = tiling.tile(n);
          full += tile.count == std::min(limit, map.count) ? 1 : 0;
          for (std::int64_t t = 0; t < tile.count; ++t) {
            ++seen.at(static_cast<std::size_t>(tile.row + t * tile.stride));
            EXPECT_EQ(map.position(tile.row + t * tile.stride), tile.position + t * tile.step);
          }
        }
        for (const int times : seen) EXPECT_EQ(times, 1);
        const std::int64_t pieces = map.piece(0).count > 0 && map.piece(1).count > 0 ? 2 : 1;
        EXPECT_GE(full, tiling.tiles() - pieces * classes) << "limit " << limit << " modulus " << modulus;
        if (pieces == 1 && tiling.tiles() > classes) {
          EXPECT_EQ(tiling.tile(tiling.tiles() - 1).count, limit);
        }
        schedule.cut = 16;  // the cut moves no tile
        const RowTiling last(schedule, limit), first(schedule, limit, true);
        ASSERT_EQ(first.tiles(), last.tiles());
        for (std::int64_t n = 0; n < first.tiles(); ++n) EXPECT_EQ(first.tile(n).row, last.tile(n).row);
      }
}

TEST(AttentionSchedule, HasNoMoreTilesThanRows) {
  AttentionSchedule schedule = schedule_of(Kind::residue, std::int64_t{1} << 48, 30);
  schedule.modulus = std::int64_t{1} << 48;
  for (const PositionMap& map : shards(30)) {
    schedule.queries = map;
    EXPECT_LE(RowTiling(schedule, 16).tiles(), 2 * 30);
    expect_visits(
        schedule, [](auto, auto i, auto j) { return i == j; }, "a modulus beyond all rows");
  }
}

TEST(MultiplyModulo, DoesNotOverflow) {
  for (const std::int64_t m : {std::int64_t{7}, (std::int64_t{1} << 31) - 1, (std::int64_t{1} << 61) - 1})
    for (const std::int64_t x : {std::int64_t{0}, std::int64_t{5}, m - 1})
      for (const std::int64_t y : {std::int64_t{0}, std::int64_t{3}, m - 2})
        EXPECT_EQ(multiply_modulo(x, y, m), static_cast<std::int64_t>(static_cast<__int128>(x) * y % m));
}

TEST(InverseModulo, InvertsCoprimeNumbers) {
  for (std::int64_t m = 1; m < 60; ++m)
    for (std::int64_t x = 1; x < 130; ++x) {
      if (std::gcd(x, m) != 1) continue;
      const std::int64_t y = inverse_modulo(x, m);
      EXPECT_TRUE(0 <= y && y < m) << x << " mod " << m;
      EXPECT_EQ(x * y % m, 1 % m) << x << " mod " << m;
    }
}

}  // namespace
}  // namespace poolgrad::kernels
