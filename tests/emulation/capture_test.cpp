// During a stream capture on the emulated device, code that would wait for queued work is refused.
#include "allocator/memory/stream_capture.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"

namespace poolgrad {
namespace {

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

std::string refused(const std::string& call) {
  return "[" + call + "] a step is being recorded, so no queued work can be waited for";
}

/// A stream that can be captured, with the pool of its captures.
struct Recorder {
  std::unique_ptr<CudaDriver> driver = make_cuda_driver(0);
  Stream stream{{DeviceType::cuda, 0}, driver->stream_create()};
  CachingAllocator pool{std::make_unique<RecordedMemory>(0), AllocatorConfig{}};
};

TEST(StreamCapture, ForbidsEventQueriesAndWaitsInItsThread) {
  Recorder recorder;
  CudaMemory memory(0);
  const EventId before = memory.record_event(recorder.stream), other = memory.record_event(recorder.stream);
  {
    const StreamCapture capture(recorder.stream, *recorder.driver, recorder.pool);
    EXPECT_EQ(refusal([&] { memory.event_finished(before); }), refused("event_finished"));
    EXPECT_EQ(refusal([&] { memory.synchronize(before); }), refused("synchronize"));
    bool finished = false;
    std::thread([&] {
      memory.synchronize(other);
      finished = memory.event_finished(other);
    }).join();
    EXPECT_TRUE(finished) << "other threads may, of work that is not recorded";
  }
  memory.synchronize(before);
  EXPECT_TRUE(memory.event_finished(before));
}

TEST(StreamCapture, LetsOnlyItsOwnPoolRecordEventsOnItsStream) {
  Recorder recorder;
  CudaMemory memory(0);
  const Stream beside{recorder.stream.device, 77};
  {
    StreamCapture capture(recorder.stream, *recorder.driver, recorder.pool);
    EXPECT_EQ(refusal([&] { memory.record_event(recorder.stream); }), refused("record_event"));
    std::string said;
    std::thread([&] { said = refusal([&] { memory.record_event(recorder.stream); }); }).join();
    EXPECT_EQ(said, refused("record_event"));
    EXPECT_EQ(refusal([&] { memory.discard_event(memory.record_event(beside)); }), "no error");
    EXPECT_EQ(
        refusal([&] { recorder.pool.memory().discard_event(recorder.pool.memory().record_event(recorder.stream)); }),
        "no error");
    recorder.driver->graph_destroy(capture.finish());
  }
  EXPECT_EQ(refusal([&] { memory.synchronize(memory.record_event(recorder.stream)); }), "no error");
}

}  // namespace
}  // namespace poolgrad
