// Runs the GPU tests of the pool on stand-ins for a GPU, so that failures show on machines without one.
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/race_detector.h"
#include "allocator/memory/simulated_memory.h"
#include "tests/allocator/gpu/pool_on_device.h"
#include "tests/allocator/memory/recording_driver.h"

namespace poolgrad::testing {
namespace {

constexpr std::size_t capacity = std::size_t{1} << 30;

TEST(PoolOnFakeDevices, KeepsTheBytesOfBlocksOnASimulatedDevice) {
  auto memory = std::make_unique<SimulatedMemory>(
      0, capacity, SimulationOptions{.latency = LatencyTable::named("h200"), .backed = true});
  PoolOnDevice(std::make_unique<RaceDetector>(std::move(memory)),
               {.streams = {0, 1, 2, 3}, .read = [](const unsigned char* address) { return *address; }})
      .run();
}

// The driver fails at each of its calls in turn: the caller gets the error, and the pool still works.
TEST(PoolOnFakeDevices, SurvivesADriverThatFails) {
  constexpr std::size_t block = std::size_t{10} << 20;
  std::size_t failures = 0;
  for (std::size_t call = 1; call <= 40; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    auto made = std::make_unique<RecordingDriver>(capacity);
    RecordingDriver* driver = made.get();
    CachingAllocator pool(std::make_unique<CudaMemory>(0, std::move(made)), {.budget = 4 * block});
    const Stream stream{pool.device(), 0};
    driver->fail_call(call, RecordingDriver::Failure::error);
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) {
      try {
        blocks.push_back(pool.allocate(block, 64, stream));
      } catch (const CudaError&) {
        ++failures;
      } catch (const OutOfMemoryError&) {
        while (!blocks.empty()) {
          pool.deallocate(blocks.back(), block, 64, stream);
          blocks.pop_back();
        }
        pool.trim();
      }
    }
    driver->fail_call(0, RecordingDriver::Failure::error);
    for (void* pointer : blocks) pool.deallocate(pointer, block, 64, stream);
    void* large = pool.allocate(4 * block, 64, stream);
    pool.deallocate(large, 4 * block, 64, stream);
    pool.trim();
    EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  }
  EXPECT_GT(failures, 5u);
}

}  // namespace
}  // namespace poolgrad::testing
