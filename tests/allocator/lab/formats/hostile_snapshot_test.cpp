// Snapshots come from outside. For any bytes, reading ends with a trace or with a FileError that names the place, after
// work linear in the file's size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/trace/bytes.h"
#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal_of_read(const std::string& bytes) {
  return error_of<FileError>([&] { decode_pytorch_snapshot(bytes, "evil"); });
}

std::string pickle(const std::string& program) { return "\x80\x02" + program; }

std::string text(const std::string& value) {
  return 'X' + std::string{static_cast<char>(value.size()), '\0', '\0', '\0'} + value;
}

std::string u32(std::uint32_t value) {
  std::string bytes(4, '\0');
  for (unsigned i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

// Reads a file that may be damaged, and processes it as the programs do.
void use(const std::string& bytes) {
  for (const Trace& trace : decode_pytorch_snapshot(bytes, "evil")) {
    const WindowedTrace cut = cut_trace(trace);
    encode_pytorch_snapshot(std::span(&cut, 1), SnapshotEncoding::pickle);
  }
}

class Hostile : public ::testing::TestWithParam<const char*> {
 public:
  std::string bytes() const { return read_whole_file(std::string(POOLGRAD_TEST_DATA) + "/" + GetParam()); }
};

TEST_P(Hostile, ATruncatedFileIsAnErrorAtEveryLength) {
  const std::string whole = bytes();
  for (std::size_t size = 0; size < whole.size(); ++size)
    ASSERT_THAT(refusal_of_read(whole.substr(0, size)), StartsWith("[read] evil: byte ")) << size;
}

TEST_P(Hostile, DamagedFilesAreReadOrRefused) {
  const std::string whole = bytes();
  const std::uint64_t seed = seed_or(1);
  std::mt19937_64 random(seed);
  DamageCount count;
  const auto attempt = [&](const std::string& damaged) {
    try {
      use(damaged);
      ++count.accepted;
    } catch (const FileError&) {
      ++count.refused;
    }
  };
  for (std::size_t at = 0; at < whole.size(); ++at) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", byte " + std::to_string(at));
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    attempt(damaged);
  }
  for (int round = 0; round < 1500; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    std::string damaged = whole;
    for (std::size_t changes = 1 + random() % 8; changes > 0; --changes) {
      const std::size_t at = random() % damaged.size(), from = random() % damaged.size();
      const std::size_t length = 1 + random() % 20;
      switch (random() % 4) {
        case 0: damaged[at] = static_cast<char>(random()); break;
        case 1: damaged.erase(at, std::min(length, damaged.size() - 1)); break;
        case 2: damaged.insert(at, damaged.substr(from, length)); break;
        default: damaged.replace(at, length, damaged.substr(from, length)); break;
      }
    }
    attempt(damaged);
  }
  EXPECT_GT(count.accepted, 0);
  EXPECT_GT(count.refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, Hostile,
                         ::testing::Values("native_protocol2.pickle", "native_protocol4.pickle", "expandable.json",
                                           "legacy.pickle"),
                         [](const auto& format) {
                           std::string name = format.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(HostilePickle, OpcodesThatMakeObjectsAreNamedWithTheirPlace) {
  EXPECT_EQ(refusal_of_read(pickle("}(X\x01" + std::string(3, '\0') + "acos\nsystem\n.")),
            "[read] evil: byte 10: pickle opcode 0x63, which plain data does not need");
  for (const char opcode :
       {'c', 'R', 'b', 'i', 'o', '\x81', '\x92', '\x93', 'B',    'C',    '\x8e', '\x8d', 'P',    'Q', 'I',
        'L', 'F', 'S', 'V', '0', '1',    '2',    '\x8b', '\x8f', '\x90', '\x91', '\x96', '\x97', 'g', 'p'})
    EXPECT_THAT(refusal_of_read(pickle(std::string(1, opcode) + ".")), HasSubstr("byte 2: pickle opcode 0x"));
}

TEST(HostilePickle, ProtocolsAreTwoToFive) {
  EXPECT_THAT(refusal_of_read("\x80\x01}."), HasSubstr("pickle protocol 1, known are 2 to 5"));
  EXPECT_THAT(refusal_of_read("\x80\x06}."), HasSubstr("pickle protocol 6"));
}

TEST(HostilePickle, TheStackIsChecked) {
  for (const char* program : {"a.",
                              "s.",
                              "u.",
                              "e.",
                              "t.",
                              "l.",
                              "d.",
                              "\x85.",
                              "\x86.",
                              "\x87.",
                              ".",
                              "q\x01.",
                              "\x94.",
                              "K\x01"
                              "a.",
                              "K\x01K\x02"
                              "a.",
                              "K\x01K\x02K\x03s.",
                              "(K\x01u.",
                              "K\x01(e.",
                              "](K\x01u.",
                              "}(K\x01u.",
                              "(K\x01"
                              "d.",
                              "}(K\x01"
                              "a.",
                              "](.",
                              "((\x85."})
    EXPECT_THAT(refusal_of_read(pickle(program)), StartsWith("[read] evil: byte ")) << program;
}

TEST(HostilePickle, LengthsCannotExceedTheFile) {
  EXPECT_THAT(refusal_of_read(pickle("X\xff\xff\xff\xff")),
              AllOf(HasSubstr("byte 7"), HasSubstr("4294967295 bytes, 0")));
  EXPECT_THAT(refusal_of_read(pickle("\x8c\xff"
                                     "ab.")),
              HasSubstr("text needs 255 bytes, 3 are left"));
  EXPECT_THAT(refusal_of_read(pickle("\x8a\x09"
                                     "ab.")),
              HasSubstr("integer needs 9 bytes"));
}

TEST(HostilePickle, MemoNumbersMustHaveBeenSet) {
  EXPECT_THAT(refusal_of_read(pickle("h\x05.")), HasSubstr("memo number 5 was never set"));
  EXPECT_THAT(refusal_of_read(pickle("]r" + u32(5) + "j" + u32(4) + ".")), HasSubstr("memo number 4 was never set"));
  // A memo of 4 billion entries would be 64 GiB.
  EXPECT_THAT(refusal_of_read(pickle("]r\xff\xff\xff\xff.")),
              HasSubstr("memo number 4294967295 is too large for this pickle"));
}

TEST(HostilePickle, IntegersHaveSixtyFourBits) {
  const auto with_size = [&](const std::string& number) {
    return pickle("](}(" + text("total_size") + number + text("blocks") + "]ue.");
  };
  EXPECT_THAT(refusal_of_read(with_size("\x8a\x0a" + std::string(9, '\0') + '\x01')), HasSubstr("more than 64 bits"));
  EXPECT_THAT(refusal_of_read(with_size("\x8a\x08" + std::string(8, '\xff'))),
              HasSubstr("'total_size' is not a whole"));
  EXPECT_THAT(refusal_of_read(with_size("\x8a\x09" + std::string(8, '\xff') + '\0')),
              HasSubstr("its blocks are 18446744073709551615 bytes fewer than total_size"));
  EXPECT_EQ(refusal_of_read(with_size(std::string("\x8a\x00", 2))), "no exception");
}

TEST(HostilePickle, DepthCostsNoStack) {
  const std::size_t deep = 100'000;
  std::string nested(deep, '(');
  nested += std::string(deep, 'l') + ".";
  EXPECT_THAT(refusal_of_read(pickle(nested)),
              HasSubstr("more lists and dictionaries than a snapshot of this size has"));
  // Not too many containers for the size of the file, but nested.
  std::string padded;
  for (std::size_t i = 0; i < deep; ++i) padded += "(K\x01K\x01K\x01K\x01";
  for (std::size_t i = 0; i < deep; ++i) padded += 't';
  EXPECT_THAT(refusal_of_read(pickle(padded + ".")), StartsWith("[read] evil: segments[0]: not a dictionary"));
}

TEST(HostilePickle, AListThatContainsItselfIsAnError) {
  EXPECT_THAT(refusal_of_read(pickle("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a.")),
              HasSubstr("segments[0]: not a dictionary"));
}

TEST(HostilePickle, AListIsExpandedOnce) {
  // A thousand segments share a list of blocks; n steps could describe 2^n of them.
  const std::string block = "}(" + text("size") + "K\x01" + text("state") + text("inactive") + "u";
  std::string program = "](}(" + text("total_size") + "K\x01" + text("blocks") + "](" + block + "eq\x01u";
  program += "}(" + text("total_size") + "K\x01" + text("blocks") + "h\x01ue.";
  EXPECT_THAT(refusal_of_read(pickle(program)), HasSubstr("segments[1]: blocks is a list that was used before"));
}

TEST(HostilePickle, TextsRepeatedTooOftenAreRefused) {
  const std::string name(1 << 20, 'n');
  std::string program = pickle("}(" + text("device_traces") + "](](");
  for (int i = 0; i < 100; ++i) {
    const std::string line{'M', static_cast<char>(i), '\x01'};
    program += "}(" + text("action") + text("alloc") + text("addr") + "K\x01" + text("size") + "K\x01" +
               text("frames") + "](}(" + text("line") + line + text("name") +
               (i == 0 ? "X" + u32(1 << 20) + name + "q\x01" : std::string("h\x01")) + "ueu";
  }
  EXPECT_THAT(refusal_of_read(program + "eeu."), HasSubstr("texts that are repeated too often"));
}

// A few bytes name one long list for each of many devices; the work must not grow with their number.
TEST(HostilePickle, FramesSharedByDevicesAreReadOnce) {
  constexpr int depth = 100, devices = 64;
  std::string program = "}(" + text("device_traces") + "](";
  for (int device = 0; device < devices; ++device) {
    program +=
        "](}(" + text("action") + text("alloc") + text("addr") + "K\x01" + text("size") + "K\x01" + text("frames");
    if (device == 0) {
      const std::string scope = "}(" + text("name") + text(std::string(100, 's')) + text("filename") + text("scope") +
                                text("line") + "K" + std::string(1, '\0') + "u";
      program += "]q" + std::string(1, '\0') + "(";
      for (int i = 0; i < depth; ++i) program += scope;
      program += "e";
    } else {
      program += "h" + std::string(1, '\0');
    }
    program += "ue";
  }
  const std::vector<Trace> traces = decode_pytorch_snapshot(pickle(program + "eu."), "shared");
  ASSERT_EQ(traces.size(), devices);
  for (const Trace& trace : traces) EXPECT_EQ(trace.scopes.at(trace.events.at(0).scope).size(), depth * 101 - 1);
}

// The pairs of an entry that allocates a byte.
const std::string allocation = text("action") + text("alloc") + text("addr") + "K\x01" + text("size") + "K\x01";

TEST(HostilePickle, AnEntryCannotBeUsedTwice) {
  const std::string zero(1, '\0');
  EXPECT_THAT(
      refusal_of_read(pickle("}(" + text("device_traces") + "](](}q" + zero + "(" + allocation + "uh" + zero + "eeu.")),
      HasSubstr("memo number 0 was never set"));
}

// The pairs of an entry that adds no event.
const std::string snapshot_action = text("action") + text("snapshot");

// The root of the file is itself an entry: the reader must not remove it from under its other reference.
TEST(HostilePickle, AnEntryWithACopyOnTheStackStays) {
  const std::string zero(1, '\0');
  const std::string program =
      "]q\x01]q\x02}q" + zero + text("device_traces") + "h\x01h\x02h" + zero + "(" + snapshot_action + "uaas.";
  const std::vector<Trace> traces = decode_pytorch_snapshot(pickle(program), "copied");
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0].events.size(), 0u);
}

// The outer entry gets a second memo number while the inner one is the newest dictionary; then the reader removes the
// inner one.
TEST(HostilePickle, AnEntryWithTwoMemoNumbersStays) {
  const std::string zero(1, '\0'), inner = text("device_traces") + "h\x01h\x02}q\x03(" + snapshot_action;
  const auto program = [&](const std::string& again) {
    return "}" + text("device_traces") + "]q\x01]q\x02}q" + zero + "(" + inner + again + "uaa" + snapshot_action +
           "uah" + zero + text("key") + text("value") + "saas.";
  };
  for (const std::string& again : {std::string(), "h" + zero + "q\x09" + text("other")})
    EXPECT_THAT(refusal_of_read(pickle(program(again))), HasSubstr("device_traces[0][2]: entries of several forms"));
}

TEST(HostilePickle, EntriesOfSeveralFormsAreRefused) {
  EXPECT_THAT(
      refusal_of_read(pickle("}(" + text("device_traces") + "](](}(" + allocation + "u(" + allocation + "deeu.")),
      HasSubstr("device_traces[0][0]: entries of several forms"));
}

TEST(HostilePickle, ALoneEntryHasNoMark) {
  const std::vector<Trace> traces =
      decode_pytorch_snapshot(pickle("}" + text("device_traces") + "]](}(" + allocation + "ueas."), "lone");
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0].events.size(), 1u);
  const std::vector<Trace> bare =
      decode_pytorch_snapshot(pickle("}" + text("device_traces") + "]]}(" + allocation + "uaas."), "lone");
  ASSERT_EQ(bare.size(), 1u);
  EXPECT_EQ(bare[0].events.size(), 1u);
}

// One file of many devices reserves memory for the entries that its bytes can hold, not as much for each device.
TEST(HostilePickle, DevicesShareTheReservedMemory) {
  const std::string entry = "](}(" + allocation + "ue";
  std::string program =
      "}(" + text("padding") + "X" + u32(1 << 16) + std::string(1 << 16, ' ') + text("device_traces") + "](";
  for (int device = 0; device < 200; ++device) program += entry;
  const std::string bytes = pickle(program + "eu.");
  std::size_t reserved = 0;
  for (const Trace& trace : decode_pytorch_snapshot(bytes, "many")) reserved += trace.events.capacity();
  EXPECT_LE(reserved, bytes.size() / 40 + 200);
}

TEST(HostilePickle, EntriesWithManyKeysAreRefused) {
  std::string program = "](}(";
  for (int i = 0; i < 100; ++i) program += "K\x01K\x02";
  EXPECT_THAT(refusal_of_read(pickle(program + "ue.")), HasSubstr("segments[0]: a dictionary of more than 64 keys"));
}

TEST(HostileJson, SaysWhereItIsWrong) {
  EXPECT_THAT(refusal_of_read("{\"segments\": [}"), StartsWith("[read] evil: byte 15: "));
  EXPECT_THAT(refusal_of_read(""), StartsWith("[read] evil: byte 1"));
  EXPECT_THAT(refusal_of_read(std::string(1'000'000, '[')), StartsWith("[read] evil: byte "));
  EXPECT_THAT(refusal_of_read("{\"segments\": [], \"device_traces\": [[{\"action\": 5}]]}"),
              HasSubstr("device_traces[0][0]: 'action' is not a text"));
  EXPECT_THAT(refusal_of_read("{}"), HasSubstr("neither 'segments' nor 'device_traces'"));
  EXPECT_THAT(refusal_of_read("{\"traceEvents\": []}"), HasSubstr("a Chrome trace cannot be read back"));
  EXPECT_THAT(refusal_of_read("3"), HasSubstr("a snapshot is a dictionary or a list"));
}

TEST(HostileJson, ATimeThatIsTooLargeNamesItsEntry) {
  const std::string free = R"({"action": "free_requested", "addr": 1, "size": 1, "time_us": )",
                    late = "18446744073709551615}";
  EXPECT_EQ(refusal_of_read(R"({"device_traces": [[], [)" + free + "1}, " + free + late + "]]}"),
            "[read] evil: device_traces[1][1]: a time beyond 64 bits");
}

TEST(HostileJson, ValuesOutOfRangeAreRefused) {
  const auto segment = [](const std::string& keys) { return "[{\"total_size\": 8, " + keys + "}]"; };
  const std::string block = "\"blocks\": [{\"size\": 8, \"state\": \"inactive\"}]";
  EXPECT_EQ(refusal_of_read(segment(block)), "no exception");
  EXPECT_THAT(refusal_of_read(segment("\"device\": 256, " + block)), HasSubstr("device 256, but indices end at 255"));
  EXPECT_THAT(refusal_of_read(segment("\"device\": -1, " + block)), HasSubstr("'device' is not a whole number"));
  EXPECT_THAT(refusal_of_read(segment("\"address\": 18446744073709551610, " + block)), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(refusal_of_read(segment("\"blocks\": [{\"size\": 9, \"state\": \"inactive\"}]")),
              HasSubstr("segments[0].blocks[0]: a block of 9 bytes"));
  EXPECT_THAT(refusal_of_read(segment("\"blocks\": [{\"size\": 0, \"state\": \"inactive\"}]")),
              HasSubstr("of 0 bytes"));
  EXPECT_THAT(refusal_of_read(segment("\"blocks\": [{\"size\": 1.5, \"state\": \"inactive\"}]")),
              HasSubstr("whole number"));
  EXPECT_THAT(refusal_of_read(segment("\"blocks\": [{\"size\": 8, \"state\": \"odd\"}]")),
              HasSubstr("unknown state 'odd'"));
  EXPECT_THAT(
      refusal_of_read(segment("\"blocks\": [{\"size\": 8, \"state\": \"active_allocated\", \"requested_size\": 9}]")),
      HasSubstr("requested_size is above size"));
}

}  // namespace
}  // namespace poolgrad
