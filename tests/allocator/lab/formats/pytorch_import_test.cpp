// Snapshots written by Python (data/make_snapshots.py) become the traces that they describe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/lab/formats/trace_file.h"
#include "allocator/lab/replay/workload.h"
#include "tests/allocator/trace/trace_testing.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t base = 0x7F0A00000000, mib = 1 << 20, side = 0x55AA12345678;

std::string data(const std::string& name) { return std::string(POOLGRAD_TEST_DATA) + "/" + name; }

// Returns each event as "kind address-base size microseconds #number stream".
std::vector<std::string> told(const Trace& trace) {
  std::vector<std::string> lines;
  for (const TraceEvent& event : trace.events) {
    const std::uint64_t at = event.kind == TraceKind::out_of_memory ? event.address : event.address - base;
    lines.push_back(std::string(to_string(event.kind)) + " " + std::to_string(at) + " " + std::to_string(event.size) +
                    " " + std::to_string(event.time / 1000) + " #" + std::to_string(event.allocation) + " s" +
                    std::to_string(event.stream));
  }
  return lines;
}

void expect_native(const Trace& trace) {
  EXPECT_EQ(to_string(trace.device), "cuda:0");
  EXPECT_EQ(trace.start_us, 1000u);
  EXPECT_EQ(trace.lost, 0u);
  EXPECT_THAT(trace.streams, ElementsAre(0u, side));
  // Blocks 1 and 2 are older than the trace: one is freed first, the other never.
  EXPECT_THAT(
      told(trace),
      ElementsAre("free_requested 512 700 0 #1 s0", "free_completed 512 700 0 #1 s0", "allocate 512 1000 10 #3 s0",
                  "allocate 1536 2000 20 #4 s0", "segment_map 67108864 20971520 30 #0 s1",
                  "allocate 67108864 15728640 31 #5 s1", "free_requested 67108864 15728640 40 #5 s1",
                  "allocate 3584 100 41 #6 s0", "free_completed 67108864 15728640 50 #5 s1",
                  "free_requested 3584 100 51 #6 s0", "free_completed 3584 100 51 #6 s0",
                  "segment_map 134217728 2097152 52 #0 s0", "segment_unmap 134217728 2097152 53 #0 s0",
                  "out_of_memory 12345678 85899345920 54 #0 s0", "free_requested 1536 2000 60 #4 s0"));

  // The innermost Python frame, or else the innermost frame.
  const TraceLocation python{"/home/user/model.py", "forward", 12}, native{"conv.cpp", "cudnn::run", 7};
  EXPECT_EQ(trace.locations.at(trace.events[2].location), python);
  EXPECT_EQ(trace.locations.at(trace.events[5].location), native);
  EXPECT_THAT(trace.locations, SizeIs(3));
  EXPECT_EQ(trace.events[2].category, Category::parameter);
  EXPECT_EQ(trace.events[3].category, Category::temp);
  EXPECT_EQ(trace.events[14].category, Category::temp) << "a free has the category of its allocation";

  ASSERT_THAT(trace.blocks, SizeIs(5));
  const auto& blocks = trace.blocks;
  EXPECT_EQ(blocks[0].address, base);
  EXPECT_EQ(blocks[0].state, BlockState::live);
  EXPECT_EQ(blocks[0].requested, 400u);
  EXPECT_EQ(blocks[0].number, 2u);
  EXPECT_EQ(blocks[1].number, 3u);
  EXPECT_EQ(blocks[1].tag.category, Category::parameter);
  EXPECT_EQ(blocks[2].state, BlockState::pending);
  EXPECT_EQ(blocks[2].number, 4u);
  EXPECT_EQ(blocks[3].state, BlockState::free);
  EXPECT_EQ(blocks[3].address + blocks[3].size, base + 2 * mib);
  EXPECT_EQ(blocks[4].address, base + 64 * mib);
  EXPECT_EQ(blocks[4].stream, side);
  EXPECT_NE(blocks[4].window, blocks[3].window);
}

TEST(PytorchImport, ReadsNativeSegmentsOfEveryProtocol) {
  for (const char* name : {"native_protocol2.pickle", "native_protocol3.pickle", "native_protocol4.pickle",
                           "native_protocol5.pickle", "native.json"}) {
    SCOPED_TRACE(name);
    const std::vector<Trace> traces = load_traces(data(name));
    ASSERT_THAT(traces, SizeIs(1));
    expect_native(traces[0]);
  }
}

TEST(PytorchImport, FindsNoContradictionInSnapshotsOfPytorch) {
  for (const char* name : {"native_protocol4.pickle", "expandable.pickle", "legacy.pickle"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(cut_trace(load_trace(data(name))).contradictions, 0u);
  }
}

TEST(PytorchImport, FindsTheBeginningByRewinding) {
  const WindowedTrace cut = cut_trace(load_trace(data("native_protocol4.pickle")));
  ASSERT_THAT(cut.before, SizeIs(2));
  EXPECT_EQ(cut.before[0].address, base);
  EXPECT_EQ(cut.before[0].requested, 400u);
  EXPECT_EQ(cut.before[1].address, base + 512);
  EXPECT_EQ(cut.before[1].requested, 700u);
  EXPECT_EQ(cut.reserved_before, 2 * mib);
}

TEST(PytorchImport, ReadsExpandableSegments) {
  for (const char* name : {"expandable.pickle", "expandable.json"}) {
    SCOPED_TRACE(name);
    const std::vector<Trace> traces = load_traces(data(name));
    ASSERT_THAT(traces, SizeIs(1));
    EXPECT_EQ(to_string(traces[0].device), "cuda:1");
    EXPECT_EQ(traces[0].lost, 1u) << "the ring has overflowed";
    EXPECT_THAT(told(traces[0]), ElementsAre("segment_map 0 2097152 0 #0 s0", "segment_map 2097152 6291456 1 #0 s0",
                                             "allocate 0 2097152 2 #1 s0", "segment_map 8388608 2097152 3 #0 s0",
                                             "segment_unmap 4194304 4194304 4 #0 s0"));
    EXPECT_EQ(cut_trace(traces[0]).reserved_before, 0u);
  }
}

TEST(PytorchImport, ReadsOldListsOfSegments) {
  const std::vector<Trace> traces = load_traces(data("legacy.pickle"));
  ASSERT_THAT(traces, SizeIs(1));
  EXPECT_THAT(traces[0].events, IsEmpty());
  const auto& blocks = traces[0].blocks;
  ASSERT_THAT(blocks, SizeIs(3));
  EXPECT_EQ(blocks[0].requested, 1400u) << "of the newest entry of the history";
  EXPECT_EQ(blocks[1].state, BlockState::pending) << "by its old name";
  EXPECT_EQ(blocks[1].address, base + 1536);
  EXPECT_EQ(blocks[2].address + blocks[2].size, base + 4096);
}

// A snapshot of one device whose segment of 4096 bytes at address 4096 is free at the end.
Trace of_entries(const std::string& entries, const std::string& block = R"({"size": 4096, "state": "inactive"})",
                 const std::string& pool = "[0, 0]") {
  const std::string json = R"({"segments": [{"device": 0, "address": 4096, "total_size": 4096, "stream": 0,)"
                           R"("segment_pool_id": )" +
                           pool + R"(, "blocks": [)" + block + R"(]}], "device_traces": [[)" + entries + "]]}";
  return decode_pytorch_snapshot(json, "snapshot.json").at(0);
}

std::string scope_of(const Trace& trace, std::size_t event) { return trace.scopes.at(trace.events.at(event).scope); }

TEST(PytorchImport, NamesPrivatePoolsMetadataAndAnnotationsInTheScope) {
  const Trace trace = of_entries(
      R"({"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "pool_id": [0, 1],)"
      R"("user_metadata": "forward"},)"
      R"({"action": "annotate", "addr": 4096, "size": 512, "stream": 0, "time_us": 2, "user_metadata": "saved"},)"
      R"({"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 3},)"
      R"({"action": "free_completed", "addr": 4096, "size": 512, "stream": 0, "time_us": 3},)"
      R"({"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 4, "pool_id": [0, 0],)"
      R"("user_metadata": ""})",
      R"({"size": 4096, "requested_size": 512, "state": "active_allocated"})");
  ASSERT_THAT(trace.events, SizeIs(4));
  EXPECT_EQ(scope_of(trace, 0), "pool 0,1.forward.saved");
  EXPECT_EQ(scope_of(trace, 1), "pool 0,1.forward.saved") << "a free has the scope of its allocation";
  EXPECT_EQ(scope_of(trace, 3), "");
}

TEST(PytorchImport, AnnotatesBlocksFromBeforeTheRing) {
  const std::string annotate =
      R"({"action": "annotate", "addr": 4096, "size": 512, "stream": 0, "time_us": 2, "user_metadata": "saved"})";
  const std::string live = R"({"size": 4096, "requested_size": 512, "state": "active_allocated"})";
  const Trace kept = of_entries(annotate, live, "[3, 0]");
  EXPECT_EQ(kept.scopes.at(kept.blocks.at(0).tag.scope), "pool 3,0.saved");
  EXPECT_EQ(of_entries("", live, "[3, 0]").scopes.back(), "pool 3,0");
  const Trace freed =
      of_entries(annotate + R"(, {"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 3})");
  EXPECT_EQ(scope_of(freed, 0), "saved");
  const Trace own = of_entries(
      annotate +
      R"(, {"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 3, "pool_id": [3, 0]})");
  EXPECT_EQ(scope_of(own, 0), "pool 3,0.saved");
}

TEST(PytorchImport, FindsThePoolOfAnEntryWithoutOneByItsAddress) {
  const std::string free = R"({"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 3})";
  const Trace trace = of_entries(
      free +
          R"(, {"action": "alloc", "addr": 4608, "size": 512, "stream": 0, "time_us": 4, "user_metadata": "forward"},)"
          R"({"action": "alloc", "addr": 8192, "size": 512, "stream": 0, "time_us": 5})",
      R"({"size": 512, "state": "inactive"}, {"size": 3584, "requested_size": 512, "state": "active_allocated"})",
      "[3, 0]");
  EXPECT_EQ(scope_of(trace, 0), "pool 3,0");
  EXPECT_EQ(scope_of(trace, 1), "pool 3,0.forward");
  EXPECT_EQ(scope_of(trace, 2), "") << "behind the segment";
  EXPECT_EQ(trace.scopes.at(trace.blocks.at(1).tag.scope), "pool 3,0.forward");
  const std::string usual = R"({"action": "alloc", "addr": 4096, "size": 512, "time_us": 3, "pool_id": [0, 0]})";
  EXPECT_EQ(scope_of(of_entries(usual, R"({"size": 4096, "state": "inactive"})", "[3, 0]"), 0), "")
      << "entries of this file name their pools";
}

TEST(PytorchImport, ShowsAMetadataDictionaryAsJson) {
  const Trace trace = of_entries(R"({"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1,)"
                                 R"("user_metadata": {"phase": "forward", "step": 3, "parts": [1], "change": -2}})");
  EXPECT_EQ(scope_of(trace, 0), R"({"phase": "forward", "step": 3, "change": -2})");
}

TEST(PytorchImport, GivesALoneCompletedFreeItsRequest) {
  const Trace trace =
      of_entries(R"({"action": "free_completed", "addr": 4096, "size": 512, "stream": 0, "time_us": 3},)"
                 R"({"action": "alloc", "addr": 4096, "size": 600, "stream": 0, "time_us": 4},)"
                 R"({"action": "free_completed", "addr": 4096, "size": 600, "stream": 0, "time_us": 5})");
  std::vector<TraceKind> kinds;
  for (const TraceEvent& event : trace.events) kinds.push_back(event.kind);
  EXPECT_THAT(kinds, ElementsAre(TraceKind::free_requested, TraceKind::free_completed, TraceKind::allocate,
                                 TraceKind::free_requested, TraceKind::free_completed));
  EXPECT_EQ(workload_of(trace, "lone").peak_requested(), 600u);
  EXPECT_EQ(workload_of(trace, "lone").blocks, 2u) << "the first block is older than the ring";
  EXPECT_EQ(cut_trace(trace).contradictions, 0u);
}

TEST(PytorchImport, SkipsTheFramesOfTheUnwinder) {
  const Trace trace =
      of_entries(R"({"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": [)"
                 R"({"name": "torch::unwind::unwind", "filename": "??", "line": 0},)"
                 R"({"name": "torch::CapturedTraceback::gather", "filename": "??", "line": 0},)"
                 R"({"name": "at::empty", "filename": "empty.cpp", "line": 3}]})",
                 R"({"size": 4096, "requested_size": 512, "state": "active_allocated"})");
  EXPECT_EQ(trace.locations.at(trace.events.at(0).location).function, "at::empty");
}

}  // namespace
}  // namespace poolgrad
