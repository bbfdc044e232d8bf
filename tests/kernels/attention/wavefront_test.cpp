// Wavefronts of items: their order, their end after errors, and their predicted length.
#include "kernels/cpu/attention/wavefront.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>

#include "allocator/caching_allocator.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels::attention {
namespace {

class AttentionWavefront : public ::testing::Test {
 protected:
  ~AttentionWavefront() override { set_num_threads(before_); }

 private:
  int before_ = num_threads();
};

/// Every item writes its number to every row, after the item before it.
class Chain {
 public:
  Chain(std::int64_t items, std::int64_t rows)
      : passed_(static_cast<std::size_t>(items)),
        front_(passed_.data(), items, rows),
        last_(static_cast<std::size_t>(rows), -1) {}

  void run(std::int64_t item) {
    const Wavefront::Turn turn(front_, item, item - 1);
    for (std::int64_t row = 0; row < std::ssize(last_); ++row) {
      turn.wait(row + 1);
      std::int64_t& last = last_[static_cast<std::size_t>(row)];
      if (last != item - 1) ++errors_;
      last = item;
      if (item == throws_ && row == 3) throw std::runtime_error("item 5 fails");
      turn.pass(row + 1, row + 1);
    }
  }

  std::int64_t throws_ = -1;
  std::vector<std::atomic<std::int64_t>> passed_;
  Wavefront front_;
  std::vector<std::int64_t> last_;  // not atomic, so that the thread sanitizer checks the order
  std::atomic<int> errors_ = 0;
};

TEST_F(AttentionWavefront, VisitsEveryRowInTheOrderOfTheItems) {
  for (const int threads : {1, 2, 3, 5, 8}) {
    set_num_threads(threads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      Chain chain(40, 17);
      parallel_items(40, [&](std::int64_t item, int) { chain.run(item); });
      EXPECT_EQ(chain.errors_, 0);
      for (const std::int64_t last : chain.last_) ASSERT_EQ(last, 39);
    }
  }
}

TEST_F(AttentionWavefront, AnItemAheadDoesNotHideASlowerOne) {
  std::atomic<std::int64_t> passed[3];
  Wavefront front(passed, 3, 100);
  std::optional<Wavefront::Turn> first(std::in_place, front, 0, -1), second(std::in_place, front, 1, 0),
      third(std::in_place, front, 2, 1);
  first->pass(5, 0);
  EXPECT_TRUE(second->ready(5));
  EXPECT_FALSE(second->ready(6));
  second->pass(60, 20);  // it owns the rows from 20 on, but the first item has passed only 5 of the rows before them
  EXPECT_FALSE(third->ready(1));
  first->pass(20, 0);
  second->pass(60, 20);
  EXPECT_TRUE(third->ready(60));
  EXPECT_FALSE(third->ready(61));
  first.reset();
  second.reset();
  EXPECT_TRUE(third->ready(100));
}

TEST_F(AttentionWavefront, RunsTwoItemsAtTheSameTime) {
  set_num_threads(2);
  std::atomic<std::int64_t> passed[2];
  Wavefront front(passed, 2, 2);
  std::atomic<bool> followed = false;
  parallel_items(2, [&](std::int64_t item, int) {
    const Wavefront::Turn turn(front, item, item - 1);
    turn.wait(1);
    turn.pass(1, 1);
    // The first item ends once the second has passed a row, or after 20 s.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    if (item == 1) followed = true;
    while (!followed && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(followed);
  });
}

TEST_F(AttentionWavefront, AThrowingItemReleasesLaterItems) {
  for (const int threads : {1, 2, 4}) {
    set_num_threads(threads);
    for (int repeat = 0; repeat < 20; ++repeat) {
      Chain chain(12, 9);
      chain.throws_ = 5;
      EXPECT_THROW(parallel_items(12, [&](std::int64_t item, int) { chain.run(item); }), std::runtime_error);
    }
  }
}

TEST_F(AttentionWavefront, RunsInsideAParallelRegion) {
  set_num_threads(3);
  std::atomic<int> errors = 0;
  parallel_items(6, [&](std::int64_t, int) {
    Chain chain(10, 5);
    parallel_items(10, [&](std::int64_t item, int) { chain.run(item); });
    errors += chain.errors_ + (chain.last_[0] == 9 ? 0 : 1);
  });
  EXPECT_EQ(errors, 0);
}

/// Predicted length for a schedule with key tiles of 100 rows, as a fraction of the time of one thread.
double part_of_one_thread(AttentionSchedule schedule, int threads, std::int64_t heads = 1, std::int64_t group = 1) {
  schedule.heads = heads * group;
  const AttentionSchedule by_key = schedule.transposed();
  const AttentionTiles tiles(by_key, 100, true);
  const AttentionReach reach({}, tiles, 0, heads * group);
  const WavefrontLength length({}, reach, tiles, 0, heads * group, group, 10, threads);
  double pairs = 0;
  for (std::int64_t h = 0; h < heads * group; ++h) pairs += reach.pairs(h, {0, reach.tiles()}, {0, by_key.keys.count});
  EXPECT_DOUBLE_EQ(length.of({0, heads}, 1), pairs);
  return length.of({0, heads}, threads) / pairs;
}
AttentionSchedule band(std::int64_t n, std::int64_t left, std::int64_t right) {
  AttentionSchedule schedule;
  schedule.queries = schedule.keys = PositionMap::contiguous(n);
  schedule.left = left;
  schedule.right = right;
  return schedule;
}

TEST_F(AttentionWavefront, KeepsEveryThreadBusyOnLongRows) {
  EXPECT_NEAR(part_of_one_thread(band(4000, unbounded, unbounded), 2), 0.5, 0.01);
  EXPECT_NEAR(part_of_one_thread(band(4000, unbounded, unbounded), 8), 0.125, 0.01);
  EXPECT_NEAR(part_of_one_thread(band(4000, unbounded, 0), 2), 0.5, 0.02);
  EXPECT_NEAR(part_of_one_thread(band(4000, unbounded, 0), 4, 1, 3), 0.25, 0.02);
  EXPECT_NEAR(part_of_one_thread(band(1050, unbounded, unbounded), 2, 3), 0.5, 0.02);  // 3 heads, no round lost
}

TEST_F(AttentionWavefront, UsesAtMostOneThreadPerTile) {
  EXPECT_NEAR(part_of_one_thread(band(300, unbounded, unbounded), 8), 1.0 / 3, 0.05);
  EXPECT_EQ(part_of_one_thread(band(100, unbounded, unbounded), 8), 1.0);
}

TEST_F(AttentionWavefront, TakesNoTimeWithoutKeys) {
  const AttentionSchedule by_key = band(0, unbounded, unbounded).transposed();
  const AttentionTiles tiles(by_key, 100, true);
  const AttentionReach reach({}, tiles, 0, 1);
  EXPECT_EQ(WavefrontLength({}, reach, tiles, 0, 1, 1, 10, 2).of({0, 1}, 2), 0);
}

TEST_F(AttentionWavefront, OverlappingTilesWaitForEachOther) {
  // A tile begins 100 rows after its predecessor, which has 100 + window rows.
  EXPECT_NEAR(part_of_one_thread(band(20000, 20, 0), 8), 110.0 / 120, 0.01);
  EXPECT_NEAR(part_of_one_thread(band(20000, 300, 0), 8), 110.0 / 400, 0.01);
  EXPECT_NEAR(part_of_one_thread(band(20000, 300, 0), 2), 0.5, 0.01);
}

/// Blocks of 100 at offsets -8, 0 and 8.
AttentionSchedule three_blocks() {
  AttentionSchedule schedule = band(40000, unbounded, unbounded);
  AttentionTerm& term = schedule.term[0];
  term.kind = AttentionTerm::Kind::offsets;
  term.size = schedule.cut = 100;
  term.sets = 1;
  term.set_begin[1] = 3;
  for (int n = 0; n < 3; ++n) term.run[n] = {8 * n - 8, 8 * n - 8};
  return schedule;
}

TEST_F(AttentionWavefront, SkippedRowsSaveNoTime) {
  // The next tile starts once this one has passed the second of its three visits.
  EXPECT_NEAR(part_of_one_thread(three_blocks(), 8), 110.0 / 300, 0.01);
  EXPECT_NEAR(part_of_one_thread(three_blocks(), 2), 0.5, 0.01);
}

TEST_F(AttentionWavefront, AllocatesItsPlanFromThePool) {
  const AttentionSchedule by_key = three_blocks().transposed();
  const AttentionTiles tiles(by_key, 100, true);
  const auto workspace = [] {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::workspace)].current;
  };
  const auto before = workspace();
  const AttentionReach reach({}, tiles, 0, 1);
  const auto with_reach = workspace();
  EXPECT_EQ(with_reach - before, 400 * sizeof(AttentionReach::Reach));
  EXPECT_EQ(reach.most_runs(), 3);
  set_num_threads(2);
  const WavefrontLength length({}, reach, tiles, 0, 1, 1, 10, 4);
  const std::size_t thread = 1 + 2 * 3 * 5;  // the end, and three runs of two tiles with their pairs
  EXPECT_EQ(workspace() - with_reach, (400 * 3 + 4 * thread) * sizeof(double));
}

TEST_F(AttentionWavefront, DisjointTilesDoNotWait) {
  AttentionSchedule schedule = band(8000, unbounded, unbounded);
  schedule.term[0].kind = AttentionTerm::Kind::segment;
  schedule.term[0].size = 100;
  EXPECT_NEAR(part_of_one_thread(schedule, 4), 0.25, 0.01);
}

}  // namespace
}  // namespace poolgrad::kernels::attention
