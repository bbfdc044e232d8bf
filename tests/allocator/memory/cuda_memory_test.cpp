// CudaMemory on a driver that records calls: which calls it makes, in which order, and which it undoes after a failure.
#include "allocator/memory/cuda_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <semaphore>
#include <thread>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "tests/allocator/memory/pages.h"
#include "tests/allocator/memory/recording_driver.h"

namespace poolgrad::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Failure = RecordingDriver::Failure;

TEST(CudaArchitectures, CodeRunsWithinItsMajorVersionAndPtxOnNewerOnes) {
  const auto runs = [](std::string_view architectures) {
    std::string on;
    for (const auto& [major, minor] : {std::pair(7, 5), {8, 0}, {8, 6}, {9, 0}, {10, 0}, {10, 3}})
      if (is_compiled_for(architectures, major, minor)) on += std::to_string(10 * major + minor) + " ";
    return on;
  };
  EXPECT_EQ(runs("90a-real 80-virtual"), "80 86 90 100 103 ");
  EXPECT_EQ(runs("90a-real"), "90 ");
  EXPECT_EQ(runs("90a"), "90 ") << "PTX for features of 9.0 alone";
  EXPECT_EQ(runs("80-real"), "80 86 ");
  EXPECT_EQ(runs("80-real, 100f"), "80 86 100 103 ");
  EXPECT_EQ(runs("86"), "86 90 100 103 ");
  EXPECT_EQ(runs("75-real;90-virtual"), "75 90 100 103 ");
  EXPECT_EQ(runs("all-major"), "75 80 86 90 100 103 ");
  EXPECT_EQ(runs(""), "");
}

class CudaMemoryTest : public ::testing::Test {
 protected:
  CudaMemoryTest() {
    auto driver = std::make_unique<RecordingDriver>(capacity);
    driver_ = driver.get();
    memory_ = std::make_unique<CudaMemory>(0, std::move(driver));
    range_ = static_cast<unsigned char*>(memory_->reserve(16 * page));
    driver_->forget_calls();
  }
  ~CudaMemoryTest() override { memory_->unreserve(range_, 16 * page); }

  std::vector<std::string> calls_of(const std::function<void()>& function) {
    driver_->forget_calls();
    function();
    return driver_->calls();
  }

  RecordingDriver* driver_;
  std::unique_ptr<CudaMemory> memory_;
  unsigned char* range_;
};

TEST_F(CudaMemoryTest, CommitsOneHandle) {
  EXPECT_THAT(calls_of([&] { EXPECT_TRUE(memory_->commit(range_, 3 * page)); }),
              ElementsAre("create", "map", "set_access"));
  EXPECT_THAT(calls_of([&] { memory_->decommit(range_, 3 * page); }), ElementsAre("unmap", "release"));
}

TEST_F(CudaMemoryTest, MapsTheNewAddressesBeforeItUnmapsTheOldOnes) {
  ASSERT_TRUE(memory_->commit(range_, page));
  ASSERT_TRUE(memory_->commit(range_ + page, 2 * page));
  EXPECT_THAT(calls_of([&] { EXPECT_TRUE(memory_->move(range_, range_ + 8 * page, 3 * page)); }),
              ElementsAre("map", "map", "set_access", "unmap", "unmap"));
  memory_->decommit(range_ + 8 * page, 3 * page);
}

// After every kind of failure of every call, no state has changed, no object leaks, and the next call works.
TEST_F(CudaMemoryTest, UndoesACommitThatFails) {
  const std::int64_t objects = driver_->objects();
  for (const Failure failure : {Failure::out_of_memory, Failure::error}) {
    for (std::size_t call = 1; call <= 3; ++call) {
      driver_->fail_call(call, failure);
      if (failure == Failure::error) {
        EXPECT_THROW(memory_->commit(range_, page), CudaError) << call;
      } else {
        EXPECT_FALSE(memory_->commit(range_, page)) << call;
      }
      EXPECT_EQ(driver_->objects(), objects) << call;
      EXPECT_EQ(memory_->info().free, capacity) << call;
    }
  }
  EXPECT_TRUE(memory_->commit(range_, page));
  memory_->decommit(range_, page);
}

TEST_F(CudaMemoryTest, UndoesAMoveThatFails) {
  ASSERT_TRUE(memory_->commit(range_, page));
  ASSERT_TRUE(memory_->commit(range_ + page, page));
  memory_->fill(range_, 1, 1, {});
  memory_->fill(range_ + page, 1, 2, {});
  const std::int64_t objects = driver_->objects();
  for (const Failure failure : {Failure::out_of_memory, Failure::error}) {
    for (std::size_t call = 1; call <= 3; ++call) {
      driver_->fail_call(call, failure);
      if (failure == Failure::error) {
        EXPECT_THROW(memory_->move(range_, range_ + 4 * page, 2 * page), CudaError) << call;
      } else {
        EXPECT_FALSE(memory_->move(range_, range_ + 4 * page, 2 * page)) << call;
      }
      EXPECT_EQ(driver_->objects(), objects) << call;
      EXPECT_EQ(driver_->read(range_), 1);
      EXPECT_EQ(driver_->read(range_ + page), 2);
    }
  }
  EXPECT_TRUE(memory_->move(range_, range_ + 4 * page, 2 * page));
  EXPECT_EQ(driver_->read(range_ + 5 * page), 2);
  memory_->decommit(range_ + 4 * page, 2 * page);
}

TEST_F(CudaMemoryTest, ReleasesAHandleEvenIfItCannotBeUnmapped) {
  for (const Failure failure : {Failure::error, Failure::no_text}) {
    unsigned char* const place = range_ + (failure == Failure::error ? 0 : page);
    ASSERT_TRUE(memory_->commit(place, page));
    driver_->fail_call(1, failure);
    EXPECT_THAT(calls_of([&] { memory_->decommit(place, page); }), ElementsAre("unmap", "release"));
  }
}

TEST_F(CudaMemoryTest, ReusesEvents) {
  const Stream stream{memory_->device(), 7};
  for (int round = 0; round < 5; ++round) {
    const EventId first = memory_->record_event(stream);
    const EventId second = memory_->record_event(stream);
    memory_->stream_wait(stream, first);
    memory_->discard_event(first);
    EXPECT_TRUE(memory_->event_finished(second));
    EXPECT_TRUE(memory_->event_finished(second)) << "spent";
  }
  EXPECT_EQ(driver_->events(), 2);
}

TEST_F(CudaMemoryTest, LosesNoEventWhenRecordingFails) {
  const Stream stream{memory_->device(), 0};
  for (std::size_t call = 1; call <= 2; ++call) {
    driver_->fail_call(call, Failure::error);
    EXPECT_THROW(memory_->record_event(stream), CudaError);
    EXPECT_EQ(driver_->events(), 0);
  }
  const EventId event = memory_->record_event(stream);
  driver_->fail_call(1, Failure::error);
  EXPECT_THROW(memory_->synchronize(event), CudaError);
  memory_->synchronize(event);
  EXPECT_TRUE(memory_->event_finished(event));
}

TEST_F(CudaMemoryTest, RefusesToCommitTwice) {
  ASSERT_TRUE(memory_->commit(range_, 2 * page));
  EXPECT_THAT(calls_of([&] { EXPECT_THROW(memory_->commit(range_ + page, page), DeviceError); }), ElementsAre());
  memory_->decommit(range_, 2 * page);
}

TEST(CudaMemory, DestroysItsEvents) {
  // The driver is destroyed with the memory; its record remains.
  struct Recording : RecordingDriver {
    explicit Recording(std::vector<std::string>& log) : RecordingDriver(capacity), log_(log) {}
    ~Recording() override { log_ = calls(); }
    std::vector<std::string>& log_;
  };
  std::vector<std::string> log;
  {
    CudaMemory memory(1, std::make_unique<Recording>(log));
    memory.record_event(Stream{memory.device(), 0});
    memory.discard_event(memory.record_event(Stream{memory.device(), 0}));
  }
  EXPECT_THAT(log, ElementsAre("event_create", "event_record", "event_create", "event_record", "event_destroy",
                               "event_destroy"));
}

// cudaStreamPerThread is one handle for many streams, and each thread can name only its own.
class PerThreadStream : public ::testing::Test {
 protected:
  PerThreadStream() {
    auto driver = std::make_unique<RecordingDriver>(capacity);
    driver_ = driver.get();
    driver_->delay_events();
    pool_ = std::make_unique<CachingAllocator>(std::make_unique<CudaMemory>(0, std::move(driver)),
                                               AllocatorConfig{.budget = 2 * page});
  }

  // Allocates all of the pool's memory.
  void* allocate() { return pool_->allocate(2 * page, 64, own_); }
  void give_back(void* block) { pool_->deallocate(block, 2 * page, 64, own_); }
  std::vector<std::string> calls_of(const std::function<void()>& function) {
    driver_->forget_calls();
    function();
    return driver_->stream_calls();
  }

  const Stream own_{Device{DeviceType::cuda, 0}, per_thread_stream};
  RecordingDriver* driver_;
  std::unique_ptr<CachingAllocator> pool_;
};

// Runs functions in a thread of its own.
class Worker {
 public:
  ~Worker() { end(); }
  void operator()(const std::function<void()>& task) {
    task_ = &task;
    started_.release();
    done_.acquire();
  }
  void end() {
    if (!thread_.joinable()) return;
    task_ = nullptr;
    started_.release();
    thread_.join();
  }

 private:
  void run() {
    for (started_.acquire(); task_ != nullptr; started_.acquire()) {
      (*task_)();
      done_.release();
    }
  }

  const std::function<void()>* task_ = nullptr;
  std::binary_semaphore started_{0}, done_{0};
  std::thread thread_{[this] { run(); }};
};

TEST_F(PerThreadStream, NeedsNoEventWithinItsThread) {
  EXPECT_THAT(calls_of([&] {
                void* block = allocate();
                give_back(block);
                EXPECT_EQ(allocate(), block);
                give_back(block);
              }),
              ElementsAre());
}

// The legacy default stream synchronizes with all of them, so its event covers the other thread's work.
TEST_F(PerThreadStream, WaitsForTheStreamOfTheThreadThatFreedABlock) {
  void* block = nullptr;
  Worker first, second;
  first([&] { give_back(block = allocate()); });
  EXPECT_THAT(calls_of([&] { second([&] { EXPECT_EQ(allocate(), block); }); }),
              ElementsAre("event_record 0", "stream_wait 2"));
  second([&] { give_back(block); });
}

TEST_F(PerThreadStream, HoldsABlockUntilOtherThreadsAreDone) {
  void* block = nullptr;
  Worker first, second;
  first([&] { block = allocate(); });
  second([&] { give_back(block); });
  EXPECT_THAT(calls_of([&] { first([&] { EXPECT_EQ(allocate(), block); }); }),
              ElementsAre("event_record 0", "stream_wait 2"));
  first([&] { give_back(block); });
}

TEST_F(PerThreadStream, OutlivesItsThreadUntilItsWorkIsDone) {
  void* block = nullptr;
  EXPECT_THAT(calls_of([&] {
                Worker first;
                first([&] { give_back(block = allocate()); });
              }),
              ElementsAre("event_record 0"));
  for (int thread = 0; thread < 3; ++thread) {
    Worker next;
    EXPECT_THAT(calls_of([&] { next([&] { EXPECT_EQ(allocate(), block); }); }), ElementsAre("stream_wait 2")) << thread;
    next([&] { give_back(block); });
  }
}

TEST_F(PerThreadStream, IsOrderedByItsHandle) {
  const Stream other{own_.device, 7};
  EXPECT_THAT(calls_of([&] { pool_->order(own_, other); }), ElementsAre("event_record 7", "stream_wait 2"));
  EXPECT_THAT(calls_of([&] { pool_->order(other, own_); }), ElementsAre("event_record 2", "stream_wait 7"));
}

TEST(CudaMemory, NeedsVirtualMemoryManagement) {
  try {
    CudaMemory memory(3, std::make_unique<RecordingDriver>(capacity, 0));
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:3 has no virtual memory management"));
  }
}

TEST(CudaMemory, RefusesAnImpossibleIndex) {
  EXPECT_THROW(CudaMemory(-1, std::make_unique<RecordingDriver>(capacity)), DeviceError);
  EXPECT_THROW(CudaMemory(256, std::make_unique<RecordingDriver>(capacity)), DeviceError);
}

TEST(CudaMemory, SaysWhyADeviceCannotBeUsed) {
  // No machine has this index: the reason is a missing device, driver or CUDA build.
  try {
    make_cuda_driver(255);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("[allocator] cuda:255 cannot be used: "), HasSubstr("use cpu or sim:N")));
    if (const std::string reason = cuda_unavailable_reason(); !reason.empty()) {
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  }
}

// Pinned host memory.

TEST(PinnedMemoryTest, IsRegisteredAsItIsCommitted) {
  auto made = std::make_unique<RecordingDriver>(capacity);
  RecordingDriver& driver = *made;
  PinnedMemory memory(0, std::move(made), capacity);
  auto* const range = static_cast<unsigned char*>(memory.reserve(16 * page));
  for (const Failure failure : {Failure::out_of_memory, Failure::error}) {
    driver.fail_call(1, failure);
    if (failure == Failure::error)
      EXPECT_THROW(memory.commit(range, page), CudaError);
    else
      EXPECT_FALSE(memory.commit(range, page));
    EXPECT_EQ(driver.objects(), 0);
    EXPECT_EQ(memory.info().free, capacity);
  }
  driver.forget_calls();
  ASSERT_TRUE(memory.commit(range, 3 * page));
  ASSERT_TRUE(memory.commit(range + 3 * page, page));
  range[4 * page - 1] = 5;
  memory.decommit(range, 4 * page);
  EXPECT_THAT(driver.calls(), ElementsAre("host_register", "host_register", "host_unregister", "host_unregister"));
  EXPECT_EQ(memory.info().free, capacity);
  memory.unreserve(range, 16 * page);
}

TEST(PinnedMemoryTest, TreatsTheHostAsAFinishedStream) {
  auto made = std::make_unique<RecordingDriver>(capacity);
  RecordingDriver& driver = *made;
  driver.delay_events();
  PinnedMemory memory(0, std::move(made), capacity);
  const Stream host{memory.device(), PinnedMemory::host_stream}, copies{memory.device(), 7};
  EXPECT_TRUE(memory.event_finished(memory.record_event(host)));
  memory.stream_wait(copies, memory.record_event(host));
  EXPECT_THAT(driver.calls(), ElementsAre()) << "nothing of which a device has to hear";
  const EventId event = memory.record_event(copies);
  EXPECT_FALSE(memory.event_finished(event));
  driver.forget_calls();
  memory.stream_wait(host, event);
  EXPECT_THAT(driver.calls(), ElementsAre("event_synchronize"));
  memory.discard_event(event);
}

}  // namespace
}  // namespace poolgrad::testing
