// A plan marks the steps with work: all that are necessary, and no more than ranges of positions can show.
#include "attention/ring/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/attention/ring/ring_support.h"
#include "tests/cpu_timer.h"

namespace poolgrad::attention {
namespace {

using testing_support::layouts;

const std::vector<Pattern>& all_patterns() {
  static const std::vector<Pattern> patterns{
      Pattern::dense(),
      Pattern::causal(),
      Pattern::window(3, 0),
      Pattern::window(0, 20),
      Pattern::documents({0, 7, 7, 20, 40, 80}) & Pattern::causal(),
      Pattern::dilated({8, 16, 32}, {1, 2, 4}),
      Pattern::dilated({6, 30}, {3, 5}, {.mode = DilatedMode::grouped}) & Pattern::causal(),
      Pattern::dilated({8, 32}, {2, 4}, {.unite = true}),
      Pattern::dilated({4, 24}, {2, 8}),
      Pattern::dilated_sparse(16),
      Pattern::block_offsets(16, {{0, 2}, {-3}}),
      Pattern::local_window(16, 48),
      Pattern::global_local(16, 32, 5),
      Pattern::sink_tokens(3) | Pattern::window(4, 0),
      Pattern::strided(24) & Pattern::causal(),
      Pattern::axial(20),
      Pattern::random_blocks(16, 0.1, 3),
      Pattern::blocks(16, {0, 1, 2, 4, 5, 6}, {0, 4, 1, 2, 3, 0}),
      Pattern::window(1, 1) + Pattern::block_offsets(16, {-1, 1})};
  return patterns;
}

/// Whether some query of `rank` counts some key of the rank that it meets in `step`.
bool counts(const RingPlan& plan, const Pattern& pattern, std::int64_t heads, int rank, int step) {
  const kernels::PositionMap rows = plan.queries_of(rank), keys = plan.keys_of(plan.owner(rank, step));
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t i = 0; i < rows.count; ++i)
      for (std::int64_t j = 0; j < keys.count; ++j)
        if (pattern.multiplicity(h, heads, rows.position(i), keys.position(j)) > 0) return true;
  return false;
}

TEST(RingPlan, MissesNoPair) {
  for (const Pattern& pattern : all_patterns())
    for (const Layout layout : layouts)
      for (const int ranks : {2, 3, 5, 8})
        for (const auto& [queries, keys] : {std::pair{80, 80}, {71, 71}, {10, 50}, {50, 10}, {2, 2}}) {
          const RingPlan plan(pattern, layout, ranks, 2, queries, keys, keys - queries);
          for (int rank = 0; rank < ranks; ++rank)
            for (int step = 0; step < ranks; ++step)
              EXPECT_TRUE(plan.computes(rank, step) || !counts(plan, pattern, 2, rank, step))
                  << pattern.to_string() << ", " << to_string(layout) << ", " << queries << " x " << keys << ", rank "
                  << rank << " of " << ranks << ", step " << step;
        }
}

TEST(RingPlan, VisitsNoEmptyStepForContiguousShards) {
  for (const Pattern& pattern : all_patterns()) {
    if (pattern == Pattern::random_blocks(16, 0.1, 3)) continue;  // ranges cannot show that random blocks are absent
    for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
      const RingPlan plan(pattern, layout, 5, 2, 160, 160, 0);
      for (int rank = 0; rank < 5; ++rank)
        for (int step = 1; step < 5; ++step)
          EXPECT_EQ(plan.computes(rank, step), counts(plan, pattern, 2, rank, step))
              << pattern.to_string() << ", " << to_string(layout) << ", rank " << rank << ", step " << step;
    }
  }
}

TEST(RingPlan, VisitsExactlyTheComputedSteps) {
  for (const Pattern& pattern : all_patterns())
    for (const Layout layout : layouts) {
      const RingPlan plan(pattern, layout, 5, 2, 80, 80, 0);
      std::vector<int> wanted;
      for (int step = 0; step < 5; ++step) {
        bool any = false;
        for (int rank = 0; rank < 5; ++rank) any = any || plan.computes(rank, step);
        if (any) wanted.push_back(step);
      }
      EXPECT_EQ(plan.visited(), wanted) << pattern.to_string();
    }
}

TEST(RingPlan, OwnersRotateFromTheOwnRank) {
  const RingPlan plan(Pattern::dense(), Layout::striped, 3, 1, 10, 10, 0);
  EXPECT_EQ(plan.owner(1, 0), 1);
  EXPECT_EQ(plan.owner(1, 1), 0);
  EXPECT_EQ(plan.owner(1, 2), 2);
  EXPECT_EQ(plan.most_keys(), 4);
}

TEST(RingPlan, IsCachedForEqualCalls) {
  const auto plan = [](const Pattern& pattern, std::int64_t keys = 80, Layout layout = Layout::zigzag) {
    return RingPlan::of(pattern, layout, 5, 2, 80, keys, 0);
  };
  EXPECT_NE(plan(Pattern::dense()), plan(Pattern::causal()));
  for (const Pattern& pattern : all_patterns()) {
    const auto first = plan(pattern);
    EXPECT_EQ(plan(Pattern(pattern)), first) << pattern.to_string();
    EXPECT_NE(RingPlan::of(pattern, Layout::zigzag, 5, 4, 80, 80, 0), first) << pattern.to_string();
    EXPECT_NE(plan(pattern, 81), first) << pattern.to_string();
    EXPECT_NE(plan(pattern, 80, Layout::striped), first) << pattern.to_string();
    EXPECT_EQ(first->visited(), RingPlan(pattern, Layout::zigzag, 5, 2, 80, 80, 0).visited());
  }
}

TEST(RingPlan, PlansThousandsOfRanksWithNeighborWindows) {
  constexpr int ranks = 4096;
  for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
    const RingPlan plan(Pattern::window(100, 0), layout, ranks, 8, 1 << 20, 1 << 20, 0);
    EXPECT_EQ(plan.visited().size(), layout == Layout::contiguous ? 2u : 3u);
  }
  const RingPlan segments(Pattern::dilated({64, 256}, {1, 4}), Layout::contiguous, ranks, 8, 1 << 20, 1 << 20, 0);
  EXPECT_THAT(segments.visited(), ::testing::ElementsAre(0));
}

/// The plan examines only the pairs of ranks that a rank asks for. All 16 million pairs would take over ten seconds;
/// these take two under the thread sanitizer.
TEST(RingPlan, PlansThousandsOfStripesInSeconds) {
  constexpr int ranks = 4096;
  const CpuTimer timer;
  for (const Pattern& pattern :
       {Pattern::causal(), Pattern::causal() & Pattern::window(5000, 0), Pattern::dilated_sparse(64)}) {
    const RingPlan plan(pattern, Layout::striped, ranks, 8, 1 << 20, 1 << 20, 0);
    EXPECT_EQ(plan.visited().size(), std::size_t{ranks});
    EXPECT_TRUE(plan.computes(7, 1));
  }
  EXPECT_LT(timer.seconds(), 6.0);
}

TEST(RingPlan, PlansSequencesOf2To40Positions) {
  const std::int64_t length = std::int64_t{1} << 40;
  const RingPlan plan(Pattern::dilated({2048, 4096, 8192}, {1, 2, 4}) & Pattern::causal(), Layout::contiguous, 64, 8,
                      length, length, 0);
  EXPECT_THAT(plan.visited(), ::testing::ElementsAre(0));
  const RingPlan window(Pattern::window(4095, 0), Layout::zigzag, 64, 8, length, length, 0);
  EXPECT_THAT(window.visited(), ::testing::ElementsAre(0, 1, 63));
  const RingPlan strides(Pattern::dilated({2048, 4096}, {64, 32}), Layout::striped, 64, 8, length, length, 0);
  EXPECT_THAT(strides.visited(), ::testing::ElementsAre(0, 32));  // only multiples of 32 stripes contain visible keys
  const RingPlan segments(Pattern::dilated({16, 32}, {1, 2}), Layout::striped, 64, 8, length, length, 0);
  EXPECT_FALSE(segments.computes(0, 32));  // the first rows of segments see no key 32 positions earlier
}

}  // namespace
}  // namespace poolgrad::attention
