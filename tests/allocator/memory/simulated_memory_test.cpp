// The simulated device beyond the contract: addresses, the clock, costs of calls, and the messages for misuse.
#include "allocator/memory/simulated_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "allocator/error.h"
#include "tests/allocator/memory/pages.h"

namespace poolgrad::testing {
namespace {

TEST(SimulatedMemory, PlacesDevicesOneTebibyteApart) {
  SimulatedMemory first(0, capacity);
  SimulatedMemory third(2, capacity);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.reserve(page)), 0x7f0000000000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(third.reserve(page)), 0x7f0000000000u + (std::uintptr_t{2} << 40));
}

TEST(SimulatedMemory, ReusesAddressesReleasedInAnyOrder) {
  SimulatedMemory memory(0, capacity);
  constexpr std::size_t quarter = std::size_t{1} << 38;
  std::vector<void*> ranges;
  for (int i = 0; i < 4; ++i) ranges.push_back(memory.reserve(quarter));
  EXPECT_EQ(memory.reserve(page), nullptr);
  for (const std::size_t i : {1u, 3u, 2u}) memory.unreserve(ranges[i], quarter);
  EXPECT_EQ(memory.reserve(3 * quarter), ranges[1]);
  EXPECT_EQ(memory.reserve(page), nullptr);
  memory.unreserve(ranges[0], quarter);
  EXPECT_EQ(memory.reserve(page), ranges[0]);
}

TEST(SimulatedMemory, RefusesAnImpossibleIndex) {
  EXPECT_THROW(SimulatedMemory(-1, capacity), DeviceError);
  EXPECT_THROW(SimulatedMemory(256, capacity), DeviceError);
}

TEST(SimulatedMemory, FinishesEventsWhenTheClockPassesThem) {
  SimulatedMemory memory(0, capacity);
  memory.set_event_delay(100);
  const Stream stream{memory.device(), 1};
  const EventId event = memory.record_event(stream);
  EXPECT_FALSE(memory.event_finished(event));
  memory.advance(99);
  EXPECT_FALSE(memory.event_finished(event));
  memory.advance(1);
  EXPECT_TRUE(memory.event_finished(event));
  const EventId later = memory.record_event(stream);
  memory.synchronize(later);
  EXPECT_EQ(memory.now(), 200u);
}

TEST(SimulatedMemory, TakesNoTimeWithoutALatencyTable) {
  SimulatedMemory memory(0, capacity);
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  memory.commit(range, page);
  memory.move(range, range + page, page);
  memory.decommit(range + page, page);
  memory.synchronize(memory.record_event(Stream{memory.device(), 0}));
  memory.unreserve(range, 4 * page);
  EXPECT_EQ(memory.now(), 0u);
  EXPECT_EQ(memory.calls().create.calls, 1u);
}

// Calls of a CUDA driver for each handle: three for a commit, two for a decommit and three for a move.
TEST(SimulatedMemory, CountsTheCallsOfADriverAndTheirTime) {
  SimulatedMemory memory(0, capacity, {.latency = LatencyTable::named("unit")});
  const Stream stream{memory.device(), 0};
  auto* range = static_cast<char*>(memory.reserve(8 * page));
  ASSERT_TRUE(memory.commit(range, 2 * page));
  ASSERT_TRUE(memory.commit(range + 2 * page, page));
  EXPECT_EQ(memory.now(), 7000u);
  ASSERT_TRUE(memory.move(range, range + 4 * page, 3 * page));
  EXPECT_EQ(memory.now(), 13000u);
  memory.decommit(range + 4 * page, 3 * page);
  EXPECT_EQ(memory.now(), 17000u);
  EXPECT_FALSE(memory.commit(range, 17 * page));
  const EventId event = memory.record_event(stream);
  memory.stream_wait(stream, event);
  EXPECT_TRUE(memory.event_finished(event));
  memory.unreserve(range, 8 * page);
  EXPECT_EQ(memory.now(), 22000u);

  const DriverCalls calls = memory.calls();
  EXPECT_EQ(calls.reserve.calls, 1u);
  EXPECT_EQ(calls.create.calls, 3u);
  EXPECT_EQ(calls.map.calls, 4u);
  EXPECT_EQ(calls.set_access.calls, 4u);
  EXPECT_EQ(calls.unmap.calls, 4u);
  EXPECT_EQ(calls.release.calls, 2u);
  EXPECT_EQ(calls.total().calls, 22u);
  EXPECT_EQ(calls.total().nanoseconds, memory.now());
}

TEST(SimulatedMemory, ChargesTheSizeOfHandles) {
  LatencyTable table = LatencyTable::named("unit");
  table.create = {.call = 10, .per_mib = 3};
  table.map = table.set_access = {};
  SimulatedMemory memory(0, capacity, {.latency = table});
  void* range = memory.reserve(4 * page);
  const std::uint64_t before = memory.now();
  ASSERT_TRUE(memory.commit(range, 4 * page));
  EXPECT_EQ(memory.now() - before, 10u + 3 * 8);
}

TEST(SimulatedMemory, CountsTheWaitOfASynchronisationAsItsTime) {
  SimulatedMemory memory(0, capacity, {.latency = LatencyTable::named("unit")});
  memory.set_event_delay(5000);
  memory.synchronize(memory.record_event(Stream{memory.device(), 0}));
  // Recorded at 1000, finished at 6000; the call itself began at 1000.
  EXPECT_EQ(memory.now(), 6000u);
  EXPECT_EQ(memory.calls().synchronize.nanoseconds, 5000u);
}

TEST(SimulatedMemory, KeepsItsCapacityWhenBacked) {
  SimulatedMemory memory(0, 2 * page, {.backed = true});
  auto* range = static_cast<unsigned char*>(memory.reserve(8 * page));
  ASSERT_TRUE(memory.commit(range, 2 * page));
  EXPECT_FALSE(memory.commit(range + 2 * page, page));
  range[2 * page - 1] = 77;
  ASSERT_TRUE(memory.move(range, range + 4 * page, 2 * page));
  EXPECT_EQ(range[6 * page - 1], 77);
  memory.decommit(range + 4 * page, 2 * page);
  EXPECT_EQ(memory.info().free, 2 * page);
  memory.unreserve(range, 8 * page);
}

using SimulatedMemoryDeathTest = ::testing::Test;

TEST(SimulatedMemoryDeathTest, EndsTheProgramWhenAPartOfAHandleIsReleased) {
  SimulatedMemory memory(0, capacity);
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  ASSERT_TRUE(memory.commit(range, 2 * page));
  EXPECT_DEATH(memory.decommit(range, page), "decommit.*ends inside a handle of 4194304 bytes");
  EXPECT_DEATH(memory.decommit(range + 2 * page, page), "decommit.*not mapped");
}

TEST(SimulatedMemory, ReservesAtLargePagesLikeTheCpu) {
  SimulatedMemory memory(0, capacity, SimulationOptions::like("cpu"));
  for (int i = 0; i < 3; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.reserve(5 * memory.granularity()));
    EXPECT_EQ(address % memory.large_page(), 0u);
  }
}

TEST(SimulatedMemory, RefusesToCommitTwice) {
  SimulatedMemory memory(0, capacity);
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  ASSERT_TRUE(memory.commit(range, 2 * page));
  EXPECT_THROW(memory.commit(range + page, page), DeviceError);
  EXPECT_EQ(memory.info().free, capacity - 2 * page);
}

}  // namespace
}  // namespace poolgrad::testing
