// Work on the streams of the emulated device runs late and in every order that events allow.
#include "tests/emulation/streams.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "allocator/error.h"
#include "tests/test_seed.h"

namespace poolgrad::emulation {
namespace {

TEST(EmulatedStreams, RunWorkOnlyWhenACallWaits) {
  Streams streams(1);
  int done = 0;
  for (int i = 0; i < 100; ++i) streams.enqueue(7, [&] { ++done; });
  EXPECT_EQ(done, 0);
  streams.synchronize_stream(7);
  EXPECT_EQ(done, 100);
  EXPECT_EQ(streams.queued(), 0u);
}

TEST(EmulatedStreams, KeepOrderWithinAStreamAndNoneBetweenStreams) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Streams streams(seed);
    std::string order;
    for (const char name : {'a', 'b'}) streams.enqueue(1, [&order, name] { order += name; });
    for (const char name : {'x', 'y'}) streams.enqueue(2, [&order, name] { order += name; });
    streams.synchronize_all();
    orders.insert(order);
  }
  EXPECT_EQ(orders, (std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb", "xyab"}));
}

TEST(EmulatedStreams, AWaitForOneStreamLeavesTheOtherAnywhere) {
  std::set<int> found;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Streams streams(seed);
    int other = 0;
    for (int i = 0; i < 3; ++i) streams.enqueue(1, [&] { ++other; });
    streams.enqueue(2, [] {});
    streams.synchronize_stream(2);
    found.insert(other);
  }
  EXPECT_EQ(found, (std::set<int>{0, 1, 2, 3}));
}

TEST(EmulatedStreams, AHeldStreamContinuesAfterItsRelease) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Streams streams(test_seed() + seed);
    std::string order;
    const std::shared_ptr<bool> held = streams.hold(1);
    const std::uint64_t end = streams.create_event();
    streams.enqueue(1, [&] { order += 'x'; });
    streams.record(end, 1);
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(streams.query(end));
    EXPECT_THROW(streams.synchronize_stream(1), CudaError);
    EXPECT_THROW(streams.synchronize(end), CudaError);
    streams.enqueue(2, [&] { order += 'a', *held = true; });
    streams.synchronize(end);
    EXPECT_EQ(order, "ax");
  }
}

TEST(EmulatedStreams, AnEventOrdersTwoStreams) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Streams streams(test_seed() + seed);
    std::string order;
    const std::uint64_t event = streams.create_event();
    streams.enqueue(1, [&] { order += 'a'; });
    streams.record(event, 1);
    streams.enqueue(1, [&] { order += 'b'; });
    streams.wait(2, event);
    streams.enqueue(2, [&] { order += 'x'; });
    streams.record(event, 1);  // a wait covers the work recorded before it
    streams.destroy_event(event);
    streams.synchronize_all();
    ASSERT_LT(order.find('a'), order.find('x')) << order << ", seed " << test_seed() + seed;
  }
}

TEST(EmulatedStreams, AnEventIsDoneWithTheWorkBeforeIt) {
  Streams streams(3);
  bool done = false;
  const std::uint64_t event = streams.create_event();
  EXPECT_TRUE(streams.query(event)) << "never recorded";
  streams.enqueue(1, [&] { done = true; });
  streams.record(event, 1);
  int questions = 1;
  for (; !streams.query(event); ++questions) EXPECT_FALSE(done && streams.queued() == 0);
  EXPECT_TRUE(done) << "after " << questions << " questions";
  streams.record(event, 1);
  streams.synchronize(event);
  EXPECT_TRUE(streams.query(event));
  streams.destroy_event(event);
  EXPECT_THROW(streams.query(event), CudaError);
}

TEST(EmulatedStreams, AnEventRecordedAgainElsewhereCausesNoDeadlock) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Streams streams(test_seed() + seed);
    bool done = false;
    const std::uint64_t event = streams.create_event();
    streams.enqueue(1, [] {});
    streams.record(event, 1);
    streams.enqueue(2, [&] { done = true; });
    streams.record(event, 2);
    streams.wait(3, event);
    streams.enqueue(3, [&] { EXPECT_TRUE(done); });
    streams.synchronize_all();
  }
}

TEST(EmulatedStreams, AFullQueueRunsSomeOfItsWork) {
  Streams streams(5);
  int done = 0;
  for (int i = 0; i < 5000; ++i) streams.enqueue(static_cast<std::uint64_t>(i % 3), [&] { ++done; });
  EXPECT_LE(streams.queued(), 1024u);
  streams.synchronize_all();
  EXPECT_EQ(done, 5000);
}

/// Returns the message that an action throws.
template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const CudaError& error) {
    return error.what();
  }
  return "no error";
}

TEST(EmulatedCapture, RecordsWorkAndRunsItAtEachLaunch) {
  Streams streams(test_seed());
  std::string order;
  streams.begin_capture(1);
  streams.enqueue(1, [&] { order += 'a'; });
  streams.enqueue(1, [&] { order += 'b'; });
  const auto recording = streams.end_capture(1);
  streams.synchronize_all();
  EXPECT_EQ(order, "");
  streams.launch(2, recording);
  streams.enqueue(2, [&] { order += 'x'; });
  streams.launch(2, recording);
  streams.synchronize_all();
  EXPECT_EQ(order, "abxab");
}

TEST(EmulatedCapture, RecordsJoinedStreamsAndReplaysThemInEveryAllowedOrder) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Streams streams(seed);
    std::string order;
    const std::uint64_t fork = streams.create_event(), join = streams.create_event();
    streams.begin_capture(1);
    streams.enqueue(1, [&] { order += '<'; });
    streams.record(fork, 1);
    streams.wait(2, fork);
    EXPECT_TRUE(streams.is_captured(2));
    streams.enqueue(2, [&] { order += 'x'; });
    streams.enqueue(1, [&] { order += 'a'; });
    streams.record(join, 2);
    streams.wait(1, join);
    streams.enqueue(1, [&] { order += '>'; });
    const auto recording = streams.end_capture(1);
    EXPECT_FALSE(streams.is_captured(2));
    streams.launch(3, recording);
    streams.synchronize_stream(3);
    orders.insert(order);
  }
  EXPECT_EQ(orders, (std::set<std::string>{"<ax>", "<xa>"}));
}

TEST(EmulatedCapture, ReportsABrokenRuleAndBreaksOnlyTheRecording) {
  Streams streams(test_seed());
  int done = 0;
  const std::uint64_t outside = streams.create_event();
  streams.enqueue(9, [&] { ++done; });
  streams.record(outside, 9);
  const auto broken_by = [&](const auto& action) {
    streams.begin_capture(1);
    streams.enqueue(1, [&] { done += 100; });
    const std::string error = refusal(action);
    EXPECT_EQ(refusal([&] { streams.enqueue(1, [] {}); }), "[enqueue] the recording was broken before: " + error);
    EXPECT_EQ(refusal([&] { streams.end_capture(1); }), "[end_capture] the recording was broken before: " + error);
    EXPECT_FALSE(streams.is_captured(1));
    return error;
  };
  EXPECT_EQ(broken_by([&] { streams.synchronize_stream(1); }), "[synchronize] the stream is being recorded");
  EXPECT_EQ(broken_by([&] { streams.wait(1, outside); }), "[stream_wait] the event marks work outside the recording");
  EXPECT_EQ(broken_by([&] { streams.begin_capture(1); }), "[begin_capture] the stream is being recorded already");
  streams.synchronize_all();
  EXPECT_EQ(done, 1);
}

TEST(EmulatedCapture, TwoRecordingsCannotShareAnEvent) {
  Streams streams(test_seed());
  const std::uint64_t event = streams.create_event();
  streams.begin_capture(1);
  streams.begin_capture(2);
  streams.record(event, 1);
  EXPECT_EQ(refusal([&] { streams.wait(2, event); }), "[stream_wait] the event belongs to another recording");
  EXPECT_NE(refusal([&] { streams.end_capture(2); }), "no error");
  EXPECT_EQ(refusal([&] { streams.end_capture(1); }), "no error");
}

TEST(EmulatedCapture, ARecordedEventNeverFinishesUntilRecordedAgain) {
  Streams streams(test_seed());
  const std::uint64_t event = streams.create_event(), unused = streams.create_event();
  streams.begin_capture(1);
  streams.wait(1, unused);  // an event that was never recorded
  streams.record(event, 1);
  EXPECT_EQ(refusal([&] { streams.query(event); }),
            "[event_query] the event belongs to a recording, so it never finishes");
  EXPECT_EQ(refusal([&] { streams.synchronize(event); }),
            "[event_synchronize] the event belongs to a recording, so it never finishes");
  streams.end_capture(1);
  EXPECT_NE(refusal([&] { streams.query(event); }), "no error") << "as on a GPU, afterwards too";
  streams.record(event, 1);
  EXPECT_NO_THROW(streams.synchronize(event));
}

TEST(EmulatedCapture, RefusesUnjoinedWorkAtItsEnd) {
  Streams streams(test_seed());
  const std::uint64_t fork = streams.create_event();
  streams.begin_capture(1);
  streams.record(fork, 1);
  streams.wait(2, fork);
  streams.enqueue(2, [] {});
  EXPECT_EQ(refusal([&] { streams.end_capture(2); }), "[end_capture] no recording was begun on the stream");
  EXPECT_EQ(refusal([&] { streams.end_capture(1); }),
            "[end_capture] the recorded work of another stream was not joined");
  EXPECT_FALSE(streams.is_captured(2));
}

}  // namespace
}  // namespace poolgrad::emulation
