// A block given back on one stream reaches another stream only behind an event.
#include <array>

#include "allocator/delayed_memory.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class StreamOrderTest : public PoolTest {
 protected:
  StreamOrderTest() {
    auto delayed = std::make_unique<DelayedMemory>(memory(8 * page));
    device_ = delayed.get();
    pool_ = std::make_unique<CachingAllocator>(std::move(delayed));
  }

  DelayedMemory* device_;
  std::unique_ptr<CachingAllocator> pool_;
};
INSTANTIATE_TEST_SUITE_P(Devices, StreamOrderTest, devices, device_name);

TEST_P(StreamOrderTest, ReusesAtOnceOnTheSameStreamWithoutEvents) {
  void* block = allocate(*pool_, page, Category::activation, 7);
  deallocate(*pool_, block, page, 7);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 7), block);
  EXPECT_EQ(pool_->statistics().events_recorded, 0u);
}

TEST_P(StreamOrderTest, LetsAnotherStreamWaitBeforeItTakesABlock) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(device_->unfinished_events(), 0u);
  // From now on the block belongs to stream 2.
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, LeavesTheRestOfATakenBlockToItsStream) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(allocate(*pool_, page / 2, Category::activation, 2), block);
  EXPECT_EQ(device_->waits(), 1u);
  allocate(*pool_, page / 2, Category::activation, 1);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(pool_->statistics().num_device_alloc, 1u);
}

TEST_P(StreamOrderTest, HoldsABlockBackThatAnotherStreamMayStillUse) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(pool_->statistics().allocated_bytes.current, 0u);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page);
  expect_invariants(*pool_);
  // Not even the stream that owns it gets it while stream 2 is at work.
  void* other = allocate(*pool_, page, Category::activation, 1);
  EXPECT_NE(other, block);
  device_->finish_events();
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(pool_->statistics().active_bytes.current, 2 * page);
  EXPECT_EQ(device_->unfinished_events(), 0u);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, SynchronisesPendingBlocksRatherThanRunOut) {
  pool_->set_budget(2 * page);
  void* block = allocate(*pool_, 2 * page, Category::activation, 1);
  deallocate(*pool_, block, 2 * page, 2);
  EXPECT_EQ(allocate(*pool_, 2 * page, Category::activation, 1), block);
  EXPECT_EQ(pool_->statistics().num_ooms, 0u);
  EXPECT_EQ(device_->unfinished_events(), 0u);
}

TEST_P(StreamOrderTest, JoinsNeighboursOfSeveralStreams) {
  pool_->set_budget(3 * page);
  std::array<void*, 3> blocks{};
  for (std::uint64_t id = 0; id < 3; ++id) blocks[id] = allocate(*pool_, page, Category::activation, id);
  for (std::uint64_t id = 0; id < 3; ++id) deallocate(*pool_, blocks[id], page, id);
  expect_invariants(*pool_);
  EXPECT_EQ(allocate(*pool_, 3 * page, Category::activation, 1), blocks[0]);
  EXPECT_EQ(device_->waits(), 2u);
  EXPECT_EQ(pool_->statistics().num_device_free, 0u);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, ReleasesPagesOnlyAfterTheirStreamIsDone) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->trim(), page);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(device_->unfinished_events(), 0u);
}

TEST(SimulatedStreams, WaitOnTheVirtualClock) {
  auto memory = std::make_unique<SimulatedMemory>(0, 8 * page);
  SimulatedMemory* device = memory.get();
  device->set_event_delay(1000);
  CachingAllocator pool(std::move(memory), {.budget = 2 * page});
  void* block = allocate(pool, 2 * page, Category::activation, 1);
  deallocate(pool, block, 2 * page, 2);
  EXPECT_EQ(device->now(), 0u);
  EXPECT_EQ(allocate(pool, 2 * page, Category::activation, 1), block);
  // The pool had to wait for stream 2, and the clock shows it.
  EXPECT_EQ(device->now(), 1000u);
  deallocate(pool, block, 2 * page, 1);
  EXPECT_EQ(allocate(pool, 2 * page, Category::activation, 3), block);
  EXPECT_EQ(device->waits(), 1u);
  EXPECT_EQ(device->now(), 1000u);
}

}  // namespace
}  // namespace poolgrad::testing
