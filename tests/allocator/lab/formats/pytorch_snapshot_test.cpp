// A written memory snapshot gives the same trace when it is read back. check_snapshot.py checks the rules of viewers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string encoded(const Trace& trace, SnapshotEncoding encoding, const TraceWindow& window = {}) {
  const WindowedTrace cut = cut_trace(trace, window);
  return encode_pytorch_snapshot(std::span(&cut, 1), encoding);
}

Trace read_one(const std::string& bytes) {
  std::vector<Trace> traces = decode_pytorch_snapshot(bytes, "file");
  EXPECT_THAT(traces, SizeIs(1));
  return traces.empty() ? Trace{} : std::move(traces[0]);
}

// Viewers undo the entries from the last to the first, as cut_trace() does.
std::size_t contradictions_of(const std::string& bytes) {
  std::size_t contradictions = 0;
  for (const Trace& trace : decode_pytorch_snapshot(bytes, "file")) contradictions += cut_trace(trace).contradictions;
  return contradictions;
}

// Returns the events that the format can hold.
std::vector<TraceEvent> shown(const Trace& trace) {
  std::vector<TraceEvent> events;
  for (const TraceEvent& event : trace.events)
    if (event.kind != TraceKind::stage && event.kind != TraceKind::stream_use &&
        event.kind != TraceKind::stream_order && event.kind != TraceKind::step)
      events.push_back(event);
  return events;
}

TEST(PytorchSnapshot, HasNoContradictionForAnyPartOfATrace) {
  const std::uint64_t seed = seed_or(1);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    Trace trace = synthetic_trace(random(), random() % 1500, {.windows = 1 + random() % 4, .delayed = 0.3});
    trace = without_beginning(trace, random() % (trace.events.size() + 1));
    const TraceWindow window{.from = random() % 300, .to = random() % 1800, .min_size = random() % 3 * 3000};
    for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json})
      ASSERT_EQ(contradictions_of(encoded(trace, encoding, window)), 0u);
  }
}

TEST(PytorchSnapshot, RoundTripsItsEvents) {
  const Trace trace = synthetic_trace(seed_or(2), 3000);
  for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json}) {
    const Trace back = read_one(encoded(trace, encoding));
    const std::vector<TraceEvent>& got = back.events;
    const std::vector<TraceEvent> wanted = shown(trace);
    ASSERT_EQ(got.size(), wanted.size());
    const std::uint64_t first_us = wanted.front().time / 1000;
    EXPECT_EQ(back.device, (Device{DeviceType::cuda, trace.device.index}));
    EXPECT_EQ(back.start_us, trace.start_us + first_us);
    for (std::size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE("event " + std::to_string(i));
      ASSERT_EQ(got[i].kind, wanted[i].kind);
      ASSERT_EQ(got[i].time, (wanted[i].time / 1000 - first_us) * 1000);
      ASSERT_EQ(got[i].size, wanted[i].size);
      ASSERT_EQ(got[i].address, wanted[i].address);
      ASSERT_EQ(back.scopes[got[i].scope], trace.scopes[wanted[i].scope]);
      ASSERT_EQ(got[i].category, wanted[i].category);
      if (wanted[i].kind == TraceKind::segment_map || wanted[i].kind == TraceKind::segment_unmap) continue;
      ASSERT_EQ(back.streams[got[i].stream], trace.streams[wanted[i].stream]);
      ASSERT_EQ(back.locations[got[i].location], trace.locations[wanted[i].location]);
      ASSERT_EQ(got[i].allocation, wanted[i].allocation);
    }
  }
}

TEST(PytorchSnapshot, RoundTripsTheBlocksAtTheEnd) {
  const Trace trace = synthetic_trace(3, 2000);
  const Trace back = read_one(encoded(trace, SnapshotEncoding::pickle));
  std::vector<BlockSnapshot> expected;
  for (const BlockSnapshot& block : trace.blocks)
    if (block.state != BlockState::uncommitted) expected.push_back(block);
  ASSERT_EQ(back.blocks.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE("block " + std::to_string(i));
    ASSERT_EQ(back.blocks[i].address, expected[i].address);
    ASSERT_EQ(back.blocks[i].size, expected[i].size);
    ASSERT_EQ(back.blocks[i].state, expected[i].state);
    ASSERT_EQ(back.blocks[i].requested, expected[i].requested);
    ASSERT_EQ(back.blocks[i].number, expected[i].number);
    ASSERT_EQ(back.blocks[i].tag.category, expected[i].tag.category);
    ASSERT_EQ(back.scopes[back.blocks[i].tag.scope], trace.scopes[expected[i].tag.scope]);
  }
}

TEST(PytorchSnapshot, PickleAndJsonHaveEqualContents) {
  const Trace trace = without_beginning(synthetic_trace(4, 2500), 1000);
  expect_same_trace(read_one(encoded(trace, SnapshotEncoding::pickle)),
                    read_one(encoded(trace, SnapshotEncoding::json)));
}

TEST(PytorchSnapshot, NumbersEarlierBlocksFirst) {
  const Trace whole = synthetic_trace(5, 2000);
  const Trace trace = without_beginning(whole, 900);
  const WindowedTrace cut = cut_trace(trace);
  const Trace back = read_one(encoded(trace, SnapshotEncoding::pickle));
  EXPECT_EQ(back.lost, 1u) << "the format has no number";
  std::map<std::uint64_t, bool> seen;
  std::uint64_t next = cut.before.size();
  for (const TraceEvent& event : back.events) {
    if (event.kind == TraceKind::allocate) {
      EXPECT_EQ(event.allocation, ++next);
    } else if (event.kind == TraceKind::free_requested) {
      EXPECT_GE(event.allocation, 1u);
      EXPECT_FALSE(std::exchange(seen[event.allocation], true)) << "freed twice";
    }
  }
}

TEST(PytorchSnapshot, KeepsTheTimeThatABlockIsPending) {
  const Trace trace = synthetic_trace(6, 2000, {.delayed = 1.0});
  const Trace back = read_one(encoded(trace, SnapshotEncoding::pickle));
  std::map<std::uint64_t, std::uint64_t> requested;
  std::size_t gaps = 0;
  for (std::size_t i = 0; i < back.events.size(); ++i) {
    const TraceEvent& event = back.events[i];
    if (event.kind == TraceKind::free_requested) requested[event.allocation] = i;
    if (event.kind == TraceKind::free_completed && requested.at(event.allocation) + 1 < i) ++gaps;
  }
  EXPECT_GT(gaps, 100u);
}

TEST(PytorchSnapshot, HoldsOneTraceForEachDevice) {
  std::vector<WindowedTrace> traces(2);
  Trace first = synthetic_trace(7, 400), second = synthetic_trace(8, 300);
  first.device = {DeviceType::cuda, 3};
  second.device = {DeviceType::cpu, 0};
  traces[0] = cut_trace(first);
  traces[1] = cut_trace(second);
  for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json}) {
    const std::string bytes = encode_pytorch_snapshot(traces, encoding);
    const std::vector<Trace> back = decode_pytorch_snapshot(bytes, "file");
    ASSERT_THAT(back, SizeIs(2));
    EXPECT_EQ(back[0].device, (Device{DeviceType::cuda, 0}));
    EXPECT_EQ(back[1].device, first.device);
    EXPECT_EQ(back[0].events.size(), shown(second).size());
    EXPECT_EQ(back[1].events.size(), shown(first).size());
    EXPECT_EQ(contradictions_of(bytes), 0u);
  }
  traces[1].trace.device = {DeviceType::sim, 3};
  EXPECT_EQ(error_of<ValueError>([&] { encode_pytorch_snapshot(traces, SnapshotEncoding::json); }),
            "[write] two traces of one device index: cuda:3, sim:3");
}

TEST(PytorchSnapshot, AnEmptyTraceIsASnapshotToo) {
  for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json}) {
    const std::string bytes = encoded(Trace{}, encoding);
    EXPECT_EQ(contradictions_of(bytes), 0u);
    EXPECT_THAT(read_one(bytes).events, IsEmpty());
  }
}

TEST(PytorchSnapshot, TextsOfAnyBytesCanBeRead) {
  Trace trace = synthetic_trace(9, 200);
  trace.scopes[1] = "caf\xc3\xa9 \"quoted\" \\ \n \xff broken";
  trace.locations[1].function = std::string(70'000, 'f');
  for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json}) {
    const Trace back = read_one(encoded(trace, encoding));
    EXPECT_THAT(back.scopes, ::testing::Contains("caf\xc3\xa9 \"quoted\" \\ \n \xef\xbf\xbd broken"));
    EXPECT_TRUE(std::any_of(back.locations.begin(), back.locations.end(),
                            [](const TraceLocation& location) { return location.function.size() == 70'000; }));
  }
}

// Blocks of a destroyed stream get a name beyond the numbers of a viewer.
TEST(PytorchSnapshot, KeepsStreamsWithLargeIdsApart) {
  Trace trace = synthetic_trace(12, 200);
  trace.streams = {7, (std::uint64_t{1} << 63) + 1, (std::uint64_t{1} << 63) + 2, 1};
  for (std::size_t i = 0; i < trace.events.size(); ++i) trace.events[i].stream = static_cast<std::uint32_t>(i % 4);
  for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json}) {
    const std::string bytes = encoded(trace, encoding);
    EXPECT_EQ(contradictions_of(bytes), 0u);
    EXPECT_THAT(read_one(bytes).streams, ::testing::IsSupersetOf({7u, 2u, 3u, 1u}));
  }
}

// The most that a small file can have. A linear search for each would take minutes.
TEST(PytorchSnapshot, KeepsManyStreamsWithLargeIdsApart) {
  constexpr std::uint32_t count = 300'000;
  Trace trace = synthetic_trace(13, 200);
  trace.streams.clear();
  for (std::uint64_t i = 0; i < count; ++i) trace.streams.push_back((std::uint64_t{1} << 60) + i);
  trace.streams[0] = 1;
  for (std::size_t i = 0; i < trace.events.size(); ++i)
    trace.events[i].stream = i % 2 == 0 ? 0 : count - 1 - static_cast<std::uint32_t>(i);
  const Trace back = read_one(encoded(trace, SnapshotEncoding::pickle));
  EXPECT_THAT(back.streams, ::testing::Contains(1u));
  EXPECT_THAT(back.streams, ::testing::Each(::testing::Le(count)));
}

// Returns the number of items in the longest batch of a list. Knows only the opcodes of the writer.
std::size_t longest_batch(std::string_view pickle) {
  const std::map<char, std::size_t> pushes = {{'}', 0}, {']', 0}, {'\x88', 0}, {'\x89', 0}, {'K', 1}, {'M', 2},
                                              {'J', 4}, {'G', 8}, {'h', 1},    {'j', 4},    {'X', 4}, {'\x8a', 1}};
  std::vector<std::size_t> marks;
  std::size_t height = 0, longest = 0;
  std::size_t at = 2;
  for (; pickle.at(at) != '.'; ++at) {
    const char opcode = pickle[at];
    if (const auto push = pushes.find(opcode); push != pushes.end()) {
      ++height;
      if (opcode == '\x8a') at += static_cast<unsigned char>(pickle.at(at + 1));
      if (opcode == 'X')
        for (std::size_t byte = 0, start = at; byte < 4; ++byte)
          at += std::size_t{static_cast<unsigned char>(pickle.at(start + 1 + byte))} << (8 * byte);
      at += push->second;
    } else if (opcode == '(') {
      marks.push_back(height);
    } else if (opcode == 'e' || opcode == 'u') {
      if (opcode == 'e') longest = std::max(longest, height - marks.at(marks.size() - 1));
      height = marks.at(marks.size() - 1);
      marks.pop_back();
    } else if (opcode == '\x86') {
      --height;
    } else if (opcode == 'q' || opcode == 'r') {
      at += opcode == 'q' ? 1 : 4;
    } else {
      ADD_FAILURE() << "unknown opcode " << static_cast<int>(opcode) << " at byte " << at;
      return SIZE_MAX;
    }
  }
  EXPECT_EQ(at + 1, pickle.size());
  return longest;
}

TEST(PytorchSnapshot, PicklesUseProtocolTwoAndShortBatches) {
  const std::string bytes = encoded(synthetic_trace(10, 5000), SnapshotEncoding::pickle);
  EXPECT_EQ(bytes.substr(0, 2), "\x80\x02");
  EXPECT_EQ(bytes.back(), '.');
  EXPECT_EQ(longest_batch(bytes), 1000u);
}

TEST(PytorchSnapshot, WritesFramesOnce) {
  Trace trace = synthetic_trace(11, 5000);
  const std::string bytes = encoded(trace, SnapshotEncoding::pickle);
  std::size_t count = 0;
  for (std::size_t at = bytes.find("nn/linear.cpp"); at != std::string::npos; at = bytes.find("nn/linear.cpp", at + 1))
    ++count;
  EXPECT_LE(count, trace.scopes.size() * trace.locations.size());
  EXPECT_LT(bytes.size(), 80 * trace.events.size());
}

}  // namespace
}  // namespace poolgrad
