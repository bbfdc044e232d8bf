// The contract of DeviceMemory, written once and run on every implementation and through every adaptor.
#include "allocator/device_memory.h"

#include <cstring>

#include "allocator/delayed_memory.h"
#include "allocator/failing_memory.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

constexpr std::size_t capacity = 16 * page;

class DeviceMemoryContract : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<DeviceMemory> make(const std::string& kind) {
    if (kind == "failing_sim") return std::make_unique<FailingMemory>(make_memory("sim", capacity));
    if (kind == "delayed_host") return std::make_unique<DelayedMemory>(make_memory("host", capacity));
    return make_memory(kind, capacity);
  }

  std::unique_ptr<DeviceMemory> memory_ = make(GetParam());
};

INSTANTIATE_TEST_SUITE_P(All, DeviceMemoryContract, ::testing::Values("host", "sim", "failing_sim", "delayed_host"),
                         device_name);

TEST_P(DeviceMemoryContract, ReservesAlignedDisjointRangesThatCostNothing) {
  const std::size_t granule = memory_->granularity();
  EXPECT_EQ(granule & (granule - 1), 0u);
  auto* first = static_cast<char*>(memory_->reserve(64 * granule));
  auto* second = static_cast<char*>(memory_->reserve(granule));
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % granule, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % granule, 0u);
  EXPECT_TRUE(second >= first + 64 * granule || first >= second + granule);
  EXPECT_EQ(memory_->info().free, capacity);
  EXPECT_EQ(memory_->info().total, capacity);
  memory_->unreserve(second, granule);
  memory_->unreserve(first, 64 * granule);
}

TEST_P(DeviceMemoryContract, CountsWhatIsCommitted) {
  const std::size_t granule = memory_->granularity();
  auto* range = static_cast<char*>(memory_->reserve(8 * granule));
  EXPECT_TRUE(memory_->commit(range + 2 * granule, 3 * granule));
  EXPECT_EQ(memory_->info().free, capacity - 3 * granule);
  memory_->decommit(range + 3 * granule, granule);
  EXPECT_EQ(memory_->info().free, capacity - 2 * granule);
  EXPECT_TRUE(memory_->commit(range + 3 * granule, granule));
  memory_->decommit(range + 2 * granule, 3 * granule);
  EXPECT_EQ(memory_->info().free, capacity);
  memory_->unreserve(range, 8 * granule);
}

TEST_P(DeviceMemoryContract, RefusesMoreThanItHasAndStaysUsable) {
  auto* range = static_cast<char*>(memory_->reserve(2 * capacity));
  ASSERT_NE(range, nullptr);
  EXPECT_TRUE(memory_->commit(range, capacity - page));
  EXPECT_FALSE(memory_->commit(range + capacity, 2 * page));
  EXPECT_EQ(memory_->info().free, page);
  EXPECT_TRUE(memory_->commit(range + capacity, page));
  EXPECT_FALSE(memory_->commit(range + capacity + page, page));
  memory_->decommit(range, capacity - page);
  memory_->decommit(range + capacity, page);
  memory_->unreserve(range, 2 * capacity);
}

TEST_P(DeviceMemoryContract, FinishesEventsOnceTheyAreSynchronised) {
  const Stream stream{memory_->device(), 0};
  const EventId first = memory_->record_event(stream);
  const EventId second = memory_->record_event(stream);
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
  memory_->stream_wait(Stream{memory_->device(), 1}, first);
  memory_->synchronize(first);
  memory_->synchronize(second);
  memory_->discard_event(memory_->record_event(stream));
}

TEST_P(DeviceMemoryContract, ReportsAnAbsurdReservationAsImpossible) {
  EXPECT_EQ(memory_->reserve(std::size_t{1} << 60), nullptr);
}

TEST(HostMemory, GivesMemoryThatCanBeUsedAndComesBackZeroed) {
  HostMemory memory;
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  ASSERT_TRUE(memory.commit(range + page, page));
  std::memset(range + page, 7, page);
  memory.decommit(range + page, page);
  ASSERT_TRUE(memory.commit(range, 3 * page));
  for (std::size_t i = 0; i < 3 * page; i += 4096) ASSERT_EQ(range[i], 0);
  memory.fill(range, 100, 0xAB, Stream{});
  EXPECT_EQ(static_cast<unsigned char>(range[99]), 0xAB);
  EXPECT_EQ(range[100], 0);
  memory.decommit(range, 3 * page);
  memory.unreserve(range, 4 * page);
}

TEST(HostMemoryDeathTest, FaultsOnReservedMemoryThatIsNotCommitted) {
  HostMemory memory;
  auto* range = static_cast<volatile char*>(memory.reserve(page));
  EXPECT_DEATH(range[0] = 1, "");
  memory.unreserve(const_cast<char*>(range), page);
}

TEST(HostMemory, HasThePhysicalMemoryOfTheMachine) { EXPECT_GE(HostMemory().info().total, 64 * MiB); }

TEST(SimulatedMemory, PlacesDevicesOneTebibyteApart) {
  SimulatedMemory first(0, capacity);
  SimulatedMemory third(2, capacity);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.reserve(page)), 0x7f0000000000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(third.reserve(page)), 0x7f0000000000u + (std::uintptr_t{2} << 40));
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

TEST(SimulatedMemory, RefusesAnImpossibleIndex) {
  EXPECT_THROW(SimulatedMemory(-1, capacity), DeviceError);
  EXPECT_THROW(SimulatedMemory(256, capacity), DeviceError);
}

TEST(FailingMemory, FailsExactlyTheCallsAskedFor) {
  FailingMemory memory(make_memory("sim", capacity));
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

TEST(DelayedMemory, HoldsEventsBackUntilTold) {
  DelayedMemory memory(make_memory("host", capacity));
  const EventId event = memory.record_event(Stream{});
  EXPECT_FALSE(memory.event_finished(event));
  memory.stream_wait(Stream{cpu, 1}, event);
  EXPECT_EQ(memory.waits(), 1u);
  memory.finish_events();
  EXPECT_TRUE(memory.event_finished(event));
  EXPECT_EQ(memory.unfinished_events(), 0u);
}

}  // namespace
}  // namespace poolgrad::testing
