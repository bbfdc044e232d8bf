// A block freed on one stream reaches another stream only after an event.
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "allocator/pool/stream_order.h"
#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class StreamOrderTest : public PoolTest {
 protected:
  StreamOrderTest() {
    auto delayed = std::make_unique<DelayedMemory>(memory(8 * page));
    device_ = delayed.get();
    pool_ = std::make_unique<CachingAllocator>(std::move(delayed));
  }

  DelayedMemory* device_;
  std::unique_ptr<CachingAllocator> pool_;
};
INSTANTIATE_TEST_SUITE_P(Devices, StreamOrderTest, devices, device_name);

TEST_P(StreamOrderTest, ReusesABlockOnItsStreamWithoutAnEvent) {
  void* block = allocate(*pool_, page, Category::activation, 7);
  deallocate(*pool_, block, page, 7);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 7), block);
  EXPECT_EQ(pool_->statistics().events_recorded, 0u);
}

TEST_P(StreamOrderTest, MakesAnotherStreamWaitBeforeItTakesABlock) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  // From now on the block belongs to stream 2.
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, LeavesTheRestOfASplitBlockToItsStream) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(allocate(*pool_, page / 2, Category::activation, 2), block);
  EXPECT_EQ(device_->waits(), 1u);
  allocate(*pool_, page / 2, Category::activation, 1);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(pool_->statistics().num_device_alloc, 1u);
}

TEST_P(StreamOrderTest, HoldsABlockThatAnotherStreamMayStillUse) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(pool_->statistics().allocated_bytes.current, 0u);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page);
  EXPECT_EQ(pool_->statistics().events_recorded, 0u);
  expect_invariants(*pool_);
  // While stream 2 works, even the owner stream gets the block only with a wait for that work.
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, AsksForFinishedWorkBeforeItWaits) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 2);
  void* large = allocate(*pool_, 2 * page, Category::activation, 1);  // polls without result
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  device_->finish_events();
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(device_->waits(), 0u);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(device_->unfinished_events(), 0u);
  deallocate(*pool_, large, 2 * page, 1);
}

TEST_P(StreamOrderTest, RecordsOneEventForAllPendingBlocksOfAStream) {
  std::array<void*, 3> blocks{};
  for (void*& block : blocks) block = allocate(*pool_, page, Category::activation, 1);
  for (void* block : blocks) deallocate(*pool_, block, page, 2);
  allocate(*pool_, 4 * page, Category::activation, 1);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  device_->finish_events();
  allocate(*pool_, 3 * page, Category::activation, 1);
  EXPECT_EQ(pool_->statistics().num_device_alloc, 4u);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
}

TEST_P(StreamOrderTest, SynchronisesPendingBlocksRatherThanRunOut) {
  pool_->set_budget(2 * page);
  std::array<void*, 2> blocks{};
  for (void*& block : blocks) block = allocate(*pool_, page, Category::activation, 1);
  for (void* block : blocks) deallocate(*pool_, block, page, 2);
  EXPECT_EQ(allocate(*pool_, 2 * page, Category::activation, 1), blocks[0]);
  EXPECT_EQ(pool_->statistics().num_ooms, 0u);
  EXPECT_EQ(device_->unfinished_events(), 0u);
}

TEST_P(StreamOrderTest, JoinsNeighboursOfSeveralStreams) {
  pool_->set_budget(3 * page);
  std::array<void*, 3> blocks{};
  for (std::uint64_t id = 0; id < 3; ++id) blocks[id] = allocate(*pool_, page, Category::activation, id);
  for (std::uint64_t id = 0; id < 3; ++id) deallocate(*pool_, blocks[id], page, id);
  expect_invariants(*pool_);
  EXPECT_EQ(allocate(*pool_, 3 * page, Category::activation, 1), blocks[0]);
  EXPECT_EQ(device_->waits(), 2u);
  EXPECT_EQ(pool_->statistics().num_device_free, 0u);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, ReleasesPagesOnlyAfterTheirStreamIsDone) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->trim(), page);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(device_->unfinished_events(), 0u);
}

TEST_P(StreamOrderTest, ReusesBlocksThatTheCallerOrderedWithoutAnEvent) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  pool_->order(stream_of(*pool_, 2), stream_of(*pool_, 1));
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(device_->waits(), 1u);
}

TEST_P(StreamOrderTest, FreesAPendingBlockOnceItsStreamHasWaited) {
  CachingAllocator pool(memory(), {.deterministic = true});
  void* block = allocate(pool, page, Category::activation, 1);
  pool.use(block, stream_of(pool, 2));
  deallocate(pool, block, page, 1);
  pool.order(stream_of(pool, 1), stream_of(pool, 2));
  EXPECT_EQ(pool.trim(), page);
  EXPECT_EQ(pool.statistics().num_sync_all_streams, 0u);
}

TEST_P(StreamOrderTest, FollowsWaitsThroughAThirdStream) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  pool_->order(stream_of(*pool_, 2), stream_of(*pool_, 1));
  pool_->order(stream_of(*pool_, 3), stream_of(*pool_, 2));
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 3), block);
  EXPECT_EQ(device_->waits(), 2u);
}

TEST_P(StreamOrderTest, WaitsForFreesAfterTheCallersOrder) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->order(stream_of(*pool_, 2), stream_of(*pool_, 1));
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  EXPECT_EQ(device_->waits(), 2u);
}

TEST_P(StreamOrderTest, HoldsABlockForEveryStreamThatUsesIt) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->use(block, stream_of(*pool_, 2));
  pool_->use(block, stream_of(*pool_, 3));
  pool_->use(block, stream_of(*pool_, 3));
  pool_->use(block, stream_of(*pool_, 1));
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(device_->waits(), 2u);
  // The uses are over: the next free makes it available at once.
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, 0u);
}

TEST_P(StreamOrderTest, EndsAUseWhenTheOwnerHasWaitedForIt) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->use(block, stream_of(*pool_, 2));
  pool_->order(stream_of(*pool_, 1), stream_of(*pool_, 2));
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, 0u);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(device_->waits(), 1u);
}

TEST_P(StreamOrderTest, TransfersALiveBlockAfterAllItsUses) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  EXPECT_TRUE(pool_->transfer_to_stream(block, stream_of(*pool_, 1))) << "to its own stream";
  EXPECT_EQ(pool_->statistics().events_recorded, 0u);
  pool_->use(block, stream_of(*pool_, 2));
  EXPECT_TRUE(pool_->transfer_to_stream(block, stream_of(*pool_, 1)));
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_TRUE(pool_->transfer_to_stream(block, stream_of(*pool_, 3)));
  EXPECT_EQ(device_->waits(), 2u) << "for stream 1, which has waited for stream 2";
  deallocate(*pool_, block, page, 3);
  EXPECT_EQ(pool_->statistics().active_bytes.current, 0u) << "stream 3's own";
  EXPECT_THROW(pool_->transfer_to_stream(block, stream_of(*pool_, 3)), ValueError);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, TransfersABlockToANewStreamOfTheSameId) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->stream_destroyed(stream_of(*pool_, 1));
  EXPECT_TRUE(pool_->transfer_to_stream(block, stream_of(*pool_, 1)));
  EXPECT_EQ(device_->waits(), 1u);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, 0u);
}

// Calls a function after each recorded event, and knows which streams exist.
class HookedMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;

  EventId record_event(Stream stream) override {
    if (destroyed.contains(stream.id)) throw DeviceError("[record_event] there is no such stream");
    const EventId event = inner().record_event(stream);
    streams[event] = stream.id;
    if (const auto hook = std::exchange(after_record, {})) hook();
    return event;
  }
  bool event_finished(EventId event) override { return !unfinished && inner().event_finished(event); }
  void stream_wait(Stream stream, EventId event) override {
    if (refuses_waits) throw DeviceError("[stream_wait] refused");
    inner().stream_wait(stream, event);
  }
  void synchronize(EventId event) override {
    if (streams.at(event) == broken) throw 42;
    inner().synchronize(event);
    log->push_back("stream " + std::to_string(streams.at(event)) + " is done");
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    log->push_back("decommit");
    inner().decommit(address, bytes);
  }

  bool unfinished = false;
  bool refuses_waits = false;
  std::uint64_t broken = UINT64_MAX;  // waits for this stream fail
  std::set<std::uint64_t> destroyed;
  std::function<void()> after_record;
  std::map<EventId, std::uint64_t> streams;
  std::shared_ptr<std::vector<std::string>> log = std::make_shared<std::vector<std::string>>();
};

class StreamHooksTest : public PoolTest {
 protected:
  StreamHooksTest() {
    auto hooked = std::make_unique<HookedMemory>(memory(8 * page));
    device_ = hooked.get();
    pool_ = std::make_unique<CachingAllocator>(std::move(hooked));
  }

  HookedMemory* device_;
  std::unique_ptr<CachingAllocator> pool_;
};
INSTANTIATE_TEST_SUITE_P(Devices, StreamHooksTest, devices, device_name);

TEST_P(StreamHooksTest, AnOrderKeepsUsesAfterItsEvent) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  void* other = allocate(*pool_, page, Category::activation, 1);
  pool_->use(block, stream_of(*pool_, 2));
  pool_->use(other, stream_of(*pool_, 2));
  device_->after_record = [&] { pool_->use(block, stream_of(*pool_, 2)); };
  pool_->order(stream_of(*pool_, 1), stream_of(*pool_, 2));
  deallocate(*pool_, other, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page) << "the use after the event is not over";
}

TEST_P(StreamHooksTest, ATransferKeepsUsesDuringIt) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->use(block, stream_of(*pool_, 3));
  device_->after_record = [&] { pool_->use(block, stream_of(*pool_, 3)); };
  EXPECT_TRUE(pool_->transfer_to_stream(block, stream_of(*pool_, 2)));
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page) << "the use after the event is not over";
  expect_invariants(*pool_);
}

TEST_P(StreamHooksTest, ATransferredBlockIsFreeOnItsNewStreamOnly) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->use(block, stream_of(*pool_, 2));
  pool_->use(block, stream_of(*pool_, 3));
  EXPECT_TRUE(pool_->transfer_to_stream(block, stream_of(*pool_, 2)));
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(pool_->statistics().active_bytes.current, 0u);
  expect_invariants(*pool_);
}

TEST_P(StreamHooksTest, ARefusedTransferLeavesTheBlockUnchanged) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  void* used = allocate(*pool_, page, Category::activation, 1);
  pool_->use(used, stream_of(*pool_, 3));
  device_->refuses_waits = true;
  EXPECT_FALSE(pool_->transfer_to_stream(block, stream_of(*pool_, 2)));
  EXPECT_FALSE(pool_->transfer_to_stream(used, stream_of(*pool_, 2)));
  device_->refuses_waits = false;
  EXPECT_TRUE(pool_->expand_in_place(block, page, page / 2, stream_of(*pool_, 1))) << "it is its stream's alone";
  deallocate(*pool_, block, page / 2, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page);
  deallocate(*pool_, used, page, 1);
  EXPECT_EQ(pool_->statistics().active_bytes.current, page) << "stream 3 may still use the other block";
  expect_invariants(*pool_);
}

TEST_P(StreamHooksTest, ABlockThatOutlivesItsStreamIsReused) {
  for (const bool finished : {false, true}) {
    pool_->set_budget(page);
    device_->destroyed.clear();
    void* block = allocate(*pool_, page, Category::activation, 1);
    pool_->stream_destroyed(stream_of(*pool_, 1));
    device_->destroyed.insert(1);
    if (finished) pool_->trim();  // the pool learns that the stream's last work is done
    deallocate(*pool_, block, page, 1);
    EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
    deallocate(*pool_, block, page, 2);
    EXPECT_EQ(pool_->statistics().active_bytes.current, 0u);
    EXPECT_EQ(pool_->trim(), page);
    expect_invariants(*pool_);
  }
}

TEST_P(StreamHooksTest, AUseOnADestroyedStreamIsOver) {
  pool_->set_budget(page);
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->use(block, stream_of(*pool_, 2));
  pool_->stream_destroyed(stream_of(*pool_, 2));
  device_->destroyed.insert(2);
  deallocate(*pool_, block, page, 1);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
}

TEST_P(StreamHooksTest, APoolWaitsForAllWorkBeforeItReleasesMemory) {
  void* given_back = allocate(*pool_, page, Category::activation, 1);
  allocate(*pool_, page, Category::activation, 2);
  void* used = allocate(*pool_, page, Category::activation, 2);
  pool_->use(used, stream_of(*pool_, 3));
  deallocate(*pool_, given_back, page, 1);
  const auto log = device_->log;
  pool_.reset();
  ASSERT_GE(log->size(), 4u);
  const std::vector<std::string> waits(log->begin(), log->begin() + 3);
  EXPECT_THAT(waits, ::testing::UnorderedElementsAre("stream 1 is done", "stream 2 is done", "stream 3 is done"));
  EXPECT_EQ((*log)[3], "decommit");
}

TEST_P(StreamHooksTest, APoolWithABrokenStreamWaitsForTheOthers) {
  for (std::uint64_t stream = 1; stream <= 3; ++stream) allocate(*pool_, page, Category::activation, stream);
  device_->broken = 2;
  const auto log = device_->log;
  pool_.reset();
  ASSERT_GE(log->size(), 3u);
  const std::vector<std::string> waits(log->begin(), log->begin() + 2);
  EXPECT_THAT(waits, ::testing::UnorderedElementsAre("stream 1 is done", "stream 3 is done"));
  EXPECT_EQ((*log)[2], "decommit");
}

TEST_P(StreamHooksTest, TheSmallerPendingBlockIsTakenFirst) {
  pool_->set_budget(5 * page);
  void* large = allocate(*pool_, 2 * page, Category::activation, 1);
  void* small = allocate(*pool_, page, Category::activation, 1);
  void* larger = allocate(*pool_, 2 * page, Category::activation, 1);
  for (const auto& [block, bytes] : {std::pair(large, 2 * page), {small, page}, {larger, 2 * page}}) {
    pool_->use(block, stream_of(*pool_, 2));
    deallocate(*pool_, block, bytes, 1);
  }
  device_->unfinished = true;
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), small);
}

TEST_P(StreamHooksTest, TheOlderPendingBlockOfOneSizeIsTakenFirst) {
  std::array<void*, 3> blocks{};
  pool_->set_budget(3 * page);
  for (void*& block : blocks) block = allocate(*pool_, page, Category::activation, 1);
  for (const std::size_t i : {1u, 0u, 2u}) {
    pool_->use(blocks[i], stream_of(*pool_, 2));
    deallocate(*pool_, blocks[i], page, 1);
  }
  device_->unfinished = true;
  device_->refuses_waits = true;
  device_->after_record = [&] { device_->refuses_waits = false; };
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), blocks[1]);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, WaitsForWorkOnTheRestOfAShrunkBlock) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  ASSERT_TRUE(pool_->expand_in_place(block, page, page / 2, stream_of(*pool_, 1)));
  pool_->set_budget(page);
  allocate(*pool_, page / 2, Category::activation, 2);
  EXPECT_EQ(device_->waits(), 1u);
}

TEST_P(StreamOrderTest, RefusesUsesOfBlocksThatAreNotLive) {
  int foreign = 0;
  EXPECT_THROW(pool_->use(&foreign, stream_of(*pool_, 2)), ValueError);
  EXPECT_THROW(pool_->use(nullptr, stream_of(*pool_, 2)), ValueError);
  void* block = allocate(*pool_, page);
  EXPECT_THROW(pool_->use(block, Stream{Device::parse("sim:77"), 2}), DeviceError);
  EXPECT_THROW(pool_->order(Stream{Device::parse("sim:77"), 2}, stream_of(*pool_)), DeviceError);
  EXPECT_THROW(pool_->stream_destroyed(Stream{Device::parse("sim:77"), 2}), DeviceError);
}

TEST_P(StreamOrderTest, RefusesTheReservedStreamIds) {
  void* block = allocate(*pool_, page);
  for (const std::uint64_t id : {std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    const Stream stream{pool_->device(), id};
    EXPECT_THROW(allocate(*pool_, page, Category::activation, id), DeviceError);
    EXPECT_THROW(pool_->use(block, stream), DeviceError);
    EXPECT_THROW(pool_->order(stream, stream_of(*pool_)), DeviceError);
    EXPECT_THROW(pool_->stream_destroyed(stream), DeviceError);
    EXPECT_DEATH(deallocate(*pool_, block, page, id), "invalid stream id in the free of");
  }
}

TEST_P(StreamOrderTest, ReusesBlocksOfADestroyedStreamAfterItsLastWork) {
  void* first = allocate(*pool_, page, Category::activation, 1);
  void* second = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, first, page, 1);
  deallocate(*pool_, second, page, 1);
  pool_->stream_destroyed(stream_of(*pool_, 1));
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), first);
  EXPECT_EQ(device_->waits(), 1u);
  // The wait covers all earlier work of the stream, and no more events can be recorded on it.
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), second);
  EXPECT_EQ(device_->waits(), 1u);
  EXPECT_EQ(pool_->statistics().events_recorded, 1u);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, TreatsTheIdOfADestroyedStreamAsANewStream) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  deallocate(*pool_, block, page, 1);
  pool_->stream_destroyed(stream_of(*pool_, 1));
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(device_->waits(), 1u);
}

TEST_P(StreamOrderTest, ForgetsTheWaitsOfADestroyedStream) {
  void* block = allocate(*pool_, page, Category::activation, 2);
  deallocate(*pool_, block, page, 2);
  pool_->order(stream_of(*pool_, 1), stream_of(*pool_, 2));
  pool_->stream_destroyed(stream_of(*pool_, 1));
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 1), block);
  EXPECT_EQ(device_->waits(), 2u);
}

TEST_P(StreamOrderTest, TakesBackLiveBlocksOfADestroyedStream) {
  void* block = allocate(*pool_, page, Category::activation, 1);
  pool_->stream_destroyed(stream_of(*pool_, 1));
  device_->finish_events();
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(allocate(*pool_, page, Category::activation, 2), block);
  deallocate(*pool_, block, page, 2);
  EXPECT_EQ(pool_->trim(), page);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, ReleasesThePagesOfADestroyedStream) {
  void* block = allocate(*pool_, 2 * page, Category::activation, 1);
  deallocate(*pool_, block, 2 * page, 1);
  pool_->stream_destroyed(stream_of(*pool_, 1));
  EXPECT_EQ(pool_->trim(), 2 * page);
  EXPECT_EQ(device_->unfinished_events(), 0u);
}

TEST_P(StreamOrderTest, OutlivesManyStreams) {
  for (std::uint64_t id = 1; id <= 100; ++id) {
    void* block = allocate(*pool_, page, Category::activation, id);
    deallocate(*pool_, block, page, id);
    pool_->stream_destroyed(stream_of(*pool_, id));
    EXPECT_LE(device_->unfinished_events(), 9u);
  }
  EXPECT_EQ(pool_->statistics().reserved_bytes.peak, page);
  expect_invariants(*pool_);
}

TEST_P(StreamOrderTest, ForgetsShortLivedStreams) {
  for (const bool outlived : {false, true}) {
    CachingAllocator pool(memory());
    void* block = allocate(pool, 4 * KiB, Category::activation, 1);
    if (!outlived) deallocate(pool, block, 4 * KiB, 1);
    pool.stream_destroyed(stream_of(pool, 1));
    const auto come_and_go = [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t id = first; id < last; ++id) {
        deallocate(pool, allocate(pool, 1000, Category::activation, id), 1000, id);
        pool.stream_destroyed(stream_of(pool, id));
      }
      pool.trim();
      return pool.statistics().bookkeeping_bytes;
    };
    const std::size_t before = come_and_go(2, 100);
    const std::size_t after = come_and_go(100, 3100);
    EXPECT_LE(after, before + (outlived ? 3000 * 32 : 0));
    // Its stream was destroyed, and a new stream of that name is another one.
    if (outlived) deallocate(pool, block, 4 * KiB, 1);
    EXPECT_EQ(pool.statistics().active_bytes.current, 0u);
    EXPECT_LE(come_and_go(3100, 3200), before);
    void* again = allocate(pool, page, Category::activation, 1);
    deallocate(pool, again, page, 2);
    EXPECT_EQ(pool.statistics().active_bytes.current, page) << "held back for the other stream";
    expect_invariants(pool);
  }
}

// The tickets of a reused name continue; otherwise a stream would take new work for work it has waited for.
TEST(StreamOrder, ContinuesTheTicketsOfAReusedId) {
  StreamOrder order;
  for (int i = 0; i < 5; ++i) order.wait(2, order.begin_event(1));
  const StreamEvent of_the_old_one = order.begin_event(2);
  order.destroy(1);
  order.forget_destroyed();
  EXPECT_FALSE(order.is_destroyed(1));
  order.wait(3, of_the_old_one);
  const Stamp work{1, order.now(1)};
  EXPECT_FALSE(order.covered(2, work));
  EXPECT_FALSE(order.covered(3, work));
  order.finish(of_the_old_one);
  EXPECT_FALSE(order.finished(work));
  order.finish(order.begin_event(1));
  EXPECT_TRUE(order.finished(work));
}

TEST_P(StreamOrderTest, NeverLooksAtTheClockWhenDeterministic) {
  // Whether the work of stream 2 is over makes no difference, except for orders given by the caller.
  for (const bool finished : {false, true}) {
    auto delayed = std::make_unique<DelayedMemory>(memory(8 * page));
    DelayedMemory* device = delayed.get();
    CachingAllocator pool(std::move(delayed), {.deterministic = true});
    std::array<void*, 3> blocks{};
    for (void*& block : blocks) block = allocate(pool, page, Category::activation, 1);
    deallocate(pool, blocks[0], page, 2);
    deallocate(pool, allocate(pool, 3 * page, Category::activation, 1), 3 * page, 1);
    if (finished) device->finish_events();
    deallocate(pool, blocks[1], page, 1);
    pool.order(stream_of(pool, 2), stream_of(pool, 1));
    EXPECT_EQ(allocate(pool, page, Category::activation, 2), blocks[1]);
    EXPECT_EQ(pool.statistics().events_recorded, 1u);
    EXPECT_EQ(pool.statistics().active_bytes.current, 3 * page);
    expect_invariants(pool);
  }
}

TEST(StreamOrder, TakesTheFirstEventThatCoversAStamp) {
  StreamOrder order;
  StreamEvents recorded, taken;
  for (const EventId id : {EventId{1}, EventId{2}}) {
    recorded.push_back(order.begin_event(7));
    recorded.back().id = id;
    ASSERT_TRUE(order.keep(recorded, recorded.begin()));
  }
  const Stamp before_both{7, 1};
  EXPECT_TRUE(order.take_event(before_both, taken));
  EXPECT_EQ(taken.back().id, 1u);
  EXPECT_TRUE(order.take_event(before_both, taken));
  EXPECT_EQ(taken.back().id, 2u);
  EXPECT_FALSE(order.take_event(before_both, taken));
  EXPECT_EQ(taken.size(), 2u);
}

TEST(StreamOrder, ForgetsOnlyFinishedWaits) {
  StreamOrder order;
  const StreamEvent over = order.begin_event(1);
  const StreamEvent queued = order.begin_event(2);
  order.wait(3, over);
  order.wait(3, queued);
  order.finish(over);
  const std::size_t before = order.bookkeeping_bytes();
  order.tidy();
  EXPECT_LT(order.bookkeeping_bytes(), before);
  EXPECT_TRUE(order.finished(over.covers));
  EXPECT_TRUE(order.covered(3, queued.covers));
}

TEST(SimulatedStreams, WaitOnTheVirtualClock) {
  auto memory = std::make_unique<SimulatedMemory>(0, 8 * page);
  SimulatedMemory* device = memory.get();
  device->set_event_delay(1000);
  CachingAllocator pool(std::move(memory), {.budget = 2 * page});
  void* low = allocate(pool, page, Category::activation, 1);
  void* high = allocate(pool, page, Category::activation, 1);
  deallocate(pool, low, page, 2);
  deallocate(pool, high, page, 2);
  EXPECT_EQ(device->now(), 0u);
  EXPECT_EQ(allocate(pool, 2 * page, Category::activation, 1), low);
  // The pool had to wait for stream 2, and the clock shows it.
  EXPECT_EQ(device->now(), 1000u);
  deallocate(pool, low, 2 * page, 1);
  EXPECT_EQ(allocate(pool, 2 * page, Category::activation, 3), low);
  EXPECT_EQ(device->waits(), 1u);
  EXPECT_EQ(device->now(), 1000u);
}

}  // namespace
}  // namespace poolgrad::testing
