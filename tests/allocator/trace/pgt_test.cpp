#include "allocator/lab/formats/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "allocator/error.h"
#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal_of_pgt(const std::string& bytes) {
  return error_of<FileError>([&] { decode_pgt(bytes, "some/file.pgt"); });
}

std::uint64_t read_u64(const std::string& bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

void write_u64(std::string& bytes, std::size_t at, std::uint64_t value) {
  for (std::size_t i = 0; i < 8; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

// The checksum as pgt.h describes it.
std::uint64_t fnv_of_words(std::string payload) {
  while (payload.size() % 8 != 0) payload += '\0';
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t at = 0; at < payload.size(); at += 8) hash = (hash ^ read_u64(payload, at)) * 0x100000001b3;
  return hash;
}

struct Section {
  std::string name;
  std::size_t header;  // offset of its name; the payload follows 24 bytes later
  std::size_t size;
};

std::vector<Section> sections_of(const std::string& bytes) {
  std::vector<Section> sections;
  for (std::size_t at = 12; at + 24 <= bytes.size();) {
    sections.push_back({bytes.substr(at, 4), at, read_u64(bytes, at + 8)});
    at += 24 + sections.back().size;
  }
  return sections;
}

// As a malicious writer would make it: the contents are wrong, the checksum is right.
void repair_checksums(std::string& bytes) {
  for (const Section& section : sections_of(bytes))
    write_u64(bytes, section.header + 16, fnv_of_words(bytes.substr(section.header + 24, section.size)));
}

TEST(Pgt, RoundTripsEveryField) {
  const std::uint64_t seed = seed_or(1);
  for (const std::size_t events : {0u, 1u, 50u, 5000u}) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", events " + std::to_string(events));
    const Trace trace = synthetic_trace(seed, events);
    expect_same_trace(decode_pgt(encode_pgt(trace), "file"), trace);
  }
}

TEST(Pgt, RoundTripsAnEmptyTrace) { expect_same_trace(decode_pgt(encode_pgt({}), "file"), {}); }

TEST(Pgt, RoundTripsExtremeValues) {
  Trace trace;
  trace.device = {DeviceType::cuda, 255};
  trace.start_us = trace.lost = UINT64_MAX;
  trace.settings = std::string("nul \0 and \xff", 11);
  trace.streams = {UINT64_MAX, 0, 1};
  trace.scopes = {"", std::string(100'000, 'x')};
  trace.locations = {{}, {"", "", UINT32_MAX}};
  for (std::size_t kind = 0; kind < trace_kind_count; ++kind) {
    TraceEvent large;
    large.kind = static_cast<TraceKind>(kind);
    large.time = large.allocation = large.address = large.size = large.ticket = UINT64_MAX;
    large.location = large.scope = 1;
    large.stream = 2;
    large.slack = UINT32_MAX;
    large.category = Category::unknown;
    large.stage = large.flags = 255;
    TraceEvent small;
    small.kind = large.kind;
    trace.events.insert(trace.events.end(), {large, small, large});
  }
  BlockSnapshot block;
  block.address = block.size = block.stream = block.epoch = block.window = block.number = block.requested = UINT64_MAX;
  block.state = BlockState::live;
  block.tag = {Category::unknown, 1};
  BlockSnapshot hole;
  hole.state = BlockState::magazine;
  trace.blocks = {block, hole, block};
  expect_same_trace(decode_pgt(encode_pgt(trace), "file"), trace);
}

TEST(Pgt, TakesFewBytesPerEvent) {
  const Trace trace = synthetic_trace(1, 20'000);
  EXPECT_LT(encode_pgt(trace).size(), 100 * trace.events.size());
}

TEST(Pgt, ATruncatedFileIsAnErrorAtEveryLength) {
  const std::string whole = encode_pgt(synthetic_trace(2, 60, {.windows = 1, .pages = 1, .live = 10}));
  for (std::size_t size = 0; size < whole.size(); ++size)
    ASSERT_THAT(refusal_of_pgt(whole.substr(0, size)), StartsWith("[read] some/file.pgt: byte ")) << size;
  EXPECT_THAT(refusal_of_pgt(whole + '\0'), HasSubstr("1 bytes behind the end"));
}

TEST(Pgt, EveryFlippedBitIsNoticed) {
  const std::string whole = encode_pgt(synthetic_trace(3, 40, {.windows = 1, .pages = 1, .live = 10}));
  DamageCount count;
  read_damaged(
      whole, 200, 3, [](const std::string& bytes, const std::string&) { decode_pgt(bytes, "file"); }, count);
  EXPECT_EQ(count.accepted, 0);
}

TEST(Pgt, DamageUnderRightChecksumsIsReadOrRefused) {
  const std::string whole = encode_pgt(synthetic_trace(4, 40, {.windows = 1, .pages = 1, .live = 10}));
  DamageCount count;
  read_damaged(
      whole, 3000, 2,
      [](const std::string& damaged, const std::string&) {
        std::string bytes = damaged;
        repair_checksums(bytes);
        const Trace trace = decode_pgt(bytes, "file");
        // All values read are safe to look up.
        for (const TraceEvent& event : trace.events) {
          ASSERT_TRUE(event.stream < trace.streams.size() || event.stream == 0);
          ASSERT_TRUE(event.scope < trace.scopes.size() || event.scope == 0);
          ASSERT_TRUE(event.location < trace.locations.size() || event.location == 0);
          ASSERT_LT(static_cast<std::size_t>(event.kind), trace_kind_count);
          ASSERT_LT(static_cast<std::size_t>(event.category), category_count);
        }
      },
      count);
  EXPECT_GT(count.refused, 100);
  EXPECT_GT(count.accepted, 100);
}

TEST(Pgt, CountsCannotExceedTheFile) {
  for (const char* name : {"STRM", "SCOP", "LOCA", "BLKS", "EVNT"}) {
    std::string bytes = encode_pgt({});
    for (const Section& section : sections_of(bytes)) {
      if (section.name != name) continue;
      bytes.replace(section.header + 24, section.size, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
      write_u64(bytes, section.header + 8, 10);
      break;
    }
    repair_checksums(bytes);
    EXPECT_THAT(refusal_of_pgt(bytes), HasSubstr(": 18446744073709551615 with 0 bytes left")) << name;
  }
}

TEST(Pgt, AHugeSectionIsRefusedBeforeAnythingIsAllocated) {
  std::string bytes = encode_pgt({});
  write_u64(bytes, 12 + 8, UINT64_MAX);
  EXPECT_THAT(refusal_of_pgt(bytes),
              AllOf(HasSubstr("byte 36"), HasSubstr("section needs 18446744073709551615 bytes")));
}

TEST(Pgt, SkipsUnknownSections) {
  std::string bytes = encode_pgt(synthetic_trace(5, 30));
  std::string unknown = "LATR";
  unknown.resize(24 + 3, 'x');
  std::fill_n(unknown.begin() + 4, 4, '\0');
  write_u64(unknown, 8, 3);
  write_u64(unknown, 16, fnv_of_words("xxx"));
  bytes.insert(sections_of(bytes)[2].header, unknown);
  expect_same_trace(decode_pgt(bytes, "file"), synthetic_trace(5, 30));
}

TEST(Pgt, NamesTheFaultAndItsPlace) {
  const std::string whole = encode_pgt({});
  std::string bytes = whole;
  bytes[8] = 2;
  EXPECT_EQ(refusal_of_pgt(bytes), "[read] some/file.pgt: byte 8: version 2, known is 1");
  bytes = whole;
  bytes[0] = 'P';
  EXPECT_EQ(refusal_of_pgt(bytes), "[read] some/file.pgt: byte 0: not a .pgt file");
  bytes = whole;
  bytes[12] = 'S', bytes[13] = 'T', bytes[14] = 'R', bytes[15] = 'M';
  EXPECT_EQ(refusal_of_pgt(bytes), "[read] some/file.pgt: byte 12: section STRM instead of META");
}

}  // namespace
}  // namespace poolgrad
