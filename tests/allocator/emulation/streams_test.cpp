// Work on the streams of the emulated device runs late and in any order, but never in one that is not allowed.
#include "allocator/emulation/streams.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "allocator/error.h"
#include "tests/test_seed.h"

namespace poolgrad::emulation {
namespace {

TEST(EmulatedStreams, NothingRunsBeforeSomebodyWaits) {
  Streams streams(1);
  int done = 0;
  for (int i = 0; i < 100; ++i) streams.enqueue(7, [&] { ++done; });
  EXPECT_EQ(done, 0);
  streams.synchronize_stream(7);
  EXPECT_EQ(done, 100);
  EXPECT_EQ(streams.queued(), 0u);
}

TEST(EmulatedStreams, AStreamKeepsItsOrderAndOthersComeInEveryOrder) {
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

TEST(EmulatedStreams, WhoWaitsForOneStreamMayFindTheOtherAnywhere) {
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
    streams.record(event, 1);  // a wait is for what was recorded then
    streams.destroy_event(event);
    streams.synchronize_all();
    ASSERT_LT(order.find('a'), order.find('x')) << order << ", seed " << test_seed() + seed;
  }
}

TEST(EmulatedStreams, AnEventIsDoneWhenWhatItMarksIs) {
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

TEST(EmulatedStreams, AnEventThatIsRecordedAnewElsewhereKeepsNobodyWaiting) {
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

TEST(EmulatedStreams, TooMuchWorkIsNotKept) {
  Streams streams(5);
  int done = 0;
  for (int i = 0; i < 5000; ++i) streams.enqueue(static_cast<std::uint64_t>(i % 3), [&] { ++done; });
  EXPECT_LE(streams.queued(), 1024u);
  streams.synchronize_all();
  EXPECT_EQ(done, 5000);
}

}  // namespace
}  // namespace poolgrad::emulation
