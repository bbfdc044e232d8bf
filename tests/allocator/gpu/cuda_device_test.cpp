// Tests on a real GPU: the contract of device memory, random work of a pool, and the driver's figures of used memory.
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/latency.h"
#include "tests/allocator/gpu/device_bytes.h"
#include "tests/allocator/gpu/pool_fuzz_on_device.h"
#include "tests/allocator/gpu/pool_on_device.h"
#include "tests/allocator/memory/device_memory_contract.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad::testing {
namespace {

std::unique_ptr<DeviceMemory> device(std::size_t limit) {
  if (const std::string reason = cuda_unavailable_reason(); !reason.empty()) throw Unavailable(reason);
  return std::make_unique<LimitedMemory>(std::make_unique<CudaMemory>(0), limit);
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceMemoryContract,
                         ::testing::Values(MemoryKind{"cuda", [] { return device(MemoryKind::capacity); },
                                                      read_device}),
                         memory_kind_name);

class CudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_unavailable_reason(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CudaDevice, KeepsTheBytesOfBlocksOnFourStreams) {
  PoolOnDevice(device(512 * MiB), {.streams = device_streams(4), .read = read_device}).run();
}

TEST_F(CudaDevice, AgreesWithTheShadowOfTheFuzzer) {
  const auto make = [](std::size_t bytes) { return std::make_unique<MappedStreams>(device(bytes), device_streams(4)); };
  fuzz_pool_on(make, 10, 2000, Isolation::none);
}

TEST_F(CudaDevice, TakesItsCommittedBytesFromTheDriver) {
  CudaMemory memory(0);
  const std::size_t bytes = 512 * MiB;
  void* range = memory.reserve(bytes);
  const std::size_t before = memory.info().free;
  ASSERT_TRUE(memory.commit(range, bytes));
  EXPECT_NEAR(static_cast<double>(before - memory.info().free), static_cast<double>(bytes), 64.0 * MiB);
  memory.decommit(range, bytes);
  EXPECT_NEAR(static_cast<double>(before), static_cast<double>(memory.info().free), 64.0 * MiB);
  memory.unreserve(range, bytes);
}

TEST_F(CudaDevice, RefusesMoreThanTheDriverHas) {
  CudaMemory memory(0);
  const std::size_t bytes = memory.info().total / memory.granularity() * memory.granularity() + memory.granularity();
  void* range = memory.reserve(bytes);
  ASSERT_NE(range, nullptr);
  EXPECT_FALSE(memory.commit(range, bytes));
  EXPECT_TRUE(memory.commit(range, memory.granularity())) << "a refusal leaves no error behind";
  memory.decommit(range, memory.granularity());
  memory.unreserve(range, bytes);
}

TEST_F(CudaDevice, CanBeCalibrated) {
  const auto driver = make_cuda_driver(0);
  const LatencyTable table = calibrate(*driver, {.repetitions = 5});
  EXPECT_GT(table.create.of(2 * MiB), 0);
}

}  // namespace
}  // namespace poolgrad::testing
