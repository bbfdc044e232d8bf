#include "allocator/trace/trace_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "allocator/error.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TraceEvent at(std::uint64_t time, std::uint64_t allocation = 0) {
  TraceEvent event;
  event.time = time;
  event.allocation = allocation;
  return event;
}

std::vector<std::uint64_t> times(const std::vector<TraceEvent>& events) {
  std::vector<std::uint64_t> result;
  for (const TraceEvent& event : events) result.push_back(event.time);
  return result;
}

TEST(TraceRing, KeepsEveryEventUntilItIsFull) {
  TraceRing ring(5);
  EXPECT_THAT(ring.events(), IsEmpty());
  for (std::uint64_t i = 0; i < 5; ++i) ring.record(at(i));
  EXPECT_THAT(times(ring.events()), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(ring.lost(), 0u);
}

TEST(TraceRing, OverwritesTheOldestEventsAndCountsThem) {
  for (const std::size_t capacity : {1u, 3u, 4u, 7u}) {
    TraceRing ring(capacity);
    for (std::uint64_t i = 0; i < 30; ++i) {
      ring.record(at(i));
      const std::uint64_t kept = std::min<std::uint64_t>(i + 1, capacity);
      ASSERT_EQ(ring.size(), kept);
      ASSERT_EQ(ring.lost(), i + 1 - kept);
      const std::vector<TraceEvent> events = ring.events();
      ASSERT_EQ(events.size(), kept);
      for (std::size_t k = 0; k < kept; ++k) ASSERT_EQ(events[k].time, i + 1 - kept + k);
    }
  }
}

TEST(TraceRing, StartsAgainWhenCleared) {
  TraceRing ring(2);
  for (std::uint64_t i = 0; i < 5; ++i) ring.record(at(i));
  ring.clear();
  ring.record(at(9));
  EXPECT_THAT(times(ring.events()), ElementsAre(9));
  EXPECT_EQ(ring.lost(), 0u);
}

TEST(TraceRing, RefusesImpossibleCapacities) {
  EXPECT_THROW(TraceRing(0), ValueError);
  EXPECT_THROW(TraceRing(SIZE_MAX), ValueError);
}

TEST(MergeRings, OrdersByTimeAndKeepsTheOrderInsideARing) {
  TraceRing first(8), second(8), empty(8);
  for (std::uint64_t i = 0; i < 3; ++i) first.record(at(7, i));
  second.record(at(3));
  second.record(at(9));
  second.record(at(8));  // a clock that ran backwards
  const std::array<const TraceRing*, 3> rings = {&first, &empty, &second};
  const MergedEvents merged = merge_rings(rings);
  EXPECT_THAT(times(merged.events), ElementsAre(3, 7, 7, 7, 9, 9));
  EXPECT_EQ(merged.events[1].allocation, 0u);
  EXPECT_EQ(merged.events[3].allocation, 2u);
}

TEST(MergeRings, BeginsWhereEveryRingIsComplete) {
  TraceRing small(2), large(8);
  for (std::uint64_t i = 0; i < 4; ++i) small.record(at(10 * i));
  for (std::uint64_t i = 0; i < 6; ++i) large.record(at(5 * i));
  const std::array<const TraceRing*, 2> rings = {&small, &large};
  const MergedEvents merged = merge_rings(rings);
  EXPECT_THAT(times(merged.events), ElementsAre(20, 20, 25, 30));
  EXPECT_EQ(merged.lost, 2u + 4u);
  EXPECT_THAT(merge_rings({}).events, IsEmpty());
}

TEST(TraceClock, MeasuresNanoseconds) {
  const TraceClock clock;
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t first = trace_ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::uint64_t last = trace_ticks();
  const auto end = std::chrono::steady_clock::now();
  const TraceClock::Scale scale = clock.scale();
  const auto elapsed = static_cast<double>(std::chrono::nanoseconds(end - begin).count());
  const auto measured = static_cast<double>(scale(last) - scale(first));
  // The interval in ticks lies inside the steady clock's interval, up to the accuracy of the calibration.
  EXPECT_GE(measured, 20e6 * 0.999);
  EXPECT_LE(measured, elapsed * 1.001);
}

TEST(TraceClock, PutsEarlierTicksAtTimeZero) {
  const std::uint64_t before = trace_ticks();
  const TraceClock clock;
  EXPECT_EQ(clock.scale()(before), 0u);
  EXPECT_GE(clock.start_ticks(), before);
  EXPECT_GT(clock.start_us(), 1'600'000'000'000'000u);
}

}  // namespace
}  // namespace poolgrad
