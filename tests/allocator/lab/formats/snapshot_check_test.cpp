// The checker finds each kind of violation, and none in a snapshot that keeps the rules.
#include "allocator/lab/formats/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "allocator/error.h"
#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One segment of cudaMalloc and one of mapped pages; a live block, a pending one, and a freed one.
json good() {
  return json::parse(R"({
    "segments": [
      {"device": 0, "address": 4096, "total_size": 4096, "allocated_size": 1024, "active_size": 1536,
       "requested_size": 1500, "stream": 0, "segment_type": "large", "is_expandable": false, "frames": [], "blocks": [
         {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []},
         {"address": 5120, "size": 512, "requested_size": 500, "state": "active_pending_free", "frames": []},
         {"address": 5632, "size": 2560, "requested_size": 0, "state": "inactive", "frames": []}]},
      {"device": 0, "address": 65536, "total_size": 8192, "allocated_size": 0, "active_size": 0,
       "requested_size": 0, "stream": 0, "segment_type": "large", "is_expandable": true, "frames": [], "blocks": [
         {"address": 65536, "size": 8192, "requested_size": 0, "state": "inactive", "frames": []}]}],
    "device_traces": [[
      {"action": "segment_alloc", "addr": 4096, "size": 4096, "stream": 0, "time_us": 10, "frames": []},
      {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "time_us": 11,
       "frames": [{"name": "f", "filename": "a.py", "line": 3}]},
      {"action": "segment_map", "addr": 65536, "size": 4096, "stream": 0, "time_us": 12, "frames": []},
      {"action": "segment_map", "addr": 69632, "size": 4096, "stream": 0, "time_us": 13, "frames": []},
      {"action": "alloc", "addr": 68000, "size": 3000, "stream": 0, "time_us": 14, "frames": []},
      {"action": "free_requested", "addr": 68000, "size": 3000, "stream": 0, "time_us": 15, "frames": []},
      {"action": "free_completed", "addr": 68000, "size": 3000, "stream": 0, "time_us": 16, "frames": []},
      {"action": "segment_map", "addr": 131072, "size": 4096, "stream": 0, "time_us": 17, "frames": []},
      {"action": "segment_unmap", "addr": 131072, "size": 4096, "stream": 0, "time_us": 18, "frames": []},
      {"action": "segment_alloc", "addr": 262144, "size": 4096, "stream": 0, "time_us": 18, "frames": []},
      {"action": "segment_free", "addr": 262144, "size": 4096, "stream": 0, "time_us": 18, "frames": []},
      {"action": "alloc", "addr": 5120, "size": 500, "stream": 0, "time_us": 19, "frames": []},
      {"action": "free_requested", "addr": 5120, "size": 500, "stream": 0, "time_us": 20, "frames": []},
      {"action": "oom", "device_free": 77, "size": 5000, "stream": 0, "time_us": 21, "frames": []}
    ]],
    "allocator_settings": {}, "external_annotations": []})");
}

std::vector<std::string> check(const json& snapshot) { return check_snapshot(snapshot.dump(), "file"); }

/// Returns the first violation after `change`.
std::string violation(const std::function<void(json& snapshot)>& change) {
  json snapshot = good();
  change(snapshot);
  const std::vector<std::string> violations = check(snapshot);
  return violations.empty() ? "none" : violations.front();
}

json& block(json& snapshot, std::size_t index) { return snapshot["segments"][0]["blocks"][index]; }
json& entry(json& snapshot, std::size_t index) { return snapshot["device_traces"][0][index]; }
void erase_entry(json& snapshot, std::size_t index) { snapshot["device_traces"][0].erase(index); }

TEST(SnapshotCheck, FindsNothingInAValidSnapshot) { EXPECT_THAT(check(good()), IsEmpty()); }

TEST(SnapshotCheck, BlocksTileTheirSegment) {
  EXPECT_EQ(violation([](json& s) { block(s, 2)["size"] = 2048; }),
            "segments[0]: 'total_size' is not 3584, the sum over its blocks");
  EXPECT_EQ(violation([](json& s) { block(s, 1)["address"] = 5000; }),
            "segments[0].blocks[1]: it does not begin where the block before ends");
  EXPECT_EQ(violation([](json& s) { block(s, 2)["size"] = 0; }), "segments[0].blocks[2]: a block of 0 bytes");
}

TEST(SnapshotCheck, SizesAreSumsOverBlocks) {
  for (const char* key : {"allocated_size", "active_size", "requested_size"})
    EXPECT_THAT(violation([&](json& s) { s["segments"][0][key] = 7; }),
                HasSubstr("segments[0]: '" + std::string(key) + "' is not 1"));
  EXPECT_EQ(violation([](json& s) { block(s, 2)["requested_size"] = 1; }),
            "segments[0].blocks[2]: an inactive block with a requested_size");
  EXPECT_EQ(violation([](json& s) {
              block(s, 0)["requested_size"] = 1025;
              s["segments"][0]["requested_size"] = 1525;
            }),
            "segments[0].blocks[0]: requested_size is above size");
}

TEST(SnapshotCheck, SegmentsAreSortedAndApart) {
  EXPECT_EQ(violation([](json& s) { std::swap(s["segments"][0], s["segments"][1]); }),
            "segments[1]: segments are not in the order of addresses");
  EXPECT_EQ(violation([](json& s) {
              s["segments"][1]["address"] = 8000;
              s["segments"][1]["blocks"][0]["address"] = 8000;
            }),
            "segments[1]: segments overlap");
}

TEST(SnapshotCheck, StatesAreKnown) {
  EXPECT_EQ(violation([](json& s) { block(s, 2)["state"] = "free"; }), "segments[0].blocks[2]: unknown state 'free'");
  EXPECT_EQ(violation([](json& s) { block(s, 1)["state"] = "active_awaiting_free"; }), "none");
}

TEST(SnapshotCheck, KeysThatViewersReadAreThere) {
  for (const char* key : {"action", "addr", "size", "stream", "time_us"})
    EXPECT_EQ(violation([&](json& s) { entry(s, 1).erase(key); }),
              "[read] file: device_traces[0][1]: no '" + std::string(key) + "'");
  EXPECT_EQ(violation([](json& s) { entry(s, 13).erase("device_free"); }),
            "[read] file: device_traces[0][13]: no 'device_free'");
  EXPECT_EQ(violation([](json& s) { entry(s, 1)["frames"][0].erase("filename"); }),
            "[read] file: device_traces[0][1]: no 'filename'");
  EXPECT_EQ(violation([](json& s) { entry(s, 1)["size"] = -4; }),
            "[read] file: device_traces[0][1]: 'size' is not a whole number of 0 or more");
  for (const char* key : {"device", "address", "total_size", "stream", "segment_type", "blocks"})
    EXPECT_EQ(violation([&](json& s) { s["segments"][1].erase(key); }),
              "[read] file: segments[1]: no '" + std::string(key) + "'");
}

TEST(SnapshotCheck, NumbersFitIntoADouble) {
  EXPECT_EQ(violation([](json& s) { entry(s, 13)["device_free"] = std::uint64_t{1} << 60; }),
            "device_traces[0][13]: 'device_free' is above 2^53");
}

TEST(SnapshotCheck, TimeDoesNotRunBackwards) {
  EXPECT_EQ(violation([](json& s) { entry(s, 2)["time_us"] = 15; }),
            "device_traces[0][2]: time runs backwards behind it");
}

TEST(SnapshotCheck, APendingFreeHasABlockAtTheEnd) {
  EXPECT_EQ(violation([](json& s) { erase_entry(s, 6); }),
            "device_traces[0][5]: no free_completed follows, and no block waits there at the end");
  EXPECT_EQ(violation([](json& s) {
              block(s, 1)["state"] = "active_allocated";
              s["segments"][0]["allocated_size"] = 1536;
            }),
            "device_traces[0][12]: the block there is not waiting");
}

TEST(SnapshotCheck, AnAllocationEndsOrStays) {
  EXPECT_EQ(violation([](json& s) {
              erase_entry(s, 6);
              erase_entry(s, 5);
            }),
            "device_traces[0][4]: its block is neither freed later nor there at the end");
  EXPECT_EQ(violation([](json& s) { erase_entry(s, 12); }),
            "device_traces[0][11]: its block waits without a free_requested");
  EXPECT_EQ(violation([](json& s) { s["device_traces"][0].insert(s["device_traces"][0].begin() + 5, entry(s, 4)); }),
            "device_traces[0][4]: its block is neither freed later nor there at the end");
}

TEST(SnapshotCheck, AFreedBlockIsNotThereAfterwards) {
  EXPECT_EQ(violation([](json& s) { entry(s, 6)["addr"] = 4096; }), "device_traces[0][6]: a block is there afterwards");
  EXPECT_EQ(violation([](json& s) {
              for (const std::size_t i : {4u, 5u, 6u}) entry(s, i)["addr"] = 4600;
            }),
            "device_traces[0][6]: a live block overlaps it");
}

TEST(SnapshotCheck, BlocksLieInSegments) {
  EXPECT_EQ(violation([](json& s) {
              for (const std::size_t i : {4u, 5u, 6u}) entry(s, i)["addr"] = 200'000;
            }),
            "device_traces[0][6]: the block lies in no segment");
  EXPECT_EQ(violation([](json& s) {
              for (const std::size_t i : {4u, 5u, 6u}) entry(s, i)["addr"] = 72'000;
            }),
            "device_traces[0][6]: the block lies in no segment");
  EXPECT_EQ(violation([](json& s) {
              std::swap(entry(s, 0), entry(s, 1)), std::swap(entry(s, 0)["time_us"], entry(s, 1)["time_us"]);
            }),
            "device_traces[0][1]: a block is in it before it exists");
}

TEST(SnapshotCheck, SegmentsComeAndGoAsTheySay) {
  EXPECT_EQ(violation([](json& s) { entry(s, 0)["size"] = 2048; }),
            "device_traces[0][0]: no segment of that address and size follows");
  EXPECT_EQ(violation([](json& s) { erase_entry(s, 10); }),
            "device_traces[0][9]: no segment of that address and size follows");
  EXPECT_EQ(violation([](json& s) { erase_entry(s, 8); }), "device_traces[0][7]: no segment contains it afterwards");
  EXPECT_EQ(violation([](json& s) { entry(s, 8)["addr"] = 65536 + 4096; }),
            "device_traces[0][8]: it is still part of a segment afterwards");
  // Viewers join neighbors of one stream only.
  EXPECT_EQ(violation([](json& s) {
              entry(s, 3)["addr"] = 65536, entry(s, 3)["size"] = 8192;
              entry(s, 2) = entry(s, 3);
              entry(s, 2)["time_us"] = 12;
            }),
            "device_traces[0][2]: no segment contains it afterwards");
}

TEST(SnapshotCheck, ActionsAreKnown) {
  EXPECT_EQ(violation([](json& s) { entry(s, 0)["action"] = "free"; }), "device_traces[0][0]: unknown action 'free'");
  EXPECT_EQ(violation([](json& s) {
              json note = entry(s, 1);
              note["action"] = "annotate";
              s["device_traces"][0].insert(s["device_traces"][0].begin() + 2, note);
            }),
            "none");
}

TEST(SnapshotCheck, OldViewersNeedTheCategoryUnknown) {
  EXPECT_EQ(violation([](json& s) { entry(s, 1)["category"] = "parameter"; }),
            "device_traces: entries have categories, but none has 'unknown'");
  EXPECT_EQ(violation([](json& s) { entry(s, 1)["category"] = "parameter", entry(s, 2)["category"] = "unknown"; }),
            "none");
}

TEST(SnapshotCheck, PicklesAreOfAProtocolThatViewersKnow) {
  std::string bytes = encode_pytorch_snapshot(synthetic_trace(1, 100), SnapshotEncoding::pickle);
  EXPECT_THAT(check_snapshot(bytes, "file"), IsEmpty());
  bytes[1] = 5;
  EXPECT_THAT(check_snapshot(bytes, "file"), ElementsAre("snapshot: pickle protocol 5, viewers know 2 to 4"));
}

TEST(SnapshotCheck, BatchesOfAPickleAreShort) {
  const auto pickle = [](std::size_t items) {
    std::string bytes = "\x80\x02}(X";
    const auto text = [](const std::string& value) {
      return std::string{static_cast<char>(value.size()), '\0', '\0', '\0'} + value;
    };
    bytes += text("segments") + "]X" + text("device_traces") + "](";
    for (std::size_t i = 0; i < items; ++i) bytes += ']';
    return bytes + "eu.";
  };
  EXPECT_THAT(check_snapshot(pickle(1000), "file"), IsEmpty());
  EXPECT_THAT(check_snapshot(pickle(1001), "file"), Contains("snapshot: a batch of 1001 items, at most 1000"));
}

TEST(SnapshotCheck, StopsAfterAHundred) {
  json snapshot = good();
  snapshot["device_traces"][0] = std::vector<json>(500, json::object());
  EXPECT_EQ(check(snapshot).size(), 100u);
}

TEST(SnapshotCheck, RefusesOtherFiles) {
  EXPECT_THROW(check_snapshot("[]", "file"), FileError);
  EXPECT_THROW(check_snapshot("{}", "file"), FileError);
  EXPECT_THROW(check_snapshot("", "file"), FileError);
}

}  // namespace
}  // namespace poolgrad
