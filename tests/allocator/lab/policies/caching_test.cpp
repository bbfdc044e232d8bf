// The characteristic rules of TensorFlow's BFC allocator, CUB's caching allocator, MLX's cache and cudaMallocAsync.
#include "tests/allocator/lab/policies/model_testing.h"

namespace poolgrad::testing {
namespace {

TEST(TensorflowBfc, DoublesItsRegions) {
  Model model(make_tensorflow_bfc, 1 * GiB);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 4; ++i) {
    model.allocate(2 * MiB);
    sizes.push_back(model.reserved() / MiB);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{2, 6, 6, 14}));
}

TEST(TensorflowBfc, DoublesUntilTheRequestFits) {
  Model model(make_tensorflow_bfc, 1 * GiB);
  model.allocate(17 * MiB);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  model.allocate(30 * MiB);  // such a region does not double the next one
  EXPECT_EQ(model.reserved(), 64 * MiB);
}

TEST(TensorflowBfc, SplitsChunksOfTwiceTheRequestOnly) {
  Model model(make_tensorflow_bfc, 1 * GiB);
  const auto whole = model.allocate(2 * MiB - 256);
  EXPECT_EQ(model.active(), 2 * MiB);
  model.free(whole);
  model.allocate(1 * MiB);
  EXPECT_EQ(model.active(), 1 * MiB);
}

TEST(TensorflowBfc, SplitsWhere128MebibytesWouldBeLost) {
  Model model(make_tensorflow_bfc, 1 * GiB);
  model.allocate(384 * MiB);
  EXPECT_EQ(model.reserved(), 512 * MiB);
  EXPECT_EQ(model.active(), 384 * MiB);
  Model below(make_tensorflow_bfc, 1 * GiB);
  below.allocate(384 * MiB + 256);
  EXPECT_EQ(below.active(), 512 * MiB);
}

TEST(TensorflowBfc, TakesTheBytesThatTheLimitLeaves) {
  Model model(make_tensorflow_bfc, 50 * MiB);
  model.allocate(32 * MiB);
  model.allocate(10 * MiB);
  EXPECT_EQ(model.reserved(), 50 * MiB);
}

TEST(TensorflowBfc, AsksForLessAndLessWhenTheDeviceRefuses) {
  Model model(make_tensorflow_bfc, 5 * MiB);  // the device can give two pages of 2 MiB
  EXPECT_TRUE(model.allocate(2 * MiB));
  EXPECT_TRUE(model.allocate(1 * MiB));
  EXPECT_EQ(model.reserved(), 4 * MiB);
}

TEST(TensorflowBfc, AsksForLessAtTheFirstRefusalOnly) {
  Model model(make_tensorflow_bfc, 5 * MiB);
  EXPECT_TRUE(model.allocate(2 * MiB));
  EXPECT_FALSE(model.allocate(5 * MiB / 2));
  EXPECT_FALSE(model.allocate(1 * MiB));
}

TEST(TensorflowBfc, FreesUnusedRegionsForARequestThatFitsThen) {
  Model model(make_tensorflow_bfc, 48 * MiB);
  model.free(model.allocate(16 * MiB));
  EXPECT_FALSE(model.allocate(49 * MiB));
  EXPECT_EQ(model.counters().frees, 0u);  // it would not help
  EXPECT_TRUE(model.allocate(40 * MiB));
  EXPECT_EQ(model.counters().frees, 1u);
}

TEST(TensorflowBfc, SharesChunksBetweenStreamsWithoutEvents) {
  Model model(make_tensorflow_bfc, 1 * GiB, 2);
  model.free(model.allocate(1 * MiB, 0), 1);
  model.allocate(1 * MiB, 1);
  EXPECT_EQ(model.reserved(), 2 * MiB);
  EXPECT_EQ(model.counters().events + model.counters().waits, 0u);
}

TEST(TensorflowBfc, TakesItsWholeLimitWithoutGrowth) {
  Model model("tensorflow-bfc:allow_growth=off", 48 * MiB);
  EXPECT_TRUE(model.allocate(1));
  EXPECT_EQ(model.reserved(), 48 * MiB);
  EXPECT_TRUE(model.allocate(47 * MiB));
  EXPECT_EQ(model.counters().allocations, 1u);
}

TEST(TensorflowBfc, KeepsUnusedRegionsWithoutGarbageCollection) {
  Model model("tensorflow-bfc:garbage_collection=off", 48 * MiB);
  model.free(model.allocate(16 * MiB));
  EXPECT_FALSE(model.allocate(40 * MiB));
  EXPECT_EQ(model.counters().frees, 0u);
}

TEST(TensorflowBfc, SplitsWhereAPartOfTheCapacityWouldBeLost) {
  Model model("tensorflow-bfc:fragmentation_fraction=0.25", 1 * GiB);
  const auto whole = model.allocate(384 * MiB);  // of a region of 512 MiB, by 128 MiB too large
  EXPECT_EQ(model.active(), 512 * MiB);
  model.free(whole);
  model.allocate(256 * MiB);
  EXPECT_EQ(model.active(), 256 * MiB);
  Model eighth("tensorflow-bfc:fragmentation_fraction=0.125", 1 * GiB);
  eighth.allocate(384 * MiB);
  EXPECT_EQ(eighth.active(), 384 * MiB);
}

TEST(Cub, RoundsToPowersOfEight) {
  const std::pair<std::size_t, std::size_t> sizes[] = {{1, 512},
                                                       {512, 512},
                                                       {513, 4 * KiB},
                                                       {4 * KiB + 1, 32 * KiB},
                                                       {32 * KiB + 1, 256 * KiB},
                                                       {256 * KiB + 1, 2 * MiB},
                                                       {2 * MiB, 2 * MiB},
                                                       {2 * MiB + 1, 2 * MiB + 512}};
  for (const auto& [bytes, rounded] : sizes) {
    Model model(make_cub, 1 * GiB);
    model.allocate(bytes);
    EXPECT_EQ(model.active(), rounded) << bytes;
  }
}

TEST(Cub, NeverCachesBlocksLargerThanItsBins) {
  Model model(make_cub, 1 * GiB);
  for (int i = 0; i < 3; ++i) model.free(model.allocate(2 * MiB + 1));
  EXPECT_EQ(model.counters().allocations, 3u);
  EXPECT_EQ(model.counters().frees, 3u);
  EXPECT_EQ(model.counters().events, 0u);
}

TEST(Cub, CachesLessThanSixMebibytes) {
  Model model(make_cub, 1 * GiB);
  std::vector<std::optional<std::uint32_t>> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(model.allocate(2 * MiB));
  for (const auto& block : blocks) model.free(block);
  EXPECT_EQ(model.counters().events, 2u);
  EXPECT_EQ(model.reserved(), 4 * MiB);
}

TEST(Cub, GivesAFinishedBlockToAnotherStream) {
  Model model(make_cub, 1 * GiB, 2);
  model.free(model.allocate(2 * MiB, 0));
  model.allocate(2 * MiB, 1);
  EXPECT_EQ(model.counters().allocations, 2u);
  model.finish_work();
  model.allocate(2 * MiB, 1);
  EXPECT_EQ(model.counters().allocations, 2u);
}

TEST(Cub, UsesNoBlockOfAnotherBin) {
  Model model(make_cub, 1 * GiB);
  model.free(model.allocate(2 * MiB));
  model.allocate(256 * KiB);
  EXPECT_EQ(model.reserved(), 4 * MiB);
}

TEST(Cub, FreesAllCachedBlocksBeforeItRefuses) {
  Model model(make_cub, 6 * MiB);
  model.free(model.allocate(2 * MiB));
  model.free(model.allocate(100));
  EXPECT_TRUE(model.allocate(6 * MiB));
  EXPECT_EQ(model.counters().frees, 2u);
  EXPECT_FALSE(model.allocate(1));
}

TEST(Cub, PacksSmallBlocksIntoThePagesOfTheDriver) {
  Model model(make_cub, 2 * MiB);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(model.allocate(256 * KiB));
  EXPECT_EQ(model.reserved(), 2 * MiB);
  EXPECT_EQ(model.counters().allocations, 8u);
}

TEST(SizeMapLru, RoundsToPagesOf16Kibibytes) {
  Model model(make_size_map_lru, 1 * GiB);
  model.allocate(1);
  EXPECT_EQ(model.active(), 16 * KiB);
  model.allocate(16 * KiB + 1);
  EXPECT_EQ(model.active(), 48 * KiB);
}

TEST(SizeMapLru, TakesABufferOfLessThanTwoPagesMore) {
  Model model(make_size_map_lru, 1 * GiB);
  model.free(model.allocate(4 * MiB));
  const auto near = model.allocate(4 * MiB - 16 * KiB);
  EXPECT_EQ(model.active(), 4 * MiB);
  model.free(near);
  model.allocate(4 * MiB - 32 * KiB);
  EXPECT_EQ(model.active(), 4 * MiB - 32 * KiB);
}

TEST(SizeMapLru, TakesABufferOfLessThanTwiceTheSize) {
  Model model(make_size_map_lru, 1 * GiB);
  model.free(model.allocate(32 * KiB));
  model.allocate(16 * KiB);
  EXPECT_EQ(model.active(), 16 * KiB);
}

TEST(SizeMapLru, FreesTheOldestBuffersFirst) {
  Model model(make_size_map_lru, 100 * MiB);
  const auto first = model.allocate(40 * MiB);
  const auto second = model.allocate(30 * MiB);
  model.free(second);
  model.free(first);
  EXPECT_TRUE(model.allocate(50 * MiB));  // the limit is 95 MiB: the 30 MiB are released, the 40 MiB stay
  EXPECT_EQ(model.counters().frees, 1u);
  EXPECT_EQ(model.reserved(), 90 * MiB);
}

TEST(SizeMapLru, ClearsTheCacheForALargePart) {
  Model model(make_size_map_lru, 100 * MiB);
  std::vector<std::optional<std::uint32_t>> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(model.allocate(4 * MiB));
  for (const auto& block : blocks) model.free(block);
  EXPECT_TRUE(model.allocate(91 * MiB));  // asks for 36 of 40 MiB
  EXPECT_EQ(model.counters().frees, 10u);
}

TEST(SizeMapLru, ClearsTheCacheWhenItsBuffersPinPages) {
  Model model(make_size_map_lru, 4 * MiB);
  const auto first = model.allocate(1 * MiB);
  model.allocate(1 * MiB);
  const auto third = model.allocate(1 * MiB);  // alone in the second page
  model.free(first);
  model.free(third);
  EXPECT_TRUE(model.allocate(3 * MiB / 2));
}

TEST(SizeMapLru, HoldsToTheLimitThatIsSet) {
  Model model("size-map-lru:memory_limit=0.6", 100 * MiB);
  const auto first = model.allocate(40 * MiB);
  const auto second = model.allocate(18 * MiB);
  model.free(second);
  model.free(first);
  EXPECT_TRUE(model.allocate(38 * MiB));  // 96 of 60 MiB: the 18 MiB are not enough, so the 40 MiB are released too
  EXPECT_EQ(model.counters().frees, 2u);
  EXPECT_EQ(model.reserved(), 38 * MiB);
}

TEST(SizeMapLru, CachesNoMoreThanItsLimit) {
  Model model("size-map-lru:cache_limit=32MiB", 1 * GiB);
  const auto first = model.allocate(40 * MiB);
  const auto second = model.allocate(30 * MiB);
  model.free(first);  // the cache was empty
  model.free(second);
  EXPECT_EQ(model.reserved(), 40 * MiB);
  model.allocate(2 * MiB);
  EXPECT_EQ(model.reserved(), 2 * MiB);
  Model none("size-map-lru:cache_limit=0", 1 * GiB);
  none.free(none.allocate(2 * MiB));
  EXPECT_EQ(none.reserved(), 0u);
}

TEST(CudaAsync, KeepsItsReleaseThresholdAtEachStep) {
  Model model("cuda-async:release_threshold=64MiB", 160 * MiB);
  std::vector<std::optional<std::uint32_t>> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(model.allocate(32 * MiB));
  for (const auto& block : blocks) model.free(block);
  model.step();
  EXPECT_EQ(model.reserved(), 64 * MiB);
  EXPECT_EQ(model.counters().frees, 1u);
  EXPECT_TRUE(model.allocate(128 * MiB)) << "where memory is out, all of it goes";
  EXPECT_EQ(model.reserved(), 128 * MiB);
}

TEST(CudaAsync, ReusesOnlyAsItsPoliciesAllow) {
  const auto waits_and_reserved = [](const char* policy, bool ordered) {
    Model model(policy, 1 * GiB, 2);
    model.free(model.allocate(32 * MiB, 0));
    if (ordered) model.order(1, 0);
    if (!ordered) model.finish_work();
    model.allocate(32 * MiB, 1);
    return std::pair(model.counters().waits, model.reserved() / MiB);
  };
  using Result = std::pair<std::uint64_t, std::size_t>;
  EXPECT_EQ(waits_and_reserved("cuda-async:opportunistic=off", false), Result(1, 32));
  EXPECT_EQ(waits_and_reserved("cuda-async:follow_event_dependencies=off", true), Result(1, 32));
  EXPECT_EQ(waits_and_reserved("cuda-async:opportunistic=off,internal_dependencies=off", false), Result(0, 64));
  EXPECT_EQ(waits_and_reserved("cuda-async:internal_dependencies=off", false), Result(0, 32));
  EXPECT_EQ(waits_and_reserved("cuda-async:internal_dependencies=off", true), Result(0, 32));
}

TEST(CudaAsync, ReservesInStepsOf32Mebibytes) {
  Model model(make_cuda_async, 1 * GiB);
  model.allocate(1);
  EXPECT_EQ(model.active(), 512u);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  model.allocate(33 * MiB);
  EXPECT_EQ(model.reserved(), 96 * MiB);
}

TEST(CudaAsync, ReservesPagesWhereAStepDoesNotFit) {
  Model model(make_cuda_async, 10 * MiB);
  EXPECT_TRUE(model.allocate(3 * MiB));
  EXPECT_EQ(model.reserved(), 4 * MiB);
  EXPECT_TRUE(model.allocate(6 * MiB));
}

TEST(CudaAsync, ReturnsUnusedMemoryAtEachStep) {
  Model model(make_cuda_async, 1 * GiB);
  for (int i = 0; i < 3; ++i) {
    model.free(model.allocate(32 * MiB));
    EXPECT_EQ(model.reserved(), 32 * MiB);
    model.step();
    EXPECT_EQ(model.reserved(), 0u);
  }
  EXPECT_EQ(model.counters().allocations, 3u);
}

TEST(CudaAsync, FollowsTheOrderThatTheProgramMade) {
  Model model(make_cuda_async, 1 * GiB, 3);
  model.free(model.allocate(32 * MiB, 0));
  model.order(1, 0);
  model.order(2, 1);  // and so after stream 0
  model.allocate(32 * MiB, 2);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  EXPECT_EQ(model.counters().waits, 0u);
}

TEST(CudaAsync, TakesFinishedBlocks) {
  Model model(make_cuda_async, 1 * GiB, 2);
  model.free(model.allocate(32 * MiB, 0));
  model.finish_work();
  model.allocate(32 * MiB, 1);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  EXPECT_EQ(model.counters().waits, 0u);
}

TEST(CudaAsync, MakesTheStreamWaitForUnfinishedBlocks) {
  Model model(make_cuda_async, 1 * GiB, 2);
  model.order(1, 0);  // too early for the free
  model.free(model.allocate(32 * MiB, 0));
  model.allocate(32 * MiB, 1);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  EXPECT_EQ(model.counters().waits, 1u);
}

TEST(CudaAsync, WaitsForTheLatestFreeOfAMergedBlock) {
  Model model(make_cuda_async, 1 * GiB, 2);
  const auto low = model.allocate(16 * MiB, 0);
  const auto high = model.allocate(16 * MiB, 0);
  model.free(low);
  model.order(1, 0);  // covers the first free alone
  model.free(high);
  model.allocate(32 * MiB, 1);
  EXPECT_EQ(model.counters().waits, 1u);
}

TEST(CudaAsync, WaitsOnceForAllFreesOfAStream) {
  Model model(make_cuda_async, 1 * GiB, 2);
  model.free(model.allocate(32 * MiB, 0));
  model.allocate(16 * MiB, 1);
  model.allocate(16 * MiB, 1);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  EXPECT_EQ(model.counters().waits, 1u);
}

TEST(CudaAsync, MakesEachStreamWaitForTheRestOfABlock) {
  Model model(make_cuda_async, 1 * GiB, 3);
  model.order(2, 0);  // too early for the free
  model.free(model.allocate(32 * MiB, 0));
  model.allocate(16 * MiB, 1);
  model.allocate(16 * MiB, 2);
  EXPECT_EQ(model.reserved(), 32 * MiB);
  EXPECT_EQ(model.counters().waits, 2u);
}

}  // namespace
}  // namespace poolgrad::testing
