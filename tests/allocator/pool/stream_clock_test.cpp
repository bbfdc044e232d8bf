// StreamOrder alone: which stream may reuse a block, by tickets and clocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/pool/stream_order.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Stamp stamp(const StreamOrder& order, std::uint64_t stream) { return {stream, order.now(stream)}; }

StreamEvent recorded(StreamOrder& order, std::uint64_t stream, EventId id) {
  StreamEvent event = order.begin_event(stream);
  event.id = id;
  return event;
}

bool keep(StreamOrder& order, const StreamEvent& event) {
  StreamEvents events{event};
  return order.keep(events, events.begin());
}

std::uint64_t retire(StreamOrder& order, const StreamEvent& event) {
  StreamEvents events{event};
  const std::uint64_t name = order.next_retired();
  order.retire(events);
  return name;
}

// Returns the event taken; 0 if there is none.
EventId taken(StreamOrder& order, Stamp covered) {
  StreamEvents events;
  return order.take_event(covered, events) ? events.front().id : 0;
}

TEST(StreamOrder, AllowsAStreamItsOwnMemory) {
  StreamOrder order;
  EXPECT_TRUE(order.covered(1, stamp(order, 1)));
  EXPECT_FALSE(order.covered(2, stamp(order, 1)));
  EXPECT_FALSE(order.finished(stamp(order, 1)));
  EXPECT_TRUE(order.covered(2, {1, 0}));
  EXPECT_TRUE(order.finished({1, 0}));
}

TEST(StreamOrder, CoversOnlyFreesBeforeTheEvent) {
  StreamOrder order;
  const Stamp before = stamp(order, 1);
  order.wait(2, order.begin_event(1));
  const Stamp after = stamp(order, 1);
  EXPECT_TRUE(order.covered(2, before));
  EXPECT_FALSE(order.covered(2, after));
  EXPECT_FALSE(order.covered(3, before));
  EXPECT_FALSE(order.covered(1, stamp(order, 2)));
}

TEST(StreamOrder, PassesOnTheEarlierWaitsOfAnEventsStream) {
  StreamOrder order;
  const Stamp first = stamp(order, 1);
  order.wait(2, order.begin_event(1));
  const StreamEvent event = order.begin_event(2);
  const Stamp second = stamp(order, 1);
  order.wait(2, order.begin_event(1));
  order.wait(3, event);
  EXPECT_TRUE(order.covered(3, first));
  EXPECT_FALSE(order.covered(3, second));
}

TEST(StreamOrder, TreatsAllWorkBeforeAFinishedEventAsFinished) {
  StreamOrder order;
  const Stamp first = stamp(order, 1);
  order.wait(2, order.begin_event(1));
  const Stamp second = stamp(order, 2);
  const StreamEvent event = order.begin_event(2);
  order.finish(event);
  EXPECT_TRUE(order.finished(second));
  EXPECT_TRUE(order.finished(first));
  EXPECT_FALSE(order.finished(stamp(order, 2)));
}

TEST(StreamOrder, FindsTheFirstEventThatCoversAStamp) {
  StreamOrder order;
  const Stamp first = stamp(order, 1);
  EXPECT_TRUE(order.lacks_event(first));
  keep(order, recorded(order, 1, 11));
  const Stamp second = stamp(order, 1);
  keep(order, recorded(order, 1, 12));
  EXPECT_FALSE(order.lacks_event(second));
  EXPECT_TRUE(order.lacks_event(stamp(order, 1)));
  EXPECT_EQ(taken(order, second), 12u);
  EXPECT_EQ(taken(order, first), 11u);
  EXPECT_EQ(taken(order, first), 0u);
}

TEST(StreamOrder, KeepsFewEventsPerStream) {
  StreamOrder order;
  for (EventId id = 1; id <= StreamOrder::most_events; ++id) EXPECT_TRUE(keep(order, recorded(order, 1, id)));
  EXPECT_FALSE(order.lacks_event(stamp(order, 1)));
  EXPECT_FALSE(keep(order, recorded(order, 1, 100)));
  EXPECT_TRUE(keep(order, recorded(order, 2, 101)));
  StreamEvents all;
  order.take_events(all);
  EXPECT_EQ(all.size(), StreamOrder::most_events + 1);
  EXPECT_FALSE(order.has_events());
}

TEST(StreamOrder, RetiresAStreamBehindOneEvent) {
  StreamOrder order;
  const Stamp old = stamp(order, 1);
  const std::uint64_t retired = retire(order, recorded(order, 1, 7));
  EXPECT_TRUE(StreamOrder::is_retired(retired));
  EXPECT_FALSE(order.finished({retired, old.ticket}));
  EXPECT_FALSE(order.lacks_event({retired, old.ticket}));
  EXPECT_THAT(order.retired_streams(), ElementsAre(Stamp{retired, order.now(1)}));
  EXPECT_FALSE(order.lacks_event({retired, order.now(1)})) << "given back since the event, covered all the same";
  EXPECT_EQ(order.take_finished_retired(), std::nullopt);
  StreamEvents events;
  ASSERT_TRUE(order.take_event({retired, old.ticket}, events));
  EXPECT_EQ(events.front().id, 7u);
  order.finish(events.front());
  EXPECT_TRUE(order.finished({retired, old.ticket}));
  EXPECT_EQ(order.take_finished_retired(), retired);
  EXPECT_TRUE(order.finished({retired, old.ticket}));
  EXPECT_THAT(order.retired_streams(), IsEmpty());
}

TEST(StreamOrder, RestartsTheClockOfARetiredId) {
  StreamOrder order;
  const Stamp other = stamp(order, 2);
  order.wait(1, order.begin_event(2));
  order.wait(2, order.begin_event(1));
  EXPECT_TRUE(order.covered(1, other));
  retire(order, recorded(order, 1, 7));
  EXPECT_FALSE(order.covered(1, other));
  // A wait for the old stream is no wait for the new one.
  EXPECT_FALSE(order.covered(2, stamp(order, 1)));
}

TEST(StreamOrder, RetiresAnIdManyTimes) {
  StreamOrder order;
  const std::uint64_t first = retire(order, recorded(order, 1, 1));
  const std::uint64_t second = retire(order, recorded(order, 1, 2));
  EXPECT_NE(first, second);
  EXPECT_EQ(taken(order, {first, 1}), 1u);
  EXPECT_EQ(taken(order, {second, 1}), 2u);
}

}  // namespace
}  // namespace poolgrad
