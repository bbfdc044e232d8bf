// The emulated device keeps CudaMemory's contract, and blocks of pools on it hold real bytes.
#include "tests/emulation/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/latency.h"
#include "allocator/memory/race_detector.h"
#include "allocator/stream.h"
#include "tests/allocator/gpu/pool_fuzz_on_device.h"
#include "tests/allocator/gpu/pool_on_device.h"
#include "tests/allocator/memory/device_memory_contract.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

struct OwnDevice {
  std::unique_ptr<emulation::Device> own;

  /// Returns the byte at an address of the newest device after the work of streams 0 to 3 is done.
  static unsigned char read(const unsigned char* address) {
    unsigned char byte = 0;
    for (const std::uint64_t stream : {3u, 2u, 1u, 0u}) last->synchronize(stream);
    last->enqueue("read", 0, [&] { byte = *address; });
    last->synchronize(0);
    return byte;
  }
  static inline emulation::Device* last = nullptr;
};
/// CudaMemory with its own emulated device.
struct EmulatedMemory : OwnDevice, CudaMemory {
  explicit EmulatedMemory(std::size_t capacity, std::uint64_t seed = test_seed())
      : OwnDevice{std::make_unique<emulation::Device>(0, capacity, seed)}, CudaMemory(0, own->driver()) {
    last = own.get();
  }
};
/// Pinned host memory of a device of its own.
struct EmulatedPinned : OwnDevice, poolgrad::PinnedMemory {
  explicit EmulatedPinned(std::size_t capacity, std::uint64_t seed = test_seed())
      : OwnDevice{std::make_unique<emulation::Device>(0, capacity, seed)},
        poolgrad::PinnedMemory(0, own->driver(), capacity) {
    last = own.get();
  }
};

std::unique_ptr<DeviceMemory> emulated() { return std::make_unique<EmulatedMemory>(MemoryKind::capacity); }
INSTANTIATE_TEST_SUITE_P(Emulated, DeviceMemoryContract,
                         ::testing::Values(MemoryKind{"Device", emulated, OwnDevice::read},
                                           MemoryKind{"RaceDetectorOverDevice",
                                                      [] { return std::make_unique<RaceDetector>(emulated()); },
                                                      OwnDevice::read}),
                         memory_kind_name);

TEST(PoolOnTheEmulatedDevice, KeepsTheBytesOfItsBlocks) {
  PoolOnDevice(std::make_unique<EmulatedMemory>(std::size_t{1} << 30),
               {.streams = {0, 1, 2, 3}, .read = OwnDevice::read, .operations = 600})
      .run();
}

TEST(PoolOnTheEmulatedDevice, KeepsTheBytesOfPinnedBlocks) {
  PoolOnDevice(std::make_unique<EmulatedPinned>(std::size_t{1} << 30),
               {.streams = {0, 1, 2, 3}, .read = OwnDevice::read, .operations = 600})
      .run();
}

TEST(PoolOnTheEmulatedDevice, AgreesWithTheShadowOfTheFuzzer) {
  const auto make = [](std::size_t bytes) {
    return std::make_unique<MappedStreams>(std::make_unique<EmulatedMemory>(bytes),
                                           std::vector<std::uint64_t>{0, 101, 102, 103});
  };
  fuzz_pool_on(make, 3, 500);
}

TEST(EmulatedDevice, RestoresTheCurrentDeviceWhenACallThrows) {
  emulation::Device outer(0, emulation::Device::page, 1), inner(1, emulation::Device::page, 1);
  const auto outer_driver = outer.driver(), inner_driver = inner.driver();
  const int before = emulation::current;
  outer_driver->with_current([&] {
    EXPECT_THROW(inner_driver->with_current([] { throw std::runtime_error("refused"); }), std::runtime_error);
    EXPECT_EQ(emulation::current, outer.index());
  });
  EXPECT_EQ(emulation::current, before);
}

/// A block passes from stream 1 to stream 2, and both write it. `order`: whether stream 2 waits for stream 1.
/// Returns whether stream 1 was ever the last to write.
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
    const unsigned char last = OwnDevice::read(static_cast<unsigned char*>(address));
    memory.decommit(address, emulation::Device::page);
    memory.unreserve(address, emulation::Device::page);
    if (last == 1) return true;
  }
  return false;
}

TEST(StreamMutants, ReuseBeforeCompletionIsFound) { EXPECT_TRUE(first_owner_can_write_last(false)); }

TEST(StreamMutants, ReuseAfterAnEventIsCorrect) { EXPECT_FALSE(first_owner_can_write_last(true)); }

TEST(EmulatedDevice, NewMemoryIsPoisoned) {
  EmulatedMemory memory(std::size_t{8} << 20);
  auto* const address = static_cast<unsigned char*>(memory.reserve(emulation::Device::page));
  for (int repeat = 0; repeat < 2; ++repeat) {  // released memory is poisoned again
    ASSERT_TRUE(memory.commit(address, emulation::Device::page));
    EXPECT_EQ(OwnDevice::read(address + 12345), 0xff);
    memory.fill(address, emulation::Device::page, 0, {memory.device(), 0});
    EXPECT_EQ(OwnDevice::read(address + 12345), 0);
    memory.decommit(address, emulation::Device::page);
  }
  memory.unreserve(address, emulation::Device::page);
}

TEST(EmulatedDevice, AllocatesThroughItsDriverAndCanBeCalibrated) {
  emulation::Device device(0, std::size_t{8} << 20, test_seed());
  const auto driver = device.driver();
  const std::uintptr_t address = driver->malloc(5'000'000);
  ASSERT_NE(address, 0u);
  EXPECT_EQ(driver->memory_info().free, std::size_t{2} << 20);
  EXPECT_EQ(driver->malloc(5'000'000), 0u) << "there is not so much left";
  device.enqueue("touch", 0, [=] { reinterpret_cast<char*>(address)[4'999'999] = 1; });
  EXPECT_NO_THROW(device.synchronize(0));
  driver->free(address);
  EXPECT_THROW(driver->free(address), CudaError);
  EXPECT_EQ(driver->memory_info().free, std::size_t{8} << 20);
  const LatencyTable table =
      calibrate(*driver, {.repetitions = 2, .small_bytes = std::size_t{2} << 20, .large_bytes = std::size_t{4} << 20});
  EXPECT_GT(table.malloc.of(1 << 20), 0);
  EXPECT_EQ(driver->memory_info().free, std::size_t{8} << 20);
}

TEST(EmulatedDevice, KeepsTheFirstFailureForTheNextQuery) {
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

TEST(EmulatedDevice, GivesEachThreadItsOwnPerThreadStream) {
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

TEST(EmulatedDevice, DefaultStreamEventsFollowAllPerThreadStreams) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emulation::Device device(0, std::size_t{8} << 20, seed);
    const std::unique_ptr<CudaDriver> driver = device.driver();
    const std::uint64_t event = driver->event_create();
    bool here = false, there = false;
    device.enqueue("here", per_thread_stream, [&] { here = true; });
    std::thread([&] { device.enqueue("there", per_thread_stream, [&] { there = true; }); }).join();
    driver->event_record(event, 0);
    driver->event_synchronize(event);
    EXPECT_TRUE(here && there) << seed;
  }
}

TEST(EmulatedDevice, ADestroyedStreamFinishesItsWorkAndTakesNoMore) {
  emulation::Device device(0, std::size_t{8} << 20, test_seed());
  const std::unique_ptr<CudaDriver> driver = device.driver();
  const std::uint64_t stream = driver->stream_create(), event = driver->event_create();
  bool done = false;
  device.enqueue("before", stream, [&] { done = true; });
  driver->event_record(event, stream);
  driver->stream_destroy(stream);
  const auto error_of = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const CudaError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string gone = "[stream] cudaErrorInvalidResourceHandle: the stream is destroyed";
  EXPECT_EQ(error_of([&] { device.enqueue("after", stream, [] {}); }), gone);
  EXPECT_EQ(error_of([&] { driver->event_record(event, stream); }), gone);
  EXPECT_EQ(error_of([&] { driver->stream_destroy(stream); }), "[cudaStreamDestroy] there is no such stream");
  driver->event_synchronize(event);
  EXPECT_TRUE(done);
}

// Several devices of one machine.

struct TwoDevices {
  explicit TwoDevices(std::uint64_t seed)
      : schedule(std::make_shared<emulation::Schedule>(seed)),
        first(0, std::size_t{8} << 20, schedule),
        second(1, std::size_t{8} << 20, schedule) {}
  std::shared_ptr<emulation::Schedule> schedule;
  emulation::Device first, second;
};

/// Returns in how many of 60 orders a device's work runs before work of the other device that was queued first.
int overtaken(bool ordered) {
  int count = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    TwoDevices two(seed);
    bool done = false, seen = false;
    two.first.enqueue("earlier", 1, [&] { done = true; });
    if (ordered) two.second.wait(1, two.first, 1);
    two.second.enqueue("later", 1, [&] { seen = done; });
    two.second.synchronize(1);
    count += seen ? 0 : 1;
  }
  return count;
}

TEST(EmulatedDevices, AnEventOrdersAStreamOfAnotherDevice) {
  EXPECT_GT(overtaken(false), 10);
  EXPECT_EQ(overtaken(true), 0);
}

TEST(EmulatedDevices, StreamsOfTwoDevicesWithOneIdAreTwoStreams) {
  TwoDevices two(test_seed());
  int first = 0, second = 0;
  for (const std::uint64_t stream : {std::uint64_t{0}, per_thread_stream}) {
    two.first.enqueue("first", stream, [&] { ++first; });
    two.second.enqueue("second", stream, [&] { ++second; });
    two.first.synchronize(stream);
    two.second.synchronize(stream);
  }
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 2);
}

TEST(EmulatedDevices, AnEventIsRecordedOnItsOwnDevice) {
  TwoDevices two(test_seed());
  const auto one = two.first.driver(), other = two.second.driver();
  const std::uint64_t event = one->event_create();
  EXPECT_THROW(other->event_record(event, 0), CudaError);
  one->event_record(event, 0);
  other->stream_wait(0, event);  // any device may wait for it
  other->event_synchronize(event);
  EXPECT_TRUE(other->event_query(event));
  one->event_destroy(event);
}

using EmulatedDevicesDeathTest = ::testing::Test;

TEST(EmulatedDevicesDeathTest, AKernelCannotUseMemoryOfAnotherDevice) {
  const auto use = [](const emulation::Device* (*also)(TwoDevices&)) {
    TwoDevices two(1);
    CudaMemory memory(1, two.second.driver());
    auto* const address = static_cast<unsigned char*>(memory.reserve(emulation::Device::page));
    EXPECT_TRUE(memory.commit(address, emulation::Device::page));
    two.second.enqueue("own", 0, [=] { *address = 1; });
    two.first.enqueue(
        "foreign", 0, [=] { *address += 1; }, also(two));
    two.second.synchronize(0);
    two.first.synchronize(0);
    memory.decommit(address, emulation::Device::page);
    memory.unreserve(address, emulation::Device::page);
  };
  EXPECT_DEATH(use([](TwoDevices&) -> const emulation::Device* { return nullptr; }),
               "\\[foreign\\] thread 0 of block 0 uses address 0x[0-9a-f]+ of cuda:1, where no memory is mapped");
  use([](TwoDevices& two) -> const emulation::Device* { return &two.second; });
}

// Memory of the host.

TEST(EmulatedCopies, AreAsynchronousForPinnedMemoryOnly) {
  EmulatedMemory memory(std::size_t{8} << 20);
  emulation::Device& device = *memory.own;
  auto* const there = static_cast<unsigned char*>(memory.reserve(emulation::Device::page));
  ASSERT_TRUE(memory.commit(there, emulation::Device::page));
  for (const bool pinned : {false, true}) {
    alignas(64) unsigned char here[64] = {7};
    const auto driver = device.driver();
    if (pinned) driver->host_register(reinterpret_cast<std::uintptr_t>(here), sizeof(here));
    device.copy(0, there, here, 64);
    here[0] = 8;  // too early, if the copy is late
    device.synchronize(0);
    EXPECT_EQ(OwnDevice::read(there), pinned ? 8 : 7);
    memory.fill(there, 64, 9, {memory.device(), 0});
    device.copy(0, here, there, 64);
    EXPECT_EQ(here[0], pinned ? 8 : 9);
    device.synchronize(0);
    EXPECT_EQ(here[0], 9);
    if (!pinned) continue;
    unsigned char more[128] = {};
    std::memcpy(more, here, 64);
    EXPECT_THROW(device.copy(0, there, here + 1, 64), CudaError) << "beyond what was registered";
    driver->host_unregister(reinterpret_cast<std::uintptr_t>(here));
  }
  memory.decommit(there, emulation::Device::page);
  memory.unreserve(there, emulation::Device::page);
}

/// The host writes a pinned block that fills the pool, lets a device copy it, frees it, and reuses it for a new value.
/// `told`: whether the pool knows of the copy. Returns whether the copy read the new value in any of 40 orders.
bool host_overtakes_copy(bool told) {
  bool wrong = false;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto made = std::make_unique<EmulatedPinned>(std::size_t{8} << 20, seed);
    emulation::Device& device = *made->own;
    const std::size_t all = made->granularity();
    CachingAllocator pool(std::move(made), {.budget = all});
    const Stream host{pool.device(), poolgrad::PinnedMemory::host_stream}, copies{pool.device(), 1};
    unsigned char found = 0;
    for (const unsigned char value : {1, 2}) {
      auto* const block = static_cast<unsigned char*>(pool.allocate(all, 64, host));
      *block = value;
      if (value == 1) device.enqueue("copy", copies.id, [&found, block] { found = *block; });
      if (value == 1 && told) pool.use(block, copies);
      pool.deallocate(block, all, 64, host);
    }
    device.synchronize(copies.id);
    wrong |= found != 1;
  }
  return wrong;
}

TEST(StreamMutants, APinnedBlockWithAnUnrecordedCopyIsReusedTooEarly) { EXPECT_TRUE(host_overtakes_copy(false)); }

TEST(StreamMutants, APinnedBlockWaitsForItsRecordedCopy) { EXPECT_FALSE(host_overtakes_copy(true)); }

TEST(EmulatedDevice, RefusesADeviceThatDoesNotExist) {
  try {
    allocator_for({DeviceType::cuda, 200});
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "[allocator] cuda:200 cannot be used: the only CUDA device is cuda:0; use cpu or sim:N");
  }
}

}  // namespace
}  // namespace poolgrad::testing
