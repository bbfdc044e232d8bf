// The characteristic rules of PyTorch's two allocators, and of GMLake, which is built on them.
#include "tests/allocator/lab/policies/model_testing.h"

namespace poolgrad::testing {
namespace {

TEST(PytorchNative, RoundsTo512Bytes) {
  Model model(make_pytorch_native, 1 * GiB);
  model.allocate(1);
  EXPECT_EQ(model.active(), 512u);
  model.allocate(513);
  EXPECT_EQ(model.active(), 512u + 1024u);
}

std::size_t segment_for(std::size_t bytes) {
  Model model(make_pytorch_native, 1 * GiB);
  model.allocate(bytes);
  return model.reserved();
}

TEST(PytorchNative, ChoosesSegmentsBySize) {
  EXPECT_EQ(segment_for(1 * MiB), 2 * MiB);
  EXPECT_EQ(segment_for(1 * MiB + 1), 20 * MiB);
  EXPECT_EQ(segment_for(3 * MiB / 2), 20 * MiB);
  EXPECT_EQ(segment_for(10 * MiB - 512), 20 * MiB);
  EXPECT_EQ(segment_for(10 * MiB), 10 * MiB);
  EXPECT_EQ(segment_for(11 * MiB), 12 * MiB);
}

TEST(PytorchNative, SplitsALargeBlockOnlyIfMoreThanOneMebibyteIsLeft) {
  Model exact(make_pytorch_native, 1 * GiB);
  exact.allocate(19 * MiB);
  EXPECT_EQ(exact.active(), 20 * MiB);
  Model split(make_pytorch_native, 1 * GiB);
  split.allocate(19 * MiB - 512);
  EXPECT_EQ(split.active(), 19 * MiB - 512);
}

TEST(PytorchNative, SplitsASmallBlockWhenever512BytesAreLeft) {
  Model model(make_pytorch_native, 1 * GiB);
  const auto block = model.allocate(1024);
  model.allocate(1024);
  model.free(block);
  model.allocate(512);
  EXPECT_EQ(model.active(), 1024u + 512u);
}

TEST(PytorchNative, NeverSharesBlocksBetweenStreams) {
  Model model(make_pytorch_native, 1 * GiB, 2);
  model.free(model.allocate(16 * MiB, 0));
  model.finish_work();
  model.allocate(16 * MiB, 1);
  EXPECT_EQ(model.reserved(), 32 * MiB);
}

TEST(PytorchNative, RecordsNoEventForABlockOfOneStream) {
  Model model(make_pytorch_native, 1 * GiB, 2);
  for (int i = 0; i < 10; ++i) model.free(model.allocate(16 * MiB));
  EXPECT_EQ(model.counters().events, 0u);
}

TEST(PytorchNative, HoldsABlockUntilRecordedStreamsAreDone) {
  Model model(make_pytorch_native, 1 * GiB, 3);
  const auto block = model.allocate(16 * MiB);
  model.use(block, 1);
  model.use(block, 2);
  model.use(block, 1);
  model.free(block);
  EXPECT_EQ(model.counters().events, 2u);
  EXPECT_EQ(model.active(), 16 * MiB);
  model.allocate(16 * MiB);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  model.finish_work();
  model.allocate(16 * MiB);
  EXPECT_EQ(model.reserved(), 32 * MiB);
}

TEST(PytorchNative, FreesItsWholeCacheThoughOneSegmentWouldSuffice) {
  Model model(make_pytorch_native, 100 * MiB);
  std::vector<std::optional<std::uint32_t>> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(model.allocate(20 * MiB));
  for (const auto& block : blocks) model.free(block);
  EXPECT_TRUE(model.allocate(22 * MiB));
  EXPECT_EQ(model.counters().frees, 5u);
  EXPECT_EQ(model.reserved(), 22 * MiB);
}

TEST(PytorchNative, CannotFreeASegmentThatOneSmallBlockPins) {
  Model model(make_pytorch_native, 40 * MiB);
  const auto whole = model.allocate(40 * MiB);
  model.free(whole);
  model.allocate(2 * MiB);  // at the start of the segment
  EXPECT_TRUE(model.allocate(38 * MiB));
  EXPECT_FALSE(model.allocate(1));  // small blocks have segments of their own
}

TEST(PytorchNative, RefusesThoughAFinishedPendingBlockFits) {
  Model model(make_pytorch_native, 40 * MiB, 2);
  model.free(model.allocate(40 * MiB));
  model.allocate(12 * MiB);
  const auto pending = model.allocate(28 * MiB);
  model.use(pending, 1);
  model.free(pending);
  EXPECT_FALSE(model.allocate(28 * MiB));
  EXPECT_TRUE(model.allocate(28 * MiB));  // the cache is searched at the start only
}

TEST(PytorchNative, FreesUnsplitBlocksForLargeRequestsOnly) {
  const auto freed_for = [](std::size_t bytes) {
    Model model("pytorch:max_split=20MiB", 60 * MiB);
    for (const auto block : {model.allocate(28 * MiB), model.allocate(32 * MiB)}) model.free(block);
    EXPECT_TRUE(model.allocate(bytes));
    return model.counters().frees;
  };
  EXPECT_EQ(freed_for(2 * MiB), 1u) << "the smallest that is not split and large enough";
  EXPECT_EQ(freed_for(1 * MiB), 2u) << "small blocks are never that large: all that is cached goes";
}

std::size_t rounded_by_four(std::size_t bytes) {
  Model model("pytorch:roundup_power2_divisions=4", 1 * GiB);
  model.allocate(bytes);
  return model.active();
}

TEST(PytorchNative, RoundsToDivisionsOfPowersOfTwo) {
  EXPECT_EQ(rounded_by_four(1200), 1536u) << "up to 4 x 512 bytes as without divisions";
  EXPECT_EQ(rounded_by_four(2048), 2048u);
  EXPECT_EQ(rounded_by_four(2049), 2560u);
  EXPECT_EQ(rounded_by_four(4096), 4096u);
  EXPECT_EQ(rounded_by_four(5121), 6144u);
  EXPECT_EQ(rounded_by_four(7 * KiB + 1), 8 * KiB);
  EXPECT_EQ(rounded_by_four(9 * MiB), 10 * MiB);
  Model plain("pytorch:roundup_power2_divisions=1", 1 * GiB);
  plain.allocate(5121);
  EXPECT_EQ(plain.active(), 5632u);
}

TEST(PytorchNative, SizesSegmentsByTheRoundedRequest) {
  Model model("pytorch:roundup_power2_divisions=2", 1 * GiB);
  model.allocate(9 * MiB);
  EXPECT_EQ(model.reserved(), 12 * MiB);
}

TEST(PytorchNative, TakesLargeSegmentsOfTheSetSize) {
  Model model("pytorch:large_segment=32MiB", 1 * GiB);
  model.allocate(2 * MiB);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  model.allocate(36 * MiB);
  EXPECT_EQ(model.reserved(), 68 * MiB);
}

// The capacity is 100 MiB and the threshold half of it. An age counts requests for large blocks since the free.
class PytorchGarbageCollection : public ::testing::Test {
 protected:
  // Adds a cached segment of `bytes`.
  void cache(std::size_t bytes) { model_.free(model_.allocate(bytes)); }
  Model model_{"pytorch:garbage_collection_threshold=0.5", 100 * MiB};
};

TEST_F(PytorchGarbageCollection, FreesTheOldestSegmentsAboveTheThreshold) {
  cache(30 * MiB);
  cache(32 * MiB);
  EXPECT_EQ(model_.counters().frees, 0u) << "30 MiB were reserved when the second was asked for";
  EXPECT_TRUE(model_.allocate(34 * MiB));  // the ages are 2 and 1
  EXPECT_EQ(model_.reserved(), 32 * MiB + 34 * MiB);
  EXPECT_TRUE(model_.allocate(36 * MiB));
  EXPECT_EQ(model_.reserved(), 34 * MiB + 36 * MiB);
}

TEST_F(PytorchGarbageCollection, StopsAtTheThreshold) {
  cache(12 * MiB);
  cache(14 * MiB);
  cache(36 * MiB);  // 62 MiB: 12 too much
  cache(38 * MiB);  // ages 3, 2 and 1: the first two, 26 MiB, are at least as old as their average
  EXPECT_EQ(model_.counters().frees, 2u);
  EXPECT_EQ(model_.reserved(), 74 * MiB);
  EXPECT_TRUE(model_.allocate(40 * MiB));  // ages 2 and 1: 36 MiB are enough
  EXPECT_EQ(model_.reserved(), 38 * MiB + 40 * MiB);
}

TEST_F(PytorchGarbageCollection, SparesSmallSegmentsAndLiveOnes) {
  const auto live = model_.allocate(30 * MiB);
  cache(512);
  model_.free(live);
  model_.allocate(2 * MiB);  // of the segment of 30 MiB
  cache(32 * MiB);
  EXPECT_EQ(model_.reserved(), 64 * MiB);
  EXPECT_TRUE(model_.allocate(34 * MiB));  // the cached 32 MiB are released, the others stay
  EXPECT_EQ(model_.counters().frees, 1u);
  EXPECT_EQ(model_.reserved(), 66 * MiB);
}

TEST_F(PytorchGarbageCollection, DoesNotRunWhenACachedBlockFits) {
  cache(30 * MiB);
  cache(32 * MiB);
  EXPECT_TRUE(model_.allocate(31 * MiB));
  EXPECT_EQ(model_.counters().frees, 0u);
}

TEST(PytorchExpandable, RoundsToDivisionsOfPowersOfTwo) {
  Model model("pytorch-expandable:roundup_power2_divisions=2", 1 * GiB);
  model.allocate(17 * MiB);
  EXPECT_EQ(model.active(), 24 * MiB);
}

TEST(PytorchExpandable, MapsLargePagesOfTheSetSize) {
  Model model("pytorch-expandable:large_segment=4MiB", 1 * GiB);
  model.allocate(9 * MiB);
  EXPECT_EQ(model.reserved(), 12 * MiB);
  EXPECT_EQ(model.counters().allocations, 3u);
}

TEST(PytorchExpandable, MapsPagesOfTwoAndTwentyMebibytes) {
  Model model(make_pytorch_expandable, 1 * GiB);
  model.allocate(100);
  EXPECT_EQ(model.reserved(), 2 * MiB);
  model.allocate(30 * MiB);
  EXPECT_EQ(model.reserved(), 2 * MiB + 40 * MiB);
  EXPECT_EQ(model.counters().allocations, 3u);
}

TEST(PytorchExpandable, GrowsAFreeBlockInPlace) {
  Model model(make_pytorch_expandable, 1 * GiB);
  model.free(model.allocate(20 * MiB));
  model.allocate(40 * MiB);
  EXPECT_EQ(model.reserved(), 40 * MiB);
}

TEST(PytorchExpandable, SplitsWhenever512BytesAreLeft) {
  Model model(make_pytorch_expandable, 1 * GiB);
  model.allocate(20 * MiB - 512);
  EXPECT_EQ(model.active(), 20 * MiB - 512);
}

TEST(PytorchExpandable, KeepsTheBlockThatCanGrow) {
  Model model(make_pytorch_expandable, 1 * GiB);
  const auto low = model.allocate(16 * MiB);
  model.allocate(2 * MiB);
  model.free(low);
  // The best fit for 2 MiB is the end of the page. As that part can grow, the policy splits the 16 MiB instead.
  model.allocate(2 * MiB);
  model.allocate(14 * MiB);
  EXPECT_EQ(model.reserved(), 20 * MiB);
  model.allocate(22 * MiB);  // the last 2 MiB and one new page
  EXPECT_EQ(model.reserved(), 40 * MiB);
}

TEST(PytorchExpandable, UnmapsFreePagesUnderPressureOnly) {
  Model model(make_pytorch_expandable, 64 * MiB);
  const auto first = model.allocate(20 * MiB);
  const auto second = model.allocate(20 * MiB);
  const auto third = model.allocate(20 * MiB);
  model.free(first);
  model.free(third);
  EXPECT_EQ(model.counters().frees, 0u);
  EXPECT_TRUE(model.allocate(100));  // 2 MiB are left for small pages
  EXPECT_EQ(model.counters().frees, 0u);
  EXPECT_TRUE(model.allocate(30 * MiB));  // after the remaining block, in pages taken from both of its sides
  EXPECT_EQ(model.counters().frees, 2u);
  EXPECT_EQ(model.reserved(), 62 * MiB);
  model.free(second);
}

TEST(PytorchExpandable, UnmapsPagesInTheMiddleOfAFreeBlock) {
  Model model(make_pytorch_expandable, 42 * MiB);
  model.allocate(10 * MiB);
  model.free(model.allocate(30 * MiB));  // half of the first page, and the second
  EXPECT_TRUE(model.allocate(1 * MiB));
  EXPECT_EQ(model.counters().frees, 0u);
  EXPECT_TRUE(model.allocate(1 * MiB));
  EXPECT_TRUE(model.allocate(1 * MiB));
  EXPECT_EQ(model.counters().frees, 1u);
  EXPECT_EQ(model.reserved(), 24 * MiB);
  EXPECT_TRUE(model.allocate(10 * MiB));  // the rest of the first page
}

TEST(PytorchExpandable, MapsTheLowestHoleAgain) {
  Model model(make_pytorch_expandable, 60 * MiB);
  const auto first = model.allocate(20 * MiB);
  model.allocate(20 * MiB);
  model.free(first);
  EXPECT_FALSE(model.allocate(60 * MiB));  // unmaps the first page
  EXPECT_EQ(model.reserved(), 20 * MiB);
  EXPECT_TRUE(model.allocate(20 * MiB));
  EXPECT_TRUE(model.allocate(20 * MiB));
  EXPECT_EQ(model.reserved(), 60 * MiB);
}

TEST(Gmlake, StitchesScatteredChunks) {
  Model model(make_gmlake, 8 * MiB);
  std::vector<std::optional<std::uint32_t>> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(model.allocate(2 * MiB));
  model.free(blocks[0]);
  model.free(blocks[2]);
  EXPECT_TRUE(model.allocate(4 * MiB));
  EXPECT_EQ(model.reserved(), 8 * MiB);
  EXPECT_EQ(model.counters().frees, 0u);
  EXPECT_EQ(model.counters().allocations, 4u);
}

TEST(Gmlake, StitchesTheLargestBlocksAndSplitsTheLast) {
  Model model(make_gmlake, 1 * GiB);
  std::vector<std::optional<std::uint32_t>> blocks;
  for (const std::size_t size : {2 * MiB, 4 * MiB, 2 * MiB, 6 * MiB}) blocks.push_back(model.allocate(size));
  for (const auto& block : blocks) model.free(block);
  const double spent = model.counters().nanoseconds;
  EXPECT_TRUE(model.allocate(8 * MiB));  // 6 MiB and half of the 4 MiB
  const LatencyTable unit = LatencyTable::named("unit");
  const double handles = 2 + 4;  // of the block that is split, and of the stitched one
  EXPECT_EQ(model.counters().nanoseconds - spent, handles * (unit.map.call + unit.set_access.call));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(model.allocate(2 * MiB));
  EXPECT_EQ(model.active(), 14 * MiB);
  EXPECT_EQ(model.reserved(), 14 * MiB);
}

TEST(Gmlake, ReusesAStitchedBlockWithoutADriverCall) {
  Model model(make_gmlake, 8 * MiB);
  const auto first = model.allocate(2 * MiB);
  model.allocate(2 * MiB);
  const auto third = model.allocate(2 * MiB);
  model.free(first);
  model.free(third);
  model.free(model.allocate(4 * MiB));
  const double spent = model.counters().nanoseconds;
  model.free(model.allocate(4 * MiB));
  EXPECT_EQ(model.counters().nanoseconds, spent);
  // While a part is in use, the stitched block is not free.
  EXPECT_TRUE(model.allocate(2 * MiB));
  EXPECT_TRUE(model.allocate(4 * MiB));
  EXPECT_EQ(model.reserved(), 8 * MiB);
}

TEST(Gmlake, SplitsALargerBlockAndRemembersIt) {
  Model model(make_gmlake, 1 * GiB);
  model.free(model.allocate(12 * MiB));
  const auto part = model.allocate(4 * MiB);
  EXPECT_EQ(model.active(), 4 * MiB);
  EXPECT_EQ(model.reserved(), 12 * MiB);
  model.free(part);
  const double spent = model.counters().nanoseconds;
  EXPECT_TRUE(model.allocate(12 * MiB));
  EXPECT_EQ(model.counters().nanoseconds, spent);
}

TEST(Gmlake, HandsOutAStitchedBlockOfUpToTenTimesTheSize) {
  Model model(make_gmlake, 1 * GiB);
  std::vector<std::optional<std::uint32_t>> chunks;
  for (int i = 0; i < 22; ++i) chunks.push_back(model.allocate(2 * MiB));
  for (const auto& chunk : chunks) model.free(chunk);
  model.free(model.allocate(44 * MiB));
  const auto large = model.allocate(6 * MiB);
  EXPECT_EQ(model.active(), 44 * MiB);
  model.free(large);
  model.allocate(4 * MiB);
  EXPECT_EQ(model.active(), 4 * MiB);
}

// Returns the block for a request of 6 MiB where 12 MiB, stitched of six chunks, are free.
std::size_t granted(const char* policy) {
  Model model(policy, 1 * GiB);
  std::vector<std::optional<std::uint32_t>> chunks;
  for (int i = 0; i < 6; ++i) chunks.push_back(model.allocate(2 * MiB));
  for (const auto& chunk : chunks) model.free(chunk);
  model.free(model.allocate(12 * MiB));
  model.allocate(6 * MiB);
  return model.active();
}

TEST(Gmlake, HandsOutNoStitchedBlockBeyondItsReuseLimit) {
  EXPECT_EQ(granted("gmlake:reuse_limit=2"), 12 * MiB);
  EXPECT_EQ(granted("gmlake:reuse_limit=1"), 6 * MiB);
}

TEST(Gmlake, AllocatesOnlyTheMissingBytes) {
  Model model(make_gmlake, 1 * GiB);
  model.free(model.allocate(6 * MiB));
  model.allocate(10 * MiB);
  EXPECT_EQ(model.reserved(), 10 * MiB);
}

TEST(Gmlake, FreesAllFreeChunksBeforeItRefuses) {
  Model model(make_gmlake, 20 * MiB);
  model.free(model.allocate(512));  // a small segment
  model.free(model.allocate(10 * MiB));
  EXPECT_TRUE(model.allocate(20 * MiB));
  EXPECT_EQ(model.reserved(), 20 * MiB);
  EXPECT_FALSE(model.allocate(1));
}

TEST(Gmlake, MakesAnotherStreamWait) {
  Model model(make_gmlake, 1 * GiB, 2);
  model.free(model.allocate(4 * MiB, 0));
  model.allocate(4 * MiB, 1);
  EXPECT_EQ(model.reserved(), 4 * MiB);
  EXPECT_EQ(model.counters().waits, 1u);
}

TEST(Gmlake, ServesRequestsBelowTheFragmentLimitAsPytorchDoes) {
  Model model(policy_named("gmlake:fragment_limit=512MiB").make, 2 * GiB);
  model.allocate(3 * MiB / 2);
  EXPECT_EQ(model.reserved(), 20 * MiB);
  model.allocate(512 * MiB + 1);
  EXPECT_EQ(model.reserved(), 20 * MiB + 514 * MiB);
}

}  // namespace
}  // namespace poolgrad::testing
