#include "allocator/lab/formats/trace_window.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"

namespace poolgrad {
namespace {

using namespace testing_support;

// The live, pending and committed addresses after the first `count` events of a trace that starts empty.
struct Oracle {
  std::map<std::uint64_t, std::uint64_t> live, pending;  // address -> request
  std::uint64_t committed = 0;

  Oracle(const Trace& trace, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const TraceEvent& event = trace.events[i];
      if (event.kind == TraceKind::allocate) live[event.address] = event.size;
      if (event.kind == TraceKind::free_requested) pending.insert(live.extract(event.address));
      if (event.kind == TraceKind::free_completed) pending.erase(event.address);
      if (event.kind == TraceKind::segment_map) committed += event.size;
      if (event.kind == TraceKind::segment_unmap) committed -= event.size;
    }
  }
};

std::map<std::uint64_t, std::uint64_t> blocks_in(const std::vector<BlockSnapshot>& blocks, BlockState state) {
  std::map<std::uint64_t, std::uint64_t> found;
  for (const BlockSnapshot& block : blocks)
    if (block.state == state) found[block.address] = block.requested;
  return found;
}

void expect_tiles(const std::vector<BlockSnapshot>& blocks) {
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    const std::uint64_t end = blocks[i - 1].address + blocks[i - 1].size;
    ASSERT_LE(end, blocks[i].address);
    ASSERT_TRUE(blocks[i].window != blocks[i - 1].window || end == blocks[i].address) << "a gap inside a window";
  }
}

TEST(CutTrace, LeavesTheWholeTraceUnchanged) {
  const Trace trace = synthetic_trace(seed_or(1), 3000);
  const WindowedTrace cut = cut_trace(trace);
  EXPECT_EQ(cut.contradictions, 0u);
  EXPECT_TRUE(cut.before.empty());
  EXPECT_EQ(cut.reserved_before, 0u);
  expect_same_trace(cut.trace, trace);
}

TEST(CutTrace, FindsTheStateAtBothEndsByUndoingEvents) {
  const std::uint64_t seed = seed_or(2);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    const Trace trace = synthetic_trace(random(), 1 + random() % 2000);
    const std::size_t a = random() % (trace.events.size() + 1), b = random() % (trace.events.size() + 1);
    const std::size_t from = std::min(a, b), to = std::max(a, b);
    // A ring that has lost events before `from` gives the same answers.
    const std::size_t lost = random() % (from + 1);
    const WindowedTrace cut = cut_trace(without_beginning(trace, lost), {.from = from - lost, .to = to - lost});

    ASSERT_EQ(cut.contradictions, 0u);
    ASSERT_EQ(cut.trace.lost, from);
    ASSERT_EQ(cut.trace.events, std::vector<TraceEvent>(trace.events.begin() + static_cast<std::ptrdiff_t>(from),
                                                        trace.events.begin() + static_cast<std::ptrdiff_t>(to)));
    const Oracle begin(trace, from), end(trace, to);
    ASSERT_EQ(blocks_in(cut.before, BlockState::live), begin.live);
    ASSERT_EQ(blocks_in(cut.before, BlockState::pending), begin.pending);
    ASSERT_EQ(cut.reserved_before, begin.committed);
    ASSERT_EQ(blocks_in(cut.trace.blocks, BlockState::live), end.live);
    ASSERT_EQ(blocks_in(cut.trace.blocks, BlockState::pending), end.pending);
    std::uint64_t committed = 0;
    for (const BlockSnapshot& block : cut.trace.blocks)
      if (block.state != BlockState::uncommitted) committed += block.size;
    ASSERT_EQ(committed, end.committed);
    expect_tiles(cut.trace.blocks);
  }
}

TEST(CutTrace, BlocksAtTheEndHaveTheTagsOfTheirEvents) {
  const Trace trace = synthetic_trace(3, 1500);
  const Trace cut = cut_trace(trace, {.to = 700}).trace;
  std::map<std::uint64_t, const TraceEvent*> latest;
  for (const TraceEvent& event : cut.events)
    if (event.kind == TraceKind::allocate) latest[event.address] = &event;
  for (const BlockSnapshot& block : cut.blocks) {
    if (block.state != BlockState::live) continue;
    const TraceEvent& event = *latest.at(block.address);
    EXPECT_EQ(block.number, event.allocation);
    EXPECT_EQ(block.tag.category, event.category);
    EXPECT_EQ(block.tag.scope, event.scope);
    EXPECT_EQ(block.size, event.size + event.slack);
  }
}

TEST(CutTrace, OmitsAllEventsOfSmallRequestsThatEndInside) {
  const Trace trace = synthetic_trace(4, 3000);
  const WindowedTrace cut = cut_trace(trace, {.from = 500, .min_size = 4096});
  std::map<std::uint64_t, int> events_of;
  for (const TraceEvent& event : cut.trace.events)
    if (event.allocation != 0) ++events_of[event.allocation];
  std::map<std::uint64_t, bool> ends;
  for (std::size_t i = 500; i < trace.events.size(); ++i)
    if (trace.events[i].kind == TraceKind::free_completed) ends[trace.events[i].allocation] = true;
  std::map<std::uint64_t, int> expected;
  for (std::size_t i = 500; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.allocation != 0 && (event.size >= 4096 || !ends[event.allocation])) ++expected[event.allocation];
  }
  EXPECT_EQ(events_of, expected);
  EXPECT_LT(cut.trace.events.size(), trace.events.size() - 500);
  for (const BlockSnapshot& block : cut.before)
    EXPECT_TRUE(block.requested >= 4096 || !ends[block.number]) << block.requested;
}

TEST(CutTrace, OmitsContradictoryEvents) {
  const Trace good = synthetic_trace(5, 1000);
  const auto expect_one_left_out = [&](Trace trace, const char* what) {
    const WindowedTrace cut = cut_trace(trace);
    EXPECT_GE(cut.contradictions, 1u) << what;
    EXPECT_EQ(cut_trace(cut.trace).contradictions, 0u) << what;
  };
  std::size_t live = 0, freed = 0, mapped = 0;
  std::map<std::uint64_t, std::size_t> allocations;
  for (std::size_t i = 0; i < good.events.size(); ++i) {
    if (good.events[i].kind == TraceKind::segment_map) mapped = i;
    if (good.events[i].kind == TraceKind::free_completed) freed = i;
    if (good.events[i].kind == TraceKind::allocate) allocations[good.events[i].allocation] = i;
  }
  for (const BlockSnapshot& block : good.blocks)
    if (block.state == BlockState::live) live = allocations[block.number];

  Trace trace = good;
  trace.events.push_back(good.events[live]);
  expect_one_left_out(trace, "a block allocated over a live one");
  trace = good;
  trace.events.insert(trace.events.begin() + static_cast<std::ptrdiff_t>(freed), good.events[freed]);
  expect_one_left_out(trace, "a block freed twice");
  trace = good;
  trace.events.push_back(good.events[mapped]);
  expect_one_left_out(trace, "pages mapped twice");
  trace = good;
  trace.events.push_back(good.events[freed]);
  trace.events.back().address = 0x1000;
  expect_one_left_out(trace, "a block outside of all pages");
  trace = good;
  trace.events.push_back(good.events[freed]);
  trace.events.back().size = UINT64_MAX;
  expect_one_left_out(trace, "a block that wraps around");
  trace = good;
  TraceEvent within = good.events[live];
  within.address += within.size / 2;
  within.size = 1, within.slack = 0;
  within.kind = TraceKind::free_completed;
  trace.events.push_back(within);
  expect_one_left_out(trace, "a block within a live one");
  trace = good;
  trace.events.push_back({});
  trace.events.back().kind = static_cast<TraceKind>(99);
  expect_one_left_out(trace, "an unknown kind");
}

TEST(CutTrace, OmitsPagesMappedUnderALiveBlock) {
  constexpr std::uint64_t at = 2 << 20;
  Trace trace;
  trace.streams = {0};
  trace.scopes = {""};
  trace.locations = {{}};
  const auto add = [&](TraceKind kind, std::uint64_t size) {
    trace.events.push_back({.time = trace.events.size(), .address = at, .size = size, .kind = kind});
  };
  add(TraceKind::allocate, 64);
  add(TraceKind::segment_map, at);
  add(TraceKind::free_requested, 64);
  add(TraceKind::free_completed, 64);
  trace.blocks = {{.address = at, .size = at, .state = BlockState::free}};
  const WindowedTrace cut = cut_trace(trace);
  EXPECT_GE(cut.contradictions, 1u);
  EXPECT_EQ(cut_trace(cut.trace).contradictions, 0u);
}

TEST(CutTrace, PutsIndicesAndTimesInOrder) {
  Trace trace;
  trace.events.resize(2);
  trace.events[0].kind = trace.events[1].kind = TraceKind::step;
  trace.events[0].time = 9;
  trace.events[1].time = 4;
  trace.events[1].stream = trace.events[1].scope = 77;
  trace.events[1].location = UINT64_MAX;
  trace.events[1].category = static_cast<Category>(200);
  const Trace cut = cut_trace(trace).trace;
  EXPECT_EQ(cut.events[1].time, 9u);
  EXPECT_EQ(cut.events[1].stream, 0u);
  EXPECT_EQ(cut.events[1].scope, 0u);
  EXPECT_EQ(cut.events[1].location, 0u);
  EXPECT_EQ(cut.events[1].category, Category::unknown);
  EXPECT_EQ(cut.streams.size(), 1u);
  EXPECT_EQ(cut.scopes.size(), 1u);
  EXPECT_EQ(cut.locations.size(), 1u);
}

TEST(CutTrace, OmitsContradictoryBlocksAtTheEnd) {
  Trace trace;
  const auto add = [&](std::uintptr_t address, std::size_t size, BlockState state) {
    BlockSnapshot& block = trace.blocks.emplace_back();
    block.address = address;
    block.size = size;
    block.state = state;
  };
  add(0x2000, 0x1000, BlockState::live);
  add(0x2800, 0x1000, BlockState::free);  // overlaps
  add(0x9000, 0, BlockState::free);
  add(UINTPTR_MAX - 10, 100, BlockState::live);  // wraps around
  const Trace cut = cut_trace(trace).trace;
  ASSERT_EQ(cut.blocks.size(), 1u);
  EXPECT_EQ(cut.blocks[0].address, 0x2000u);
}

TEST(CutTrace, AcceptsAnyWindowOfAnyTrace) {
  EXPECT_TRUE(cut_trace({}).trace.events.empty());
  const Trace trace = synthetic_trace(6, 10);
  EXPECT_TRUE(cut_trace(trace, {.from = 7, .to = 3}).trace.events.empty());
  EXPECT_TRUE(cut_trace(trace, {.from = SIZE_MAX}).trace.events.empty());
}

}  // namespace
}  // namespace poolgrad
