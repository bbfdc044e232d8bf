// Each adaptor's additions to the calls that it forwards: failures, delayed events, a memory limit, a log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "allocator/error.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/memory/traced_memory.h"
#include "tests/allocator/memory/pages.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

std::unique_ptr<DeviceMemory> sim() { return std::make_unique<SimulatedMemory>(0, capacity); }

TEST(FailingMemory, FailsExactlyTheCallsAskedFor) {
  FailingMemory memory(sim());
  memory.fail_call(2);
  void* range = memory.reserve(page);
  EXPECT_NE(range, nullptr);
  EXPECT_FALSE(memory.commit(range, page));
  EXPECT_TRUE(memory.commit(range, page));
  EXPECT_EQ(memory.calls(), 3u);
  memory.fail_call(4, 2);
  EXPECT_THROW(memory.record_event(Stream{}), DeviceError);
  EXPECT_THROW(memory.record_event(Stream{}), DeviceError);
  EXPECT_NO_THROW(memory.record_event(Stream{}));
}

TEST(FailingMemory, FailsMovesWithoutMoving) {
  FailingMemory memory(sim());
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  ASSERT_TRUE(memory.commit(range, page));
  memory.fail_call(3);
  EXPECT_FALSE(memory.move(range, range + page, page));
  memory.decommit(range, page);
  EXPECT_EQ(memory.info().free, capacity);
}

TEST(DelayedMemory, HoldsEventsUntilReleased) {
  DelayedMemory memory(std::make_unique<HostMemory>());
  const EventId event = memory.record_event(Stream{});
  EXPECT_FALSE(memory.event_finished(event));
  memory.stream_wait(Stream{cpu, 1}, event);
  EXPECT_EQ(memory.waits(), 1u);
  memory.finish_events();
  EXPECT_TRUE(memory.event_finished(event));
  EXPECT_EQ(memory.unfinished_events(), 0u);
}

TEST(LimitedMemory, ReportsItsLimitAsTheTotal) {
  LimitedMemory memory(sim(), 4 * page);
  EXPECT_EQ(memory.info().total, 4 * page);
  auto* range = static_cast<char*>(memory.reserve(8 * page));
  ASSERT_TRUE(memory.commit(range, 3 * page));
  EXPECT_EQ(memory.info().free, page);
  EXPECT_FALSE(memory.commit(range + 3 * page, 2 * page));
  EXPECT_FALSE(memory.commit(range + 3 * page, SIZE_MAX - page + 1));
  memory.decommit(range, 3 * page);
  EXPECT_EQ(memory.info().free, 4 * page);
}

TEST(LimitedMemory, CannotCommitMoreThanTheDeviceHas) {
  LimitedMemory memory(sim(), 2 * capacity);
  EXPECT_EQ(memory.info().total, capacity);
  auto* range = static_cast<char*>(memory.reserve(2 * capacity));
  EXPECT_FALSE(memory.commit(range, capacity + page));
  ASSERT_TRUE(memory.commit(range, capacity));
  EXPECT_EQ(memory.info().free, 0u);
}

TEST(LimitedMemory, CountsNothingForAFailedCall) {
  auto failing = std::make_unique<FailingMemory>(sim());
  FailingMemory* inner = failing.get();
  LimitedMemory memory(std::move(failing), 2 * page);
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  inner->fail_call(2);
  EXPECT_FALSE(memory.commit(range, page));
  EXPECT_TRUE(memory.commit(range, page));
  EXPECT_THROW(memory.commit(range, page), DeviceError);
  EXPECT_EQ(memory.info().free, page);
  EXPECT_TRUE(memory.commit(range + page, page));
}

// One thread repeatedly requests more than the limit; the small requests of another thread always succeed.
TEST(LimitedMemory, ServesSmallRequestsBesideTooLargeOnes) {
  LimitedMemory memory(sim(), 4 * page);
  auto* range = static_cast<char*>(memory.reserve(16 * page));
  std::atomic<bool> done = false;
  std::thread greedy([&] {
    while (!done) EXPECT_FALSE(memory.commit(range + 8 * page, 5 * page));
  });
  for (int round = 0; round < 20000; ++round) {
    if (!memory.commit(range, 4 * page)) {
      ADD_FAILURE() << "refused in round " << round;
      break;
    }
    memory.decommit(range, 4 * page);
  }
  done = true;
  greedy.join();
}

TEST(TracedMemory, LogsEveryCallWithItsResult) {
  TracedMemory memory(sim());
  const Stream stream{memory.device(), 3};
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  EXPECT_TRUE(memory.commit(range, page));
  EXPECT_FALSE(memory.commit(range + page, 2 * capacity));
  EXPECT_TRUE(memory.move(range, range + page, page));
  memory.fill(range + page, page, 0, stream);
  const EventId event = memory.record_event(stream);
  memory.stream_wait(stream, event);
  memory.synchronize(event);
  memory.decommit(range + page, page);
  memory.unreserve(range, 4 * page);
  std::vector<std::string> texts;
  for (const CallRecord& record : memory.log()) texts.push_back(record.text());
  EXPECT_THAT(texts,
              ElementsAre("reserve 8388608 bytes at 0x7f0000000000", "commit 2097152 bytes at 0x7f0000000000",
                          "commit 67108864 bytes at 0x7f0000200000: no",
                          "move 2097152 bytes at 0x7f0000000000 to 0x7f0000200000",
                          "fill 2097152 bytes at 0x7f0000200000 stream 3", "record_event stream 3 event 1",
                          "stream_wait stream 3 event 1", "synchronize event 1",
                          "decommit 2097152 bytes at 0x7f0000200000", "unreserve 8388608 bytes at 0x7f0000000000"));
  memory.clear();
  EXPECT_TRUE(memory.log().empty());
}

TEST(TracedMemory, LogsCallsThatThrow) {
  auto failing = std::make_unique<FailingMemory>(sim());
  failing->fail_call(1);
  TracedMemory memory(std::move(failing));
  EXPECT_THROW(memory.record_event(Stream{}), DeviceError);
  EXPECT_THAT(memory.log(), ElementsAre(Field(&CallRecord::succeeded, false)));
}

}  // namespace
}  // namespace poolgrad::testing
