// Calibration measures every call of a driver once per size and leaves nothing behind.
#include "allocator/memory/latency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "allocator/error.h"
#include "tests/allocator/memory/fake_cuda_driver.h"

namespace poolgrad::testing {
namespace {

constexpr std::size_t page = FakeCudaDriver::page;
constexpr CalibrationOptions quick{.repetitions = 3, .small_bytes = page, .large_bytes = 4 * page};

TEST(Calibration, MeasuresEveryCallOfATable) {
  FakeCudaDriver driver(16 * page);
  const LatencyTable table = calibrate(driver, quick);
  for (const auto& cost :
       {table.reserve, table.unreserve, table.create, table.release, table.map, table.set_access, table.unmap,
        table.malloc, table.free, table.event_record, table.event_query, table.stream_wait, table.synchronize}) {
    EXPECT_GT(cost.of(page), 0);
    EXPECT_GE(cost.call, 0);
    EXPECT_GE(cost.per_mib, 0);
  }
  EXPECT_EQ(driver.objects(), 0u);
  EXPECT_EQ(driver.memory_info().free, 16 * page);
}

TEST(Calibration, GivesATableThatTheSimulatorReads) {
  FakeCudaDriver driver(16 * page);
  const LatencyTable table = calibrate(driver, quick);
  const LatencyTable again = LatencyTable::parse(table.text(), "measured.txt");
  EXPECT_THAT(again.source, ::testing::HasSubstr("medians of 3"));
  EXPECT_NEAR(again.create.of(page), table.create.of(page), 0.1);
}

// A driver whose cudaMalloc takes long, and longer for more: the line through two sizes shows it.
TEST(Calibration, TellsTheCostOfACallFromThatOfItsSize) {
  struct Slow : FakeCudaDriver {
    using FakeCudaDriver::FakeCudaDriver;
    std::uintptr_t malloc(std::size_t bytes) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(1) * (bytes / page));
      return FakeCudaDriver::malloc(bytes);
    }
  };
  Slow driver(16 * page);
  const LatencyTable table = calibrate(driver, quick);
  EXPECT_GT(table.malloc.of(4 * page), 4e6);
  EXPECT_GT(table.malloc.per_mib, 0);
}

TEST(Calibration, GivesEverythingBackWhenMemoryIsShort) {
  FakeCudaDriver driver(2 * page);
  EXPECT_THROW(calibrate(driver, quick), OutOfMemoryError);
  EXPECT_EQ(driver.objects(), 0u);
}

TEST(Calibration, RefusesSizesThatTheDeviceCannotGive) {
  FakeCudaDriver driver(16 * page);
  EXPECT_THROW(calibrate(driver, {.small_bytes = 100, .large_bytes = page}), ValueError);
  EXPECT_THROW(calibrate(driver, {.small_bytes = page, .large_bytes = page}), ValueError);
  EXPECT_THROW(calibrate(driver, {.repetitions = 0}), ValueError);
}

}  // namespace
}  // namespace poolgrad::testing
