// The tests of the pool on a GPU, on what stands in for one: they can fail here before they can fail there.
#include "allocator/cuda_memory.h"
#include "allocator/race_detector.h"
#include "allocator/simulated_memory.h"
#include "tests/allocator/fake_cuda_driver.h"
#include "tests/allocator/gpu/pool_on_device.h"

namespace poolgrad::testing {
namespace {

constexpr std::size_t capacity = std::size_t{1} << 30;

DeviceWorkload workload() {
  return {.streams = {0, 1, 2, 3}, .read = [](const unsigned char* address) { return *address; }};
}

TEST(PoolOnStandIns, KeepsTheBytesOfBlocksOnAFakeDriver) {
  PoolOnDevice(std::make_unique<CudaMemory>(0, std::make_unique<FakeCudaDriver>(capacity)), workload()).run();
}

TEST(PoolOnStandIns, KeepsTheBytesOfBlocksOnASimulatedDevice) {
  auto memory = std::make_unique<SimulatedMemory>(
      0, capacity, SimulationOptions{.latency = LatencyTable::named("h200"), .backed = true});
  PoolOnDevice(std::make_unique<RaceDetector>(std::move(memory)), workload()).run();
}

}  // namespace
}  // namespace poolgrad::testing
