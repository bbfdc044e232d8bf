#include "allocator/lab/formats/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "allocator/error.h"
#include "allocator/lab/replay/workload.h"
#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"
#include "tests/cpu_timer.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";

Trace read(const std::string& lines) { return decode_csv(header + lines, "log.csv"); }
std::string refusal_of_csv(const std::string& bytes) {
  return error_of<FileError>([&] { decode_csv(bytes, "log.csv"); });
}

TEST(RmmCsv, ReadsALog) {
  const Trace trace = read(
      "4711,09:35:02.100000,allocate,0x7f0000000100,1000,0\n"
      "4712,09:35:02.100250,allocate,0x7f0000001000,2000,0x55d0\n"
      "4711,09:35:03.000000,free,0x7f0000000100,1000,0\n"
      "4711,09:35:03.5,allocate failure,(nil),99999999999,0\n");
  EXPECT_EQ(to_string(trace.device), "cuda:0");
  EXPECT_THAT(trace.streams, ElementsAre(0, 0x55d0));
  ASSERT_THAT(trace.events, SizeIs(5));
  EXPECT_EQ(trace.events[0].kind, TraceKind::allocate);
  EXPECT_EQ(trace.events[0].address, 0x7f0000000100u);
  EXPECT_EQ(trace.events[0].allocation, 1u);
  EXPECT_EQ(trace.events[1].time, 250'000u);
  EXPECT_EQ(trace.events[1].stream, 1u);
  EXPECT_EQ(trace.events[2].kind, TraceKind::free_requested);
  EXPECT_EQ(trace.events[3].kind, TraceKind::free_completed);
  EXPECT_EQ(trace.events[3].allocation, 1u);
  EXPECT_EQ(trace.events[4].kind, TraceKind::out_of_memory);
  EXPECT_EQ(trace.events[4].size, 99'999'999'999u);
  EXPECT_EQ(trace.events[4].time, 1'400'000'000u);

  // The live blocks lie in pages committed before the trace.
  ASSERT_THAT(trace.blocks, SizeIs(3));
  EXPECT_EQ(trace.blocks[0].address, 0x7f0000000000u);
  EXPECT_EQ(trace.blocks[1].state, BlockState::live);
  EXPECT_EQ(trace.blocks[1].requested, 2000u);
  EXPECT_EQ(trace.blocks[1].stream, 0x55d0u);
  EXPECT_EQ(trace.blocks[2].address + trace.blocks[2].size, 0x7f0000200000u);
  EXPECT_EQ(cut_trace(trace).contradictions, 0u);
}

TEST(RmmCsv, AddsBlocksAllocatedBeforeTheLog) {
  const Trace trace = read("1,00:00:00.0,free,0x1000,64,0\n1,00:00:01.0,allocate,0x1000,32,0\n");
  const WindowedTrace cut = cut_trace(trace);
  EXPECT_EQ(cut.contradictions, 0u);
  ASSERT_THAT(cut.before, SizeIs(1));
  EXPECT_EQ(cut.before[0].requested, 64u);
}

// Returns the seconds to read a log of blocks at these addresses, freed in order of allocation, each on its own stream
// where `streams` is not 0. Without streams, the time includes making a workload.
double seconds_to_read(std::uint64_t count, std::uint64_t step, std::uint64_t streams) {
  std::string log;
  for (const char* action : {"allocate", "free"})
    for (std::uint64_t i = 1; i <= count; ++i) {
      std::array<char, 96> line{};
      std::snprintf(line.data(), line.size(), "1,00:00:00.0,%s,0x%llx,1,0x%llx\n", action,
                    static_cast<unsigned long long>(i * step), static_cast<unsigned long long>(i * streams));
      log += line.data();
    }
  const CpuTimer timer;
  const Trace trace = read(log);
  EXPECT_EQ(trace.events.size(), 3 * count) << "of each free its request and its end";
  if (streams == 0) {
    EXPECT_EQ(workload_of(trace, "log").blocks, count);
  }
  return timer.seconds();
}

TEST(RmmCsv, ReadsCollidingNumbersAsFastAsOthers) {
  // The inverse of the golden ratio's multiplier modulo 2^64: products are small numbers whose high halves are 0.
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - 0x9e3779b97f4a7c15u * inverse;
  ASSERT_EQ(inverse * 0x9e3779b97f4a7c15u, 1u);
  constexpr std::uint64_t count = 30'000;
  const auto seconds = [&](std::uint64_t step, std::uint64_t streams) {
    return std::min(seconds_to_read(count, step, streams), seconds_to_read(count, step, streams));
  };
  const double usual = seconds(4096, 3);  // neither number collides with any other
  // Bucket counts of the standard library's tables as they grow.
  for (const std::uint64_t chosen : {std::uint64_t{42043}, std::uint64_t{85229}, inverse}) {
    EXPECT_LT(seconds(16 * chosen, 0), 10 * usual) << chosen;
    EXPECT_LT(seconds(4096, chosen), 10 * usual) << chosen;
  }
}

TEST(RmmCsv, SortsEventsAcrossMidnightAndThreads) {
  const Trace trace = read(
      "1,23:59:59.000000,allocate,0x1000,1,0\n"
      "2,00:00:01.000000,allocate,0x2000,1,0\n"
      "1,23:59:59.500000,allocate,0x3000,1,0\n"
      "2,00:00:00.500000,allocate,0x4000,1,0\n"
      "2,00:00:02.000000,allocate,0x5000,1,0\n");
  std::vector<std::uint64_t> seconds;
  for (const TraceEvent& event : trace.events) seconds.push_back(event.time / 1'000'000'000);
  EXPECT_THAT(seconds, ElementsAre(0, 2, 2, 2, 3));
}

TEST(RmmCsv, RoundTripsAllocationsAndFrees) {
  const std::uint64_t seed = seed_or(1);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const WindowedTrace window = cut_trace(without_beginning(synthetic_trace(seed, 4000), 1500));
  const Trace back = decode_csv(encode_rmm_csv(window), "log.csv");
  EXPECT_EQ(cut_trace(back).contradictions, 0u);

  std::vector<TraceEvent> expected;
  for (const TraceEvent& event : window.trace.events)
    if (event.kind == TraceKind::allocate || event.kind == TraceKind::free_requested) expected.push_back(event);
  std::vector<TraceEvent> got;
  for (const TraceEvent& event : back.events)
    if (event.kind == TraceKind::allocate || event.kind == TraceKind::free_requested) got.push_back(event);
  // Blocks older than the trace are allocated first.
  std::size_t before = 0;
  for (const BlockSnapshot& block : window.before) {
    if (block.state != BlockState::live) continue;
    EXPECT_EQ(got[before].kind, TraceKind::allocate);
    EXPECT_EQ(got[before].address, block.address);
    EXPECT_EQ(got[before].size, block.requested);
    ++before;
  }
  EXPECT_GT(before, 0u);
  ASSERT_EQ(got.size(), before + expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const TraceEvent& event = got[before + i];
    ASSERT_EQ(event.kind, expected[i].kind);
    ASSERT_EQ(event.address, expected[i].address);
    ASSERT_EQ(event.size, expected[i].size);
    ASSERT_EQ(back.streams[event.stream], window.trace.streams[expected[i].stream]);
  }
}

TEST(RmmCsv, WritesTheFormatOfRmm) {
  Trace trace;
  trace.start_us = 3'661'000'001;  // 01:01:01.000001
  trace.streams = {0, 0xabc};
  TraceEvent event;
  event.kind = TraceKind::allocate;
  event.address = 0x7f0000000040;
  event.size = 10;
  event.stream = 1;
  trace.events.push_back(event);
  event.kind = TraceKind::out_of_memory;
  event.stream = 0;
  event.address = 5;
  event.time = 2'000'000'000;
  trace.events.push_back(event);
  trace.blocks.resize(1);
  trace.blocks[0].address = 0x7f0000000040;
  trace.blocks[0].size = 64;
  trace.blocks[0].requested = 10;
  trace.blocks[0].state = BlockState::live;
  EXPECT_EQ(encode_rmm_csv(cut_trace(trace)), header +
                                                  "1,01:01:01.000001,allocate,0x7f0000000040,10,0xabc\n"
                                                  "1,01:01:03.000001,allocate failure,(nil),10,0\n");
  EXPECT_EQ(encode_rmm_csv(cut_trace({})), header);
}

TEST(RmmCsv, AcceptsWindowsLineEndsAndAMissingLastOne) {
  const std::string log = "Thread,Time,Action,Pointer,Size,Stream\r\n1,00:00:00.0,allocate,0x1000,1,0\r\n\r\n";
  EXPECT_THAT(decode_csv(log, "log.csv").events, SizeIs(1));
  EXPECT_THAT(read("1,00:00:00.0,allocate,1000,1,0").events, SizeIs(1));
  EXPECT_THAT(decode_csv("Thread,Time,Action,Pointer,Size,Stream", "log.csv").events, SizeIs(0));
}

TEST(RmmCsv, ErrorsNameTheLine) {
  EXPECT_EQ(refusal_of_csv("Thread,Time\n"),
            "[read] log.csv: line 1: the header is neither 'Thread,Time,Action,Pointer,Size,Stream' nor "
            "'time,action,id,size,stream'");
  EXPECT_THAT(refusal_of_csv(""), HasSubstr("line 0: the header is neither"));
  const auto with_line = [](const std::string& line) {
    return refusal_of_csv(header + "1,00:00:00.0,allocate,0x1000,1,0\n" + line + "\n");
  };
  EXPECT_EQ(with_line("1,00:00:00.0,allocate"), "[read] log.csv: line 3: 6 fields wanted, 3 found");
  EXPECT_THAT(with_line("1,00:00:00.0,reallocate,0x1,1,0"), HasSubstr("line 3: unknown action 'reallocate'"));
  EXPECT_THAT(with_line("1,00:00:00.0,free,zz,1,0"), HasSubstr("'zz' is not a valid pointer"));
  EXPECT_THAT(with_line("1,00:00:00.0,free,,1,0"), HasSubstr("'' is not a valid pointer"));
  EXPECT_THAT(with_line("1,00:00:00.0,free,0x1,-1,0"), HasSubstr("'-1' is not a valid size"));
  EXPECT_THAT(with_line("1,00:00:00.0,free,0x1,1,0,7"), HasSubstr("'0,7' is not a valid stream"));
  EXPECT_THAT(with_line("1,00:00:00.0,free,0x1,99999999999999999999,0"), HasSubstr("is not a valid size"));
  EXPECT_THAT(with_line("1,00:00:00.0,free,0xffffffffffffff00,1,0"), HasSubstr("addresses beyond 64 bits"));
  for (const char* time : {"", "1", "24:00:00.0", "00:60:00.0", "00:00:61.0", "00:00:00.", "00-00-00.0", "aa:00:00.0",
                           "00:00:00.1234567", "00:00:00,"})
    EXPECT_THAT(with_line("1," + std::string(time) + ",free,0x1,1,0"), StartsWith("[read] log.csv: line 3: ")) << time;
}

TEST(RmmCsv, DamagedLogsAreReadOrRefused) {
  const std::string whole = encode_rmm_csv(cut_trace(synthetic_trace(2, 40)));
  DamageCount count;
  read_damaged(
      whole, 2000, 3, [](const std::string& bytes, const std::string&) { cut_trace(decode_csv(bytes, "log.csv")); },
      count);
  EXPECT_GT(count.accepted, 0);
  EXPECT_GT(count.refused, 0);
}

const std::string plain_header = "time,action,id,size,stream\n";

TEST(PlainCsv, ReadsALogWithoutAddresses) {
  const Trace trace = decode_csv(plain_header +
                                     "100,alloc,7,1000,0\n"
                                     "150,alloc,8,3,5\n"
                                     "175,free,7,1000,0\n"
                                     "175,alloc,7,2000,0\n",
                                 "log.csv");
  ASSERT_THAT(trace.events, SizeIs(5));
  EXPECT_THAT(trace.streams, ElementsAre(0, 5));
  EXPECT_EQ(trace.start_us, 100u);
  EXPECT_EQ(trace.events[1].time, 50'000u);
  EXPECT_EQ(trace.events[3].kind, TraceKind::free_completed);
  EXPECT_EQ(trace.events[3].address, trace.events[0].address);
  EXPECT_NE(trace.events[4].address, trace.events[0].address) << "a later allocation with the same id";
  EXPECT_EQ(trace.events[4].allocation, 3u);
  const Workload workload = workload_of(trace, "log");
  EXPECT_EQ(workload.blocks, 3u);
  EXPECT_EQ(workload.peak_requested(), 2003u);
}

TEST(PlainCsv, CountsABlockFromBeforeTheLog) {
  const Trace trace = decode_csv(plain_header + "1,free,3,512,0\n2,alloc,4,100,0\n", "log.csv");
  EXPECT_EQ(workload_of(trace, "log").peak_requested(), 512u);
}

TEST(PlainCsv, ErrorsNameTheLine) {
  const auto with_line = [](const std::string& line) {
    return refusal_of_csv(plain_header + "1,alloc,1,10,0\n" + line + "\n");
  };
  EXPECT_EQ(with_line("1,alloc"), "[read] log.csv: line 3: 5 fields wanted, 2 found");
  EXPECT_EQ(with_line("2,alloc,1,10,0"), "[read] log.csv: line 3: id 1 is allocated while it is live");
  EXPECT_EQ(with_line("2,free,1,10,0\n3,free,1,10,0"), "[read] log.csv: line 4: id 1 is freed twice");
  EXPECT_EQ(with_line("2,free,1,20,0"), "[read] log.csv: line 3: id 1 of 10 bytes is freed as 20 bytes");
  EXPECT_THAT(with_line("2,alloc," + std::string(1000, '0') + "1,10,0"),
              HasSubstr(" id " + std::string(80, '0') + "... is allocated while it is live"));
  EXPECT_THAT(with_line("2,realloc,1,10,0"), HasSubstr("unknown action 'realloc', known are alloc and free"));
  EXPECT_THAT(with_line("2.5,alloc,2,10,0"), HasSubstr("'2.5' is not a valid time in microseconds"));
  EXPECT_THAT(with_line("2,alloc,2,99999999999999999999,0"), HasSubstr("is not a valid size"));
  EXPECT_THAT(with_line("2,alloc,2,9999999999999999999,0"), HasSubstr("addresses beyond 2^62"));
  EXPECT_THAT(with_line("18446744073709551615,alloc,2,1,0"), HasSubstr("a time beyond 64 bits"));
}

}  // namespace
}  // namespace poolgrad
