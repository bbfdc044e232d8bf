// The pool's records of its own calls.
#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class TraceRecordingTest : public PoolTest {
 protected:
  static std::vector<TraceKind> kinds(const Trace& trace) {
    std::vector<TraceKind> result;
    for (const poolgrad::TraceEvent& event : trace.events) result.push_back(event.kind);
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, TraceRecordingTest, devices, device_name);

using ::testing::ElementsAre;

TEST_P(TraceRecordingTest, RecordsTheLifeOfABlock) {
  CachingAllocator pool(memory());
  deallocate(pool, allocate(pool, 1000), 1000);  // warm up: the calls below need no device call
  pool.start_trace();
  EXPECT_TRUE(pool.tracing());
  const MemoryScope scope("traced", Category::gradient);
  void* block = pool.allocate(1000, 64, stream_of(pool));
  const std::uint32_t line = __LINE__ - 1;
  pool.deallocate(block, 1000, 64, stream_of(pool));
  const Trace trace = pool.trace();
  ASSERT_THAT(kinds(trace), ElementsAre(TraceKind::allocate, TraceKind::free_requested, TraceKind::free_completed));
  const poolgrad::TraceEvent& event = trace.events[0];
  EXPECT_EQ(event.address, reinterpret_cast<std::uintptr_t>(block));
  EXPECT_EQ(event.size, 1000u);
  EXPECT_EQ(event.slack, 24u);
  EXPECT_EQ(event.category, Category::gradient);
  EXPECT_EQ(trace.scopes.at(event.scope), "traced");
  EXPECT_EQ(trace.streams.at(event.stream), 0u);
  EXPECT_EQ(trace.locations.at(event.location).line, line);
  EXPECT_THAT(trace.locations.at(event.location).file, ::testing::HasSubstr("trace_recording_test.cpp"));
  EXPECT_EQ(trace.locations.at(0), TraceLocation{});
  for (const poolgrad::TraceEvent& each : trace.events) EXPECT_EQ(each.allocation, event.allocation);
  EXPECT_TRUE(std::ranges::is_sorted(trace.events, {}, &poolgrad::TraceEvent::time));
  EXPECT_EQ(trace.device, pool.device());
  EXPECT_EQ(trace.blocks.size(), pool.snapshot().size());
}

TEST_P(TraceRecordingTest, RecordsTheDeviceCalls) {
  CachingAllocator pool(memory(), {.trace = 1000});
  void* block = allocate(pool, 3 * page);
  deallocate(pool, block, 3 * page);
  pool.trim();
  std::map<TraceKind, std::size_t> bytes;
  for (const poolgrad::TraceEvent& event : pool.trace().events) bytes[event.kind] += event.size;
  EXPECT_EQ(bytes[TraceKind::segment_map], 3 * page);
  EXPECT_EQ(bytes[TraceKind::segment_unmap], 3 * page);
  EXPECT_EQ(bytes[TraceKind::allocate], 3 * page);
}

TEST_P(TraceRecordingTest, KeepsTheNewestEventsAndCountsTheOthers) {
  CachingAllocator pool(memory());
  deallocate(pool, allocate(pool, 1000), 1000);
  pool.start_trace(8);
  for (int i = 0; i < 10; ++i) deallocate(pool, allocate(pool, 1000), 1000);
  const Trace trace = pool.trace();
  EXPECT_EQ(trace.lost, 12u);
  EXPECT_EQ(trace.events.size(), 12u) << "four frees stand for two events each";
  EXPECT_THROW(pool.start_trace(0), ValueError);
}

TEST_P(TraceRecordingTest, StopsAndStartsAgain) {
  CachingAllocator pool(memory());
  EXPECT_TRUE(pool.trace().events.empty());
  pool.start_trace();
  void* block = allocate(pool, 1000);
  pool.begin_step();
  pool.stop_trace();
  EXPECT_FALSE(pool.tracing());
  const std::size_t events = pool.trace().events.size();
  EXPECT_GE(events, 2u);
  deallocate(pool, block, 1000);
  pool.begin_step();
  EXPECT_EQ(pool.trace().events.size(), events);
  const auto live = [](const Trace& trace) {
    return std::ranges::count(trace.blocks, BlockState::live, &BlockSnapshot::state);
  };
  EXPECT_EQ(live(pool.trace()), 1) << "the blocks are those of the end of the recording";
  pool.start_trace();
  EXPECT_TRUE(pool.trace().events.empty());
  EXPECT_EQ(live(pool.trace()), 0);
}

std::vector<std::uint64_t> numbers_of_allocations(const Trace& trace) {
  std::vector<std::uint64_t> numbers;
  for (const poolgrad::TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::allocate) numbers.push_back(event.allocation);
  }
  return numbers;
}

TEST_P(TraceRecordingTest, NumbersWorkspacesSeparately) {
  CachingAllocator pool(memory());
  pool.start_trace();
  void* scratch = allocate(pool, 500, Category::workspace);
  void* tensor = allocate(pool, 500);
  const std::vector<std::uint64_t> numbers = numbers_of_allocations(pool.trace());
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_NE(numbers[0], 0u);
  EXPECT_EQ(numbers[1], 1u);
  deallocate(pool, scratch, 500);
  deallocate(pool, tensor, 500);
}

// Constructed before its thread's caches, so it is destroyed after them and allocates without a cache.
struct LastWords {
  CachingAllocator* pool = nullptr;
  ~LastWords() {
    if (pool != nullptr) deallocate(*pool, allocate(*pool, 1000), 1000);
  }
};
thread_local LastWords last_words;

TEST_P(TraceRecordingTest, GivesEachAllocationItsOwnNumber) {
  CachingAllocator pool(memory());
  pool.start_trace();
  std::thread([&] {
    last_words.pool = &pool;
    deallocate(pool, allocate(pool, 1000), 1000);
  }).join();
  const std::vector<std::uint64_t> numbers = numbers_of_allocations(pool.trace());
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_NE(numbers[0], numbers[1]);
}

TEST(TraceRecording, ContinuesWhenASimulatedDeviceIsReconfigured) {
  configure_simulated_device(21, 8 * page);
  CachingAllocator& pool = allocator_for(Device::parse("sim:21"));
  pool.start_trace();
  deallocate(pool, allocate(pool, 1000), 1000);
  pool.reset_sequence_hash();
  const std::uint64_t hash = pool.sequence_hash();
  configure_simulated_device(21, 16 * page);
  EXPECT_EQ(pool.sequence_hash(), hash) << "as new";
  deallocate(pool, allocate(pool, 1000), 1000);
  EXPECT_THAT(numbers_of_allocations(pool.trace()), ElementsAre(1u, 2u));
  pool.stop_trace();
}

TEST_P(TraceRecordingTest, MergesExitedThreads) {
  CachingAllocator pool(memory());
  pool.start_trace();
  void* handed_over = nullptr;
  std::thread([&] { handed_over = allocate(pool, 1000); }).join();
  std::thread([&] { deallocate(pool, handed_over, 1000); }).join();
  deallocate(pool, allocate(pool, 2000), 2000);
  const Trace trace = pool.trace();
  std::vector<TraceKind> blocks;
  for (const poolgrad::TraceEvent& event : trace.events) {
    if (event.address == reinterpret_cast<std::uintptr_t>(handed_over) && event.size == 1000)
      blocks.push_back(event.kind);
  }
  EXPECT_THAT(blocks, ElementsAre(TraceKind::allocate, TraceKind::free_requested, TraceKind::free_completed));
  EXPECT_TRUE(std::ranges::is_sorted(trace.events, {}, &poolgrad::TraceEvent::time));
}

TEST_P(TraceRecordingTest, StampsEventsWithTheTicketOfTheirStream) {
  CachingAllocator pool(memory());
  deallocate(pool, allocate(pool, 1000), 1000);
  deallocate(pool, allocate(pool, 1000), 1000);
  pool.start_trace();
  deallocate(pool, allocate(pool, 1000), 1000);
  pool.order(stream_of(pool, 1), stream_of(pool));  // an event on stream 0: a new ticket
  deallocate(pool, allocate(pool, 1000), 1000);
  std::vector<std::uint64_t> tickets;
  for (const poolgrad::TraceEvent& event : pool.trace().events) {
    if (event.kind == TraceKind::allocate) tickets.push_back(event.ticket);
  }
  ASSERT_EQ(tickets.size(), 2u);
  EXPECT_EQ(tickets[1], tickets[0] + 1);
}

TEST_P(TraceRecordingTest, NamesTheStreamsOfEvents) {
  CachingAllocator pool(memory(), {.trace = 1000});
  for (const std::uint64_t index : {1u, 3u, 2u}) {  // in another order than below
    const Stream stream = stream_of(pool, index);
    pool.deallocate(pool.allocate(1000, 64, stream), 1000, 64, stream);
  }
  pool.start_trace();
  pool.begin_step();
  pool.order(stream_of(pool, 1), stream_of(pool, 2));
  EXPECT_THROW(pool.allocate(std::size_t{1} << 40, 64, stream_of(pool, 3)), OutOfMemoryError);
  pool.deallocate(pool.allocate(3 * page, 64, stream_of(pool, 3)), 3 * page, 64, stream_of(pool, 3));
  pool.trim();
  const Trace trace = pool.trace();
  std::map<TraceKind, std::set<std::uint64_t>> streams;
  for (const poolgrad::TraceEvent& event : trace.events) {
    if (names_stream(event.kind)) {
      streams[event.kind].insert(trace.streams.at(event.stream));
    } else {
      EXPECT_EQ(event.stream, 0u) << to_string(event.kind);
    }
    if (event.kind == TraceKind::stream_order) {
      EXPECT_EQ(trace.streams.at(event.address), 2u);
    }
  }
  EXPECT_EQ(streams[TraceKind::stream_order], std::set<std::uint64_t>{1});
  EXPECT_EQ(streams[TraceKind::stage], std::set<std::uint64_t>{3});
  EXPECT_EQ(streams[TraceKind::out_of_memory], std::set<std::uint64_t>{3});
  EXPECT_EQ(streams[TraceKind::allocate], std::set<std::uint64_t>{3});
}

TEST_P(TraceRecordingTest, NamesItsSettings) {
  CachingAllocator pool(memory(), {.budget = 64 * page, .trace = 100});
  EXPECT_EQ(pool.trace().settings, "budget:134217728,trace:100");
  EXPECT_EQ(pool.config().budget, 64 * page);
}

}  // namespace
}  // namespace poolgrad::testing
