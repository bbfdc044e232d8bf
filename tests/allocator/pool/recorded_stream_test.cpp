// During a capture of a stream, the pool cannot know the state of its work: the device refuses events on it. Its cached
// blocks stay, and blocks of other streams can still be used.
#include <array>

#include "allocator/memory/memory_adaptor.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

constexpr std::uint64_t recorded = 1;

// Refuses events as CudaMemory does. During a capture no event finishes without a wait.
class RecordingMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;

  EventId record_event(Stream stream) override {
    if (recording && stream.id == recorded) throw DeviceError("[record_event] a step is being recorded");
    return inner().record_event(stream);
  }

  bool event_finished(EventId event) override { return !recording && inner().event_finished(event); }

  bool recording = false;
};

class RecordedStreamTest : public PoolTest {
 protected:
  void make_pool(AllocatorConfig config = {}) {
    if (config.budget == 0) config.budget = 8 * page;
    auto recording = std::make_unique<RecordingMemory>(memory());
    device_ = recording.get();
    pool_ = std::make_unique<CachingAllocator>(std::move(recording), config);
  }
  void* get(std::uint64_t stream, std::size_t bytes = page) {
    return allocate(*pool_, bytes, Category::activation, stream);
  }
  void give_back(void* block, std::uint64_t stream, std::size_t bytes = page) {
    deallocate(*pool_, block, bytes, stream);
  }
  std::size_t reserved_pages() const { return pool_->statistics().reserved_bytes.current / page; }

  RecordingMemory* device_ = nullptr;
  std::unique_ptr<CachingAllocator> pool_;
};
INSTANTIATE_TEST_SUITE_P(Devices, RecordedStreamTest, devices, device_name);

TEST_P(RecordedStreamTest, KeepsItsPagesDuringATrim) {
  make_pool();
  void* oldest = get(recorded);
  void* other = get(2);
  give_back(oldest, recorded);
  give_back(other, 2);
  device_->recording = true;
  EXPECT_EQ(pool_->trim(), page) << "stream 2's";
  EXPECT_EQ(pool_->trim(), 0u);
  device_->recording = false;
  EXPECT_EQ(pool_->trim(), page);
  expect_invariants(*pool_);
}

TEST_P(RecordedStreamTest, LeavesTheCachesOfOtherStreamsUsable) {
  make_pool({.stitch = false});
  void* oldest = get(recorded);
  std::array<void*, 7> blocks{};
  for (void*& block : blocks) block = get(2);
  give_back(oldest, recorded);
  for (const std::size_t i : {1u, 3u, 5u}) give_back(blocks[i], 2);
  device_->recording = true;
  void* large = get(2, 3 * page);
  give_back(large, 2, 3 * page);
  for (const std::size_t i : {0u, 2u, 4u, 6u}) give_back(blocks[i], 2);
  expect_invariants(*pool_);
}

TEST_P(RecordedStreamTest, KeepsItsPagesWhenTheBudgetShrinks) {
  make_pool();
  void* oldest = get(recorded);
  void* other = get(2, 3 * page);
  give_back(oldest, recorded);
  give_back(other, 2, 3 * page);
  device_->recording = true;
  pool_->set_budget(2 * page);
  EXPECT_EQ(reserved_pages(), 2u);
  EXPECT_EQ(get(recorded), oldest);
}

TEST_P(RecordedStreamTest, KeepsItsPagesFromDecay) {
  make_pool({.decay = 4});
  void* oldest = get(recorded);
  void* other = get(2);
  give_back(oldest, recorded);
  give_back(other, 2);
  device_->recording = true;
  const auto pass_time = [&] {
    for (int i = 0; i < 4; ++i) give_back(get(3), 3);
  };
  pass_time();
  EXPECT_EQ(reserved_pages(), 2u) << "stream 1's and stream 3's";
  device_->recording = false;
  pass_time();
  EXPECT_EQ(reserved_pages(), 1u);
}

TEST_P(RecordedStreamTest, KeepsOnlyTheHandlesWithItsBlocks) {
  make_pool();
  const auto share_a_page_with_stream_3 = [&](std::uint64_t stream) {
    return std::pair(get(stream, page / 2), get(3, page / 2));
  };
  const auto [first, beside_first] = share_a_page_with_stream_3(recorded);
  void* wall = get(4);
  const auto [second, beside_second] = share_a_page_with_stream_3(2);
  give_back(first, recorded, page / 2);
  give_back(beside_first, 3, page / 2);
  give_back(second, 2, page / 2);
  give_back(beside_second, 3, page / 2);
  device_->recording = true;
  EXPECT_EQ(pool_->trim(), page);
  device_->recording = false;
  EXPECT_EQ(pool_->trim(), page);
  give_back(wall, 4);
  expect_invariants(*pool_);
}

TEST_P(RecordedStreamTest, KeepsItsBlocksSoAnotherStreamsBlockIsTaken) {
  make_pool();
  void* best_fit = get(recorded);
  void* wall = get(4);
  void* next_best = get(2, 2 * page);
  give_back(best_fit, recorded);
  give_back(next_best, 2, 2 * page);
  device_->recording = true;
  EXPECT_EQ(get(3), next_best);
  device_->recording = false;
  EXPECT_EQ(get(3, page), static_cast<std::byte*>(next_best) + page) << "the rest fits as well, and waits for nobody";
  EXPECT_EQ(get(3), best_fit);
  give_back(wall, 4);
  expect_invariants(*pool_);
}

TEST_P(RecordedStreamTest, KeepsItsPendingBlocksSoAnotherIsTaken) {
  make_pool({.budget = 3 * page});
  void* best_fit = get(2);
  void* next_best = get(2, 2 * page);
  pool_->use(best_fit, stream_of(*pool_, recorded));
  pool_->use(next_best, stream_of(*pool_, 4));
  device_->recording = true;
  give_back(best_fit, 2);
  give_back(next_best, 2, 2 * page);
  EXPECT_EQ(get(2), next_best);
  EXPECT_EQ(pool_->statistics().num_sync_all_streams, 0u) << "the stream waits, and not this thread";
}

TEST_P(RecordedStreamTest, KeepsItsMixedRunsSoAnotherIsTaken) {
  make_pool({.budget = 5 * page});
  void* best_fit = get(recorded);
  void* beside_it = get(2);
  void* wall = get(4);
  void* next_best = get(2);
  void* beside_that = get(3);
  give_back(best_fit, recorded);
  give_back(beside_it, 2);
  give_back(next_best, 2);
  give_back(beside_that, 3);
  device_->recording = true;
  EXPECT_EQ(get(5, 2 * page), next_best);
  give_back(wall, 4);
  expect_invariants(*pool_);
}

TEST_P(RecordedStreamTest, KeepsItsPagesWhileOthersAreMovedIntoOneRun) {
  make_pool();
  void* oldest = get(recorded);
  std::array<void*, 7> blocks{};
  for (void*& block : blocks) block = get(2);
  give_back(oldest, recorded);
  for (const std::size_t i : {0u, 2u, 4u, 6u}) give_back(blocks[i], 2);
  const std::uint64_t commits = pool_->statistics().num_device_alloc;
  device_->recording = true;
  void* large = get(2, 4 * page);
  EXPECT_EQ(pool_->statistics().num_device_alloc, commits);
  give_back(large, 2, 4 * page);
  for (const std::size_t i : {1u, 3u, 5u}) give_back(blocks[i], 2);
  expect_invariants(*pool_);
}

}  // namespace
}  // namespace poolgrad::testing
