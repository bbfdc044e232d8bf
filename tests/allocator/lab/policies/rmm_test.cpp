// The characteristic rules of RMM's pool, arena and binning resources.
#include "tests/allocator/lab/policies/model_testing.h"

namespace poolgrad::testing {
namespace {

TEST(RmmPool, DoublesWheneverItGrows) {
  Model model(make_rmm_pool, 1 * GiB);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 5; ++i) {
    model.allocate(2 * MiB);
    sizes.push_back(model.reserved() / MiB);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{2, 4, 8, 8, 16}));
}

TEST(RmmPool, GrowsByHalfAsMuchWhenTheDeviceRefuses) {
  Model model(make_rmm_pool, 12 * MiB);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(model.allocate(2 * MiB));
  EXPECT_EQ(model.reserved(), 12 * MiB);
  EXPECT_TRUE(model.allocate(2 * MiB));
  EXPECT_FALSE(model.allocate(256));
}

TEST(RmmPool, RoundsTo256BytesAndSplitsAnyRest) {
  Model model(make_rmm_pool, 1 * GiB);
  model.allocate(257);
  EXPECT_EQ(model.active(), 512u);
  EXPECT_TRUE(model.allocate(2 * MiB - 512));
  EXPECT_EQ(model.reserved(), 2 * MiB);
}

TEST(RmmPool, RecordsAnEventForEachFree) {
  Model model(make_rmm_pool, 1 * GiB);
  for (int i = 0; i < 10; ++i) model.free(model.allocate(1000));
  EXPECT_EQ(model.counters().events, 10u);
}

TEST(RmmPool, StealsFromAnotherStreamAfterAWait) {
  Model model(make_rmm_pool, 1 * GiB, 2);
  model.free(model.allocate(2 * MiB, 0));
  model.allocate(1 * MiB, 1);
  EXPECT_EQ(model.reserved(), 2 * MiB);
  EXPECT_EQ(model.counters().waits, 1u);
  model.allocate(1 * MiB, 0);  // the rest stayed with its stream
  EXPECT_EQ(model.counters().waits, 1u);
}

TEST(RmmPool, MergesListsOfStreamsBeforeItGrows) {
  Model model(make_rmm_pool, 1 * GiB, 2);
  const auto low = model.allocate(1 * MiB, 0);
  const auto high = model.allocate(1 * MiB, 0);
  model.free(low, 0);
  model.free(high, 1);  // a neighbor, but in the list of the other stream
  EXPECT_TRUE(model.allocate(2 * MiB, 0));
  EXPECT_EQ(model.reserved(), 2 * MiB);
  EXPECT_EQ(model.counters().waits, 1u);
}

TEST(RmmPool, NeverFreesMemory) {
  Model model(make_rmm_pool, 64 * MiB);
  for (int i = 0; i < 8; ++i) model.free(model.allocate(8 * MiB + static_cast<std::size_t>(i) * MiB));
  const std::size_t reserved = model.reserved();
  EXPECT_FALSE(model.allocate(60 * MiB));  // no block is live, but the pool is fragmented
  EXPECT_EQ(model.reserved(), reserved);
  EXPECT_EQ(model.counters().frees, 0u);
}

TEST(RmmPool, BeginsWithItsInitialSize) {
  Model model("rmm-pool:initial_size=8MiB", 20 * MiB);
  EXPECT_EQ(model.reserved(), 8 * MiB);
  for (int i = 0; i < 4; ++i) model.allocate(2 * MiB);
  EXPECT_EQ(model.reserved(), 8 * MiB);
  model.allocate(2 * MiB);
  EXPECT_EQ(model.reserved(), 16 * MiB);
  Model larger("rmm-pool:initial_size=8MiB", 6 * MiB);
  EXPECT_FALSE(larger.allocate(1));
}

TEST(RmmPool, TakesHalfOfTheBytesBelowItsMaximum) {
  Model model("rmm-pool:maximum_size=16MiB", 1 * GiB);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(model.allocate(2 * MiB));
    sizes.push_back(model.reserved() / MiB);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{8, 8, 8, 8, 12, 12, 14, 16}));
  EXPECT_FALSE(model.allocate(1));
  Model request("rmm-pool:maximum_size=16MiB", 1 * GiB);
  EXPECT_TRUE(request.allocate(12 * MiB));
  EXPECT_EQ(request.reserved(), 12 * MiB);
  EXPECT_FALSE(request.allocate(5 * MiB));
}

TEST(RmmArena, TakesTheSetSize) {
  Model model("rmm-arena:arena_size=16MiB", 64 * MiB);
  EXPECT_EQ(model.reserved(), 16 * MiB);
  EXPECT_TRUE(model.allocate(16 * MiB));
  EXPECT_FALSE(model.allocate(1));
  Model larger("rmm-arena:arena_size=16MiB", 8 * MiB);
  EXPECT_EQ(larger.reserved(), 0u);
  EXPECT_FALSE(larger.allocate(1));
}

TEST(RmmArena, TakesTheWholeCapacityAtOnce) {
  Model model(make_rmm_arena, 64 * MiB);
  EXPECT_EQ(model.reserved(), 64 * MiB);
  EXPECT_TRUE(model.allocate(64 * MiB));
  EXPECT_FALSE(model.allocate(1));
  EXPECT_EQ(model.counters().allocations, 1u);
}

TEST(RmmArena, GivesEachStreamItsSuperblocks) {
  Model model(make_rmm_arena, 2 * MiB, 3);
  EXPECT_TRUE(model.allocate(256, 0));
  EXPECT_TRUE(model.allocate(256, 1));
  EXPECT_FALSE(model.allocate(256, 2));  // the pool had only two superblocks of 1 MiB
  EXPECT_TRUE(model.allocate(512 * KiB, 0));
}

TEST(RmmArena, CollectsFreeSuperblocksBeforeItRefuses) {
  Model model(make_rmm_arena, 2 * MiB, 3);
  const auto block = model.allocate(256, 0);
  model.allocate(256, 1);
  model.free(block);
  EXPECT_TRUE(model.allocate(256, 2));
  EXPECT_EQ(model.counters().synchronizations, 1u);
  EXPECT_FALSE(model.allocate(256, 0));
}

TEST(RmmArena, KeepsTheSuperblocksOfAStreamApart) {
  Model model(make_rmm_arena, 2 * MiB);
  const auto low = model.allocate(1 * MiB - 256);
  const auto high = model.allocate(1 * MiB - 256);
  model.free(low);
  model.free(high);
  EXPECT_TRUE(model.allocate(2 * MiB));
}

TEST(RmmArena, ServesUpToOneMebibyteFromTheStreamsArena) {
  Model model(make_rmm_arena, 64 * MiB);
  model.free(model.allocate(1 * MiB));
  EXPECT_EQ(model.counters().synchronizations, 0u);
  model.free(model.allocate(1 * MiB + 1));
  EXPECT_EQ(model.counters().synchronizations, 1u);
}

TEST(RmmArena, SynchronizesAtAFreeOnAnotherStream) {
  Model model(make_rmm_arena, 64 * MiB, 2);
  model.free(model.allocate(256, 0), 0);
  EXPECT_EQ(model.counters().synchronizations, 0u);
  model.free(model.allocate(256, 0), 1);
  EXPECT_EQ(model.counters().synchronizations, 1u);
  model.free(model.allocate(2 * MiB, 0), 0);  // of the global arena
  EXPECT_EQ(model.counters().synchronizations, 2u);
}

TEST(RmmArena, RecordsNoEvents) {
  Model model(make_rmm_arena, 64 * MiB, 2);
  for (int i = 0; i < 10; ++i) model.free(model.allocate(1000 * KiB, 0), static_cast<std::uint16_t>(i % 2));
  EXPECT_EQ(model.counters().events, 0u);
}

TEST(RmmBinning, ServesEachRequestFromTheSmallestBinThatHoldsIt) {
  Model model(make_rmm_binning, 4 * GiB);
  model.allocate(1);
  EXPECT_EQ(model.active(), 256 * KiB);
  model.allocate(256 * KiB);
  EXPECT_EQ(model.active(), 512 * KiB);
  model.allocate(256 * KiB + 1);
  EXPECT_EQ(model.active(), 1 * MiB);
  model.allocate(4 * MiB);
  EXPECT_EQ(model.active(), 5 * MiB);
  model.allocate(4 * MiB + 1);  // of the pool
  EXPECT_EQ(model.active(), 9 * MiB + 256);
}

TEST(RmmBinning, HasTheSetBins) {
  Model model("rmm-binning:smallest_bin=1MiB,largest_bin=2MiB,blocks=4", 1 * GiB);
  model.allocate(1);
  EXPECT_EQ(model.active(), 1 * MiB);
  EXPECT_EQ(model.reserved(), 4 * MiB);
  model.allocate(2 * MiB);
  EXPECT_EQ(model.active(), 3 * MiB);
  EXPECT_EQ(model.reserved(), 12 * MiB);
  model.allocate(2 * MiB + 1);  // of the pool, which doubles
  EXPECT_EQ(model.active(), 5 * MiB + 256);
  EXPECT_EQ(model.reserved(), 24 * MiB);
}

TEST(RmmBinning, Takes128BlocksAtATime) {
  Model model(make_rmm_binning, 1 * GiB);
  for (int i = 0; i < 128; ++i) model.allocate(1);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  model.allocate(1);
  EXPECT_EQ(model.reserved(), 64 * MiB);
}

TEST(RmmBinning, RefusesWhere128BlocksDoNotFit) {
  Model model(make_rmm_binning, 100 * MiB);
  EXPECT_TRUE(model.allocate(256 * KiB));
  EXPECT_FALSE(model.allocate(1 * MiB));
  EXPECT_TRUE(model.allocate(5 * MiB));
}

TEST(RmmBinning, TakesTheBlocksOfAnotherStreamAfterAWait) {
  Model model(make_rmm_binning, 1 * GiB, 2);
  model.free(model.allocate(100, 0));
  EXPECT_EQ(model.counters().events, 1u);
  model.allocate(100, 1);
  EXPECT_EQ(model.counters().waits, 1u);
  EXPECT_EQ(model.reserved(), 32 * MiB);
}

}  // namespace
}  // namespace poolgrad::testing
