// StreamOrder alone: who may reuse what, by tickets and clocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/stream_order.h"

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

TEST(StreamOrder, AllowsAStreamItsOwnMemory) {
  StreamOrder order;
  EXPECT_TRUE(order.covered(1, stamp(order, 1)));
  EXPECT_FALSE(order.covered(2, stamp(order, 1)));
  EXPECT_FALSE(order.finished(stamp(order, 1)));
  EXPECT_TRUE(order.covered(2, {1, 0}));
  EXPECT_TRUE(order.finished({1, 0}));
}

TEST(StreamOrder, CoversWhatWasGivenBackBeforeTheEventOnly) {
  StreamOrder order;
  const Stamp before = stamp(order, 1);
  order.wait(2, order.begin_event(1));
  const Stamp after = stamp(order, 1);
  EXPECT_TRUE(order.covered(2, before));
  EXPECT_FALSE(order.covered(2, after));
  EXPECT_FALSE(order.covered(3, before));
  EXPECT_FALSE(order.covered(1, stamp(order, 2)));
}

TEST(StreamOrder, PassesOnWhatAStreamHadWaitedForWhenTheEventWasRecorded) {
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

TEST(StreamOrder, KnowsThatAllBeforeAFinishedEventIsFinished) {
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
  order.keep(recorded(order, 1, 11));
  const Stamp second = stamp(order, 1);
  order.keep(recorded(order, 1, 12));
  EXPECT_FALSE(order.lacks_event(second));
  EXPECT_TRUE(order.lacks_event(stamp(order, 1)));
  EXPECT_EQ(order.take_event(second)->id, 12u);
  EXPECT_EQ(order.take_event(first)->id, 11u);
  EXPECT_EQ(order.take_event(first), std::nullopt);
}

TEST(StreamOrder, KeepsFewEventsPerStream) {
  StreamOrder order;
  for (EventId id = 1; id <= StreamOrder::most_events; ++id) EXPECT_TRUE(order.keep(recorded(order, 1, id)));
  EXPECT_FALSE(order.lacks_event(stamp(order, 1)));
  EXPECT_FALSE(order.keep(recorded(order, 1, 100)));
  EXPECT_TRUE(order.keep(recorded(order, 2, 101)));
  EXPECT_EQ(order.take_events().size(), StreamOrder::most_events + 1);
  EXPECT_FALSE(order.has_events());
}

TEST(StreamOrder, RetiresAStreamBehindOneEvent) {
  StreamOrder order;
  const Stamp old = stamp(order, 1);
  const std::uint64_t retired = order.retire(recorded(order, 1, 7));
  EXPECT_TRUE(StreamOrder::is_retired(retired));
  EXPECT_FALSE(order.finished({retired, old.ticket}));
  EXPECT_FALSE(order.lacks_event({retired, old.ticket}));
  EXPECT_THAT(order.retired_streams(), ElementsAre(Stamp{retired, old.ticket}));
  EXPECT_THAT(order.take_finished_retired(), IsEmpty());
  const StreamEvent event = *order.take_event({retired, old.ticket});
  EXPECT_EQ(event.id, 7u);
  order.finish(event);
  EXPECT_TRUE(order.finished({retired, old.ticket}));
  EXPECT_THAT(order.take_finished_retired(), ElementsAre(retired));
  EXPECT_TRUE(order.finished({retired, old.ticket}));
  EXPECT_THAT(order.retired_streams(), IsEmpty());
}

TEST(StreamOrder, StartsTheClockOfARetiredNameAnew) {
  StreamOrder order;
  const Stamp other = stamp(order, 2);
  order.wait(1, order.begin_event(2));
  order.wait(2, order.begin_event(1));
  EXPECT_TRUE(order.covered(1, other));
  order.retire(recorded(order, 1, 7));
  EXPECT_FALSE(order.covered(1, other));
  // Whoever waited for the old stream has not waited for the new one.
  EXPECT_FALSE(order.covered(2, stamp(order, 1)));
}

TEST(StreamOrder, RetiresANameManyTimes) {
  StreamOrder order;
  const std::uint64_t first = order.retire(recorded(order, 1, 1));
  const std::uint64_t second = order.retire(recorded(order, 1, 2));
  EXPECT_NE(first, second);
  EXPECT_EQ(order.take_event({first, 1})->id, 1u);
  EXPECT_EQ(order.take_event({second, 1})->id, 2u);
}

}  // namespace
}  // namespace poolgrad
