// The functions that PyTorch calls, on two emulated devices, and their effects on the pools.
#include "allocator/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "tests/allocator/torch/c10_stand_in.h"
#include "tests/emulation/device.h"

namespace poolgrad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr ssize_t MiB = 1 << 20;
constexpr std::size_t capacity = 64 * MiB;  // of each device

[[maybe_unused]] const bool two_devices = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  setenv("POOLGRAD_EMULATED_MEMORY", std::to_string(capacity).c_str(), 1);
  return true;
}();

CachingAllocator& pool_of(int device) { return allocator_for({DeviceType::cuda, static_cast<std::uint8_t>(device)}); }
std::uint64_t reserved(int device) { return pool_of(device).statistics().reserved_bytes.current; }
void* stream(std::uintptr_t id) { return reinterpret_cast<void*>(id); }

/// Each test begins with empty pools without a limit.
class TorchInterface : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int device : {0, 1}) {
      poolgrad_torch_memory_fraction(1, device);
      pool_of(device).trim();
      ASSERT_EQ(reserved(device), 0u);
    }
  }
};

TEST_F(TorchInterface, ReusesNoBlockBeforeItsRecordedStreamsAreDone) {
  for (const bool recorded : {false, true}) {
    SCOPED_TRACE(recorded ? "recorded" : "not recorded");
    emulation::Device& device = emulation::device(0);
    void* block = poolgrad_torch_malloc(4 * MiB, 0, stream(1));
    const auto busy = device.hold(2);
    std::string done;
    device.enqueue("read", 2, [&] { done += "read "; });
    if (recorded) poolgrad_torch_record_stream(block, stream(2));
    poolgrad_free(block, 4 * MiB, 0, stream(1));
    void* next = poolgrad_torch_malloc(4 * MiB, 0, stream(1));
    EXPECT_EQ(next, block) << "at once, for what is queued from now on";
    device.enqueue("write", 1, [&] { done += "write "; });
    if (recorded) {
      EXPECT_THROW(device.synchronize(1), CudaError) << "it waits for stream 2, which is held";
      EXPECT_EQ(done, "");
    } else {
      device.synchronize(1);
      EXPECT_EQ(done, "write ");
    }
    device.let_go(*busy);
    for (const std::uint64_t id : {1u, 2u}) device.synchronize(id);
    EXPECT_EQ(done, recorded ? "read write " : "write read ");
    poolgrad_free(next, 4 * MiB, 0, stream(1));
    poolgrad_torch_empty_cache();
  }
}

TEST_F(TorchInterface, EmptiesTheCachesOfAllDevices) {
  for (const int device : {0, 1}) {
    poolgrad_free(poolgrad_torch_malloc(6 * MiB, device, nullptr), 6 * MiB, device, nullptr);
    EXPECT_GE(reserved(device), 6u * MiB);
  }
  void* live = poolgrad_torch_malloc(2 * MiB, 1, nullptr);
  poolgrad_torch_empty_cache();
  EXPECT_EQ(reserved(0), 0u);
  EXPECT_EQ(reserved(1), 2u * MiB) << "what is live stays";
  poolgrad_free(live, 2 * MiB, 1, nullptr);
  poolgrad_torch_empty_cache();
  EXPECT_EQ(reserved(1), 0u);
}

TEST_F(TorchInterface, SetsTheBudgetToAFractionOfTheMemory) {
  poolgrad_torch_memory_fraction(0.5, 0);
  EXPECT_EQ(pool_of(0).budget(), capacity / 2);
  EXPECT_EQ(pool_of(1).budget(), capacity) << "of the device that was named";
  void* block = poolgrad_torch_malloc(capacity / 2, 0, nullptr);
  EXPECT_THROW(poolgrad_torch_malloc(2 * MiB, 0, nullptr), c10::OutOfMemoryError);
  EXPECT_THROW(poolgrad_torch_memory_fraction(0.25, 0), std::runtime_error) << "it holds more";
  poolgrad_torch_memory_fraction(1, 0);
  void* other = poolgrad_torch_malloc(capacity / 2, 0, nullptr);
  poolgrad_free(block, capacity / 2, 0, nullptr);
  poolgrad_free(other, capacity / 2, 0, nullptr);
  poolgrad_torch_empty_cache();
  poolgrad_torch_memory_fraction(0, 0);
  EXPECT_THROW(poolgrad_torch_malloc(1, 0, nullptr), c10::OutOfMemoryError) << "nothing is not no limit";
  for (const double none : {-0.1, 1.1, std::nan("")})
    EXPECT_THROW(poolgrad_torch_memory_fraction(none, 0), std::runtime_error) << none;
}

TEST_F(TorchInterface, ThrowsTorchsErrorWhenMemoryRunsOut) {
  ASSERT_THROW(c10::throw_out_of_memory(), c10::OutOfMemoryError);
  ASSERT_EQ(c10::OutOfMemoryError::alive(), 0);
  try {
    poolgrad_torch_malloc(2 * capacity, 0, nullptr);
    FAIL() << "there is not so much";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_EQ(c10::OutOfMemoryError::alive(), 1);
    EXPECT_EQ(typeid(error), typeid(c10::OutOfMemoryError)) << "not its base, with whose constructor it was made";
    EXPECT_THAT(error.what(), StartsWith("[allocate] out of memory on cuda:0: 128.00 MiB"));
    EXPECT_EQ(std::string(error.what()), poolgrad_last_error());
    EXPECT_STREQ(error.function(), "poolgrad_torch_malloc");
  }
  EXPECT_EQ(c10::OutOfMemoryError::alive(), 0) << "destroyed by its own destructor";
  try {
    poolgrad_torch_malloc(-1, 0, nullptr);
    FAIL() << "there is no such size";
  } catch (const std::runtime_error& error) {  // another kind of error
    EXPECT_THAT(error.what(), HasSubstr("negative size: -1"));
  }
}

TEST_F(TorchInterface, KeepsTheMemoryOfAGraphInItsPrivatePool) {
  const poolgrad_pool_id graph{0, 7}, other{1, 7};
  constexpr ssize_t size = 5000;
  std::function<bool(void*)> filter = [captured = stream(1)](void* asked) { return asked == captured; };
  poolgrad_torch_begin_pool(0, graph, &filter);
  filter = nullptr;  // the pool has a copy
  const auto allocate = [&](std::uintptr_t id) { return poolgrad_torch_malloc(size, 0, stream(id)); };
  const auto release = [&](void* block, std::uintptr_t id) { poolgrad_free(block, size, 0, stream(id)); };
  void* mine = allocate(1);
  release(mine, 1);
  const auto live = [] { return pool_of(0).statistics().allocation.current; };
  void* outside = allocate(2);
  EXPECT_NE(outside, mine) << "the filter does not accept stream 2";
  release(outside, 2);
  EXPECT_EQ(live(), 1u) << "of which the graph keeps nothing";
  outside = allocate(2);
  EXPECT_EQ(allocate(1), mine) << "within the graph it may be used again";
  release(mine, 1);
  poolgrad_torch_end_pool(0, graph);
  void* later = allocate(1);
  EXPECT_NE(later, mine) << "what comes after the capture is not the graph's";
  poolgrad_torch_release_pool(0, other);
  EXPECT_EQ(live(), 3u) << "the graph keeps its block";
  poolgrad_torch_release_pool(0, graph);
  EXPECT_EQ(live(), 2u) << "and gives it back with its pool";
  release(outside, 2);
  release(later, 1);
  EXPECT_THROW(poolgrad_torch_begin_pool(9, graph, &filter), std::runtime_error);
}

/// Makes a private pool for allocations on any stream.
void begin_pool(poolgrad_pool_id id) {
  std::function<bool(void*)> all;
  poolgrad_torch_begin_pool(0, id, &all);
}

TEST_F(TorchInterface, ReusesNoBlockOfAPrivatePoolBeforeOtherStreamsAreDone) {
  for (const bool recorded : {true, false}) {
    SCOPED_TRACE(recorded ? "recorded" : "given back on the other stream");
    const poolgrad_pool_id pool{0, 1};
    begin_pool(pool);
    emulation::Device& device = emulation::device(0);
    void* block = poolgrad_torch_malloc(4 * MiB, 0, stream(1));
    const auto busy = device.hold(2);
    std::string done;
    device.enqueue("read", 2, [&] { done += "read "; });
    if (recorded) poolgrad_torch_record_stream(block, stream(2));
    poolgrad_free(block, 4 * MiB, 0, stream(recorded ? 1 : 2));
    void* next = poolgrad_torch_malloc(4 * MiB, 0, stream(1));
    EXPECT_EQ(next, block) << "at once, for what is queued from now on";
    device.enqueue("write", 1, [&] { done += "write "; });
    EXPECT_THROW(device.synchronize(1), CudaError) << "it waits for stream 2, which is held";
    device.let_go(*busy);
    for (const std::uint64_t id : {1u, 2u}) device.synchronize(id);
    EXPECT_EQ(done, "read write ");
    poolgrad_free(next, 4 * MiB, 0, stream(1));
    poolgrad_torch_end_pool(0, pool);
    poolgrad_torch_release_pool(0, pool);
  }
}

/// A capture by another owner than the pools' of work on stream 1, and on stream 2, which waits for it.
class ForeignRecording {
 public:
  ForeignRecording() {
    driver_->begin_capture(1);
    join(2, 1);
  }
  /// Throws if a rule was broken.
  void finish() {
    join(1, 2);
    driver_->graph_destroy(driver_->end_capture(1));
  }

 private:
  void join(std::uint64_t later, std::uint64_t earlier) {
    const std::uint64_t event = driver_->event_create();
    driver_->event_record(event, earlier);
    driver_->stream_wait(later, event);
  }

  const std::unique_ptr<CudaDriver> driver_ = emulation::device(0).driver();
};

TEST_F(TorchInterface, NeverWaitsWhileAGraphIsRecorded) {
  const poolgrad_pool_id graph{0, 2};
  const auto allocate = [](std::uintptr_t id) { return poolgrad_torch_malloc(4 * MiB, 0, stream(id)); };
  const auto release = [](void* block, std::uintptr_t id) { poolgrad_free(block, 4 * MiB, 0, stream(id)); };
  void* elsewhere = allocate(3);
  release(elsewhere, 3);
  begin_pool(graph);
  ForeignRecording recording;
  void* shared = allocate(1);
  EXPECT_NE(shared, elsewhere) << "the work of stream 3 is not recorded";
  poolgrad_torch_record_stream(shared, stream(2));
  release(shared, 1);
  void* own = allocate(1);
  EXPECT_NE(own, shared) << "what stream 2 uses is not reused";
  release(own, 1);
  EXPECT_EQ(allocate(1), own);
  EXPECT_EQ(poolgrad_order(POOLGRAD_CUDA, 0, stream(1), stream(3)), -1);
  EXPECT_NO_THROW(recording.finish());
  EXPECT_EQ(allocate(1), shared) << "afterwards it is, behind the work of stream 2";
  for (void* block : {own, shared}) release(block, 1);
  poolgrad_torch_end_pool(0, graph);
  poolgrad_torch_release_pool(0, graph);
}

TEST_F(TorchInterface, KeepsAPoolAsLongAsItsGraphs) {
  const poolgrad_pool_id graphs{0, 3};
  void* block = nullptr;
  for (int graph = 0; graph < 2; ++graph) {
    begin_pool(graphs);
    block = poolgrad_torch_malloc(4 * MiB, 0, stream(1));
    poolgrad_free(block, 4 * MiB, 0, stream(1));
    poolgrad_torch_end_pool(0, graphs);
  }
  poolgrad_torch_release_pool(0, graphs);
  void* other = poolgrad_torch_malloc(4 * MiB, 0, stream(1));
  EXPECT_NE(other, block) << "the second graph still writes there";
  poolgrad_torch_release_pool(0, graphs);
  EXPECT_EQ(poolgrad_torch_malloc(4 * MiB, 0, stream(1)), block);
  for (void* mine : {block, other}) poolgrad_free(mine, 4 * MiB, 0, stream(1));
}

}  // namespace
}  // namespace poolgrad::testing
