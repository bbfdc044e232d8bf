// Programs: their size, the order of their tiles, and how calls share them. The tests of schedules and of compiled
// patterns compare their rows with the generator's (tests/kernels/attention/schedule_pairs.h).
#include "kernels/schedule/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/schedule/tiles.h"
#include "tests/kernels/attention/schedule_pairs.h"

namespace poolgrad::kernels {
namespace {

using Kind = AttentionTerm::Kind;

AttentionSchedule schedule_of(std::int64_t rows, std::int64_t keys, std::int64_t heads = 1) {
  AttentionSchedule schedule;
  schedule.queries = PositionMap::contiguous(rows, keys - rows);
  schedule.keys = PositionMap::contiguous(keys);
  schedule.heads = heads;
  return schedule;
}

std::shared_ptr<const WholeProgram> program_of(const AttentionSchedule& schedule, std::int64_t limit) {
  return WholeProgram::make(schedule, RowTiling(schedule, limit), std::size_t{1} << 30);
}

std::vector<AttentionRun> runs_of(const AttentionProgram& program, std::int64_t number) {
  return {program.run + program.tile_begin[number], program.run + program.tile_begin[number + 1]};
}

TEST(AttentionProgram, HasOneRunForATileWithOneInterval) {
  const auto kept = program_of(schedule_of(1000, 3000, 8), 100);
  const AttentionProgram& program = kept->program();
  ASSERT_EQ(program.tiles, 10);
  EXPECT_EQ(program.head_period, 1) << "heads that see the same share it";
  for (std::int64_t n = 0; n < program.tiles; ++n) {
    const auto runs = runs_of(program, n);
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].keys.count, 3000);
    EXPECT_TRUE(runs[0].has(AttentionRun::whole));
  }
  EXPECT_LE(kept->bytes(), 10 * 200 + 5000) << "whatever the number of pairs";
}

TEST(AttentionProgram, OmitsBoundsOutsideATile) {
  AttentionSchedule schedule = schedule_of(1000, 1000);
  schedule.right = 0;
  schedule.term[0].kind = Kind::segment;
  schedule.term[0].size = 250;
  const auto kept = program_of(schedule, 100);  // tile 200 .. 299 lies in two segments, tile 300 .. 399 in one
  const auto between = runs_of(kept->program(), 2), within = runs_of(kept->program(), 3);
  ASSERT_EQ(between.size(), 1u);
  EXPECT_EQ(between[0].low_block.step, 250);
  EXPECT_EQ(between[0].high, 1);
  EXPECT_EQ(within[0].low_block.step, 1);
  EXPECT_EQ(within[0].high_block.step, 1);
  EXPECT_EQ(within[0].keys.position, 250);
}

TEST(AttentionProgram, SplitsRowsWithSeveralBlocksOnOneSide) {
  AttentionSchedule schedule = schedule_of(200, 200);
  schedule.term_count = 3;
  for (const int t : {0, 1, 2}) {
    schedule.term[t].kind = Kind::segment;
    schedule.term[t].size = std::vector<std::int64_t>{36, 28, 60}[static_cast<std::size_t>(t)];
  }
  const auto kept = program_of(schedule, 200);
  const auto runs = runs_of(kept->program(), 0);
  EXPECT_TRUE(std::any_of(runs.begin(), runs.end(), [](const AttentionRun& run) {
    return run.rows.begin > 0 && run.rows.end < 200 && !run.has(AttentionRun::masked);
  }));
  testing_support::expect_visits(
      schedule, [](auto, auto i, auto j) { return i / 36 == j / 36 || i / 28 == j / 28 || i / 60 == j / 60; },
      "three segments");
}

TEST(AttentionProgram, OwnsTheListsOfMaskedRuns) {
  // A list of the diagonal, and branches that count once each pair that the list does not count.
  auto begin = std::make_unique<std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 1, 2, 3, 4});
  auto blocks = std::make_unique<std::vector<std::int32_t>>(std::vector<std::int32_t>{0, 1, 2, 3});
  AttentionSchedule schedule = schedule_of(64, 64);
  schedule.term_count = 2;
  AttentionTerm& list = schedule.term[0];
  list.kind = Kind::listed;
  list.size = 16;
  list.lists = 1;
  list.block_rows = list.block_columns = 4;
  list.row_begin = list.column_begin = begin->data();
  list.columns = list.rows = blocks->data();
  schedule.term[1].kind = Kind::columns;
  schedule.term[1].size = 20;
  auto documents = std::make_unique<std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 10, 50, 64});
  schedule.documents = documents->data();
  schedule.document_count = 3;
  const auto kept = program_of(schedule, 64);
  begin.reset(), blocks.reset(), documents.reset();
  const AttentionProgram& program = kept->program();
  for (std::int64_t row = 0; row < 64; ++row) {
    std::vector<int> seen(64);
    testing_support::walk_row(program, 0, row, [&](const AttentionRun& run, std::int64_t key, double) {
      seen.at(static_cast<std::size_t>(key)) +=
          !run.has(AttentionRun::masked) || program.keeps(run, 0, row, key) ? 1 : 0;
    });
    const auto document = [](std::int64_t x) { return x < 10 ? 0 : x < 50 ? 1 : 2; };
    for (std::int64_t key = 0; key < 64; ++key)
      EXPECT_EQ(seen[static_cast<std::size_t>(key)],
                document(row) == document(key) && (row / 16 == key / 16 || key < 20))
          << row << ", " << key;
  }
}

TEST(AttentionProgram, StartsWithTheLongestTiles) {
  AttentionSchedule schedule = schedule_of(900, 900, 4);
  schedule.right = 0;
  schedule.term[0].kind = Kind::dilated;
  schedule.term[0].branches = 1;
  schedule.term[0].segment_length[0] = 300;
  schedule.term[0].dilation_rate[0] = 2;
  schedule.modulus = 2;
  const auto kept = program_of(schedule, 64);
  const AttentionProgram& program = kept->program();
  ASSERT_EQ(program.head_period, 2);
  const auto length = [&](std::int32_t number) {
    std::int64_t keys = 0;
    for (const AttentionRun& run : runs_of(program, number)) keys += run.keys.count;
    return keys;
  };
  std::vector<std::int32_t> numbers(program.longest_first, program.longest_first + 2 * program.tiles);
  for (std::size_t n = 1; n < numbers.size(); ++n) {
    const std::int64_t before = length(numbers[n - 1]), here = length(numbers[n]);
    EXPECT_TRUE(before > here || (before == here && numbers[n - 1] < numbers[n]));
    const bool begins = std::count(program.level_begin, program.level_begin + program.levels, static_cast<int>(n)) > 0;
    EXPECT_EQ(begins, before != here);
  }
  std::sort(numbers.begin(), numbers.end());
  for (std::size_t n = 0; n < numbers.size(); ++n) EXPECT_EQ(numbers[n], static_cast<std::int32_t>(n));
}

TEST(AttentionTiles, AreEqualWhenComputedOneByOne) {
  AttentionSchedule schedule = schedule_of(300, 400, 3);
  schedule.right = 0;
  schedule.term[0].kind = Kind::random;
  schedule.term[0].size = schedule.cut = 16;
  schedule.term[0].seed = 3;
  schedule.term[0].threshold = std::uint64_t{1} << 51;
  const AttentionTiles kept(schedule, 64), windows = AttentionTiles::one_by_one(schedule, 64);
  ASSERT_TRUE(kept.whole());
  ASSERT_FALSE(windows.whole());
  AttentionTiles::Reader of_kept(kept), of_windows(windows);
  for (std::int64_t h = 0; h < 3; ++h)
    for (std::int64_t n = 0; n < kept.count(); ++n) {
      EXPECT_EQ(kept.tile(n).row, windows.tile(n).row);
      const auto a = of_kept(h, n).runs, b = of_windows(h, n).runs;
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t r = 0; r < a.size(); ++r) EXPECT_EQ(a[r].keys.position, b[r].keys.position);
    }
}

TEST(ProgramCache, BuildsOneProgramForEqualSchedules) {
  ProgramCache cache(std::size_t{1} << 20);
  const AttentionSchedule schedule = schedule_of(300, 300, 2);
  const auto first = cache.get(schedule, 64, false);
  EXPECT_EQ(cache.get(schedule_of(300, 300, 2), 64, false), first);
  std::vector<AttentionSchedule> others(8, schedule);
  others[0].queries = PositionMap::contiguous(300, 1);
  others[1].keys = PositionMap::contiguous(299);
  others[2].right = 0;
  others[3].heads = 3;
  others[4].cut = 32;
  others[5].modulus = 2;
  others[6].term[0].right = 5;
  others[7].flipped = true;
  for (const AttentionSchedule& other : others) EXPECT_NE(cache.get(other, 64, false), first);
  EXPECT_NE(cache.get(schedule, 65, false), first);
  EXPECT_NE(cache.get(schedule, 64, true), first);
  const auto statistics = cache.statistics();
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.misses, 11);
  EXPECT_EQ(statistics.entries, 11);
  cache.clear();
  EXPECT_EQ(cache.statistics().bytes, 0);
  EXPECT_NE(cache.get(schedule, 64, false), first);
}

TEST(ProgramCache, ComparesListsByIdentity) {
  ProgramCache cache(std::size_t{1} << 20);
  const std::vector<std::int64_t> documents{0, 100, 300};
  AttentionSchedule schedule = schedule_of(300, 300);
  schedule.documents = documents.data();
  schedule.document_count = 2;
  EXPECT_NE(cache.get(schedule, 64, false), cache.get(schedule, 64, false)) << "what is not known is never kept";
  EXPECT_EQ(cache.statistics().entries, 0);
  const ListIdentity one, other = one;
  EXPECT_NE(one.number(), other.number());
  schedule.documents_identity = one.number();
  const auto first = cache.get(schedule, 64, false);
  EXPECT_EQ(cache.get(schedule, 64, false), first);
  const std::vector<std::int64_t> elsewhere = documents;
  schedule.documents = elsewhere.data();
  EXPECT_EQ(cache.get(schedule, 64, false), first);
  schedule.documents_identity = other.number();  // another list at the same address
  EXPECT_NE(cache.get(schedule, 64, false), first);
}

TEST(ProgramCache, EvictsTheLeastRecentlyUsedProgram) {
  ProgramCache cache(std::size_t{1} << 20, 2);
  const AttentionSchedule a = schedule_of(10, 10), b = schedule_of(20, 20), c = schedule_of(30, 30);
  const auto of_a = cache.get(a, 64, false), of_b = cache.get(b, 64, false);
  cache.get(a, 64, false);
  cache.get(c, 64, false);
  EXPECT_EQ(cache.get(a, 64, false), of_a);
  EXPECT_NE(cache.get(b, 64, false), of_b);
  EXPECT_EQ(cache.statistics().entries, 2);
  cache.set_byte_limit(1);
  EXPECT_EQ(cache.statistics().entries, 0);
  EXPECT_EQ(of_a->program().tiles, 1) << "who holds it keeps it";
}

TEST(ProgramCache, RejectsAProgramLargerThanTheCache) {
  ProgramCache cache(std::size_t{64} << 10);
  const AttentionSchedule schedule = schedule_of(10000, 10000);
  EXPECT_TRUE(cache.get(schedule, 100, false) == nullptr) << "100 runs";
  EXPECT_TRUE(cache.get(schedule, 100, false) == nullptr);
  EXPECT_EQ(cache.statistics().hits, 1) << "remembered as such";
  EXPECT_TRUE(cache.get(schedule, 1000, false));
}

TEST(ProgramCache, GivesAllThreadsTheSameProgram) {
  ProgramCache cache(std::size_t{1} << 20);
  std::vector<std::shared_ptr<const WholeProgram>> found(16);
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < found.size(); ++n)
    threads.emplace_back([&, n] {
      for (std::int64_t rows = 100; rows < 140; ++rows) found[n] = cache.get(schedule_of(rows, 300), 8, false);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& program : found) EXPECT_EQ(program, found[0]);
  EXPECT_EQ(cache.statistics().entries, 40);
}

}  // namespace
}  // namespace poolgrad::kernels
