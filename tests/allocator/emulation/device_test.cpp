// The emulated device under what stands on it: CudaMemory's contract, and pools whose blocks hold real bytes.
#include "allocator/emulation/device.h"

#include <gtest/gtest.h>

#include <thread>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/stream.h"
#include "tests/allocator/gpu/pool_fuzz_on_device.h"
#include "tests/allocator/gpu/pool_on_device.h"
#include "tests/allocator/memory/device_memory_contract.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

struct OwnDevice {
  std::unique_ptr<emulation::Device> own;
};
/// CudaMemory on a device of its own.
struct EmulatedMemory : OwnDevice, CudaMemory {
  explicit EmulatedMemory(std::size_t capacity, std::uint64_t seed = test_seed())
      : OwnDevice{std::make_unique<emulation::Device>(0, capacity, seed)}, CudaMemory(0, own->driver()) {
    last = own.get();
  }
  /// The byte at an address of the device that was made last, once the work of streams 0 to 3 is done.
  static unsigned char read(const unsigned char* address) {
    unsigned char byte = 0;
    for (const std::uint64_t stream : {3u, 2u, 1u, 0u}) last->synchronize(stream);
    last->enqueue("read", 0, [&] { byte = *address; });
    last->synchronize(0);
    return byte;
  }
  static inline emulation::Device* last = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceMemoryContract,
                         ::testing::Values(MemoryKind{
                             "Device", [](auto...) { return std::make_unique<EmulatedMemory>(MemoryKind::capacity); },
                             EmulatedMemory::read}),
                         memory_kind_name);

TEST(PoolOnTheEmulatedDevice, KeepsTheBytesOfItsBlocks) {
  PoolOnDevice(std::make_unique<EmulatedMemory>(std::size_t{1} << 30),
               {.streams = {0, 1, 2, 3}, .read = EmulatedMemory::read, .operations = 600})
      .run();
}

TEST(PoolOnTheEmulatedDevice, AgreesWithTheShadowOfTheFuzzer) {
  const auto make = [](std::size_t bytes) {
    return std::make_unique<MappedStreams>(std::make_unique<EmulatedMemory>(bytes),
                                           std::vector<std::uint64_t>{0, 101, 102, 103});
  };
  fuzz_pool_on(make, 3, 500);
}

/// A block that is written on stream 1, given back, and had again for stream 2, which writes it too. `order` is what
/// the pool does for it. Whether stream 1 was ever the last to write.
bool first_owner_can_write_last(bool order) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    EmulatedMemory memory(std::size_t{8} << 20, seed);
    void* const address = memory.reserve(emulation::Device::page);
    EXPECT_TRUE(memory.commit(address, emulation::Device::page));
    const Stream first{memory.device(), 1}, second{memory.device(), 2};
    memory.fill(address, 100, 1, first);
    if (order) {
      const EventId event = memory.record_event(first);
      memory.stream_wait(second, event);
      memory.discard_event(event);
    }
    memory.fill(address, 100, 2, second);
    const unsigned char last = EmulatedMemory::read(static_cast<unsigned char*>(address));
    memory.decommit(address, emulation::Device::page);
    memory.unreserve(address, emulation::Device::page);
    if (last == 1) return true;
  }
  return false;
}

TEST(StreamMutants, ReuseBeforeCompletionIsSeen) { EXPECT_TRUE(first_owner_can_write_last(false)); }

TEST(StreamMutants, ReuseThatAnEventOrdersIsRight) { EXPECT_FALSE(first_owner_can_write_last(true)); }

TEST(EmulatedDevice, NewMemoryIsPoisoned) {
  EmulatedMemory memory(std::size_t{8} << 20);
  auto* const address = static_cast<unsigned char*>(memory.reserve(emulation::Device::page));
  for (int repeat = 0; repeat < 2; ++repeat) {  // what was released is poisoned again
    ASSERT_TRUE(memory.commit(address, emulation::Device::page));
    EXPECT_EQ(EmulatedMemory::read(address + 12345), 0xff);
    memory.fill(address, emulation::Device::page, 0, {memory.device(), 0});
    EXPECT_EQ(EmulatedMemory::read(address + 12345), 0);
    memory.decommit(address, emulation::Device::page);
  }
  memory.unreserve(address, emulation::Device::page);
}

TEST(EmulatedDevice, KeepsTheFirstFailureForTheNextWhoAsks) {
  emulation::Device device(0, std::size_t{8} << 20, test_seed());
  device.enqueue("one", 0, [] { throw CudaError("[one] failed"); });
  device.enqueue("two", 0, [] { throw CudaError("[two] failed"); });
  EXPECT_NO_THROW(device.take_failure()) << "nothing has run yet";
  try {
    device.synchronize(0);
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_STREQ(error.what(), "[one] failed");
  }
  EXPECT_NO_THROW(device.synchronize(0));
}

TEST(EmulatedDevice, EachThreadHasAPerThreadStreamOfItsOwn) {
  emulation::Device device(0, std::size_t{8} << 20, test_seed());
  int here = 0, there = 0;
  device.enqueue("here", per_thread_stream, [&] { ++here; });
  std::thread([&] {
    device.enqueue("there", per_thread_stream, [&] { ++there; });
    device.synchronize(per_thread_stream);
  }).join();
  EXPECT_EQ(there, 1);
  device.synchronize(per_thread_stream);
  EXPECT_EQ(here, 1);
}

TEST(EmulatedDevice, RefusesADeviceThatDoesNotExist) {
  try {
    allocator_for({DeviceType::cuda, 200});
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "[allocator] cuda:200 cannot be used: there are 1 CUDA devices; use cpu or sim:N");
  }
}

}  // namespace
}  // namespace poolgrad::testing
