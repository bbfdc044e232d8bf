#include "allocator/lab/formats/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "allocator/error.h"
#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr TraceFormat all_formats[] = {TraceFormat::pgt, TraceFormat::pytorch_pickle, TraceFormat::pytorch_json,
                                       TraceFormat::csv, TraceFormat::chrome};

TEST(TraceFile, FormatsAreRecognisedByContent) {
  const TemporaryFolder folder;
  const Trace traces[] = {Trace{}, synthetic_trace(1, 300)};
  for (const Trace& trace : traces) {
    for (const TraceFormat format : all_formats) {
      const std::string path = folder.file("no_ending");
      EXPECT_EQ(save_trace(path, trace, format), "");
      EXPECT_EQ(format_of(path), format == TraceFormat::chrome ? TraceFormat::pytorch_json : format);
    }
  }
}

TEST(TraceFile, LoadsASavedTrace) {
  const TemporaryFolder folder;
  const Trace trace = synthetic_trace(2, 500);
  save_trace(folder.file("a"), trace, TraceFormat::pgt);
  expect_same_trace(load_trace(folder.file("a")), trace);
  for (const TraceFormat format : {TraceFormat::pytorch_pickle, TraceFormat::pytorch_json, TraceFormat::csv}) {
    save_trace(folder.file("b"), trace, format);
    const Trace back = load_trace(folder.file("b"));
    const auto allocations = [](const Trace& of) {
      return std::count_if(of.events.begin(), of.events.end(),
                           [](const TraceEvent& event) { return event.kind == TraceKind::allocate; });
    };
    EXPECT_EQ(allocations(back), allocations(trace)) << to_string(format);
  }
  EXPECT_THAT(folder.names(), ElementsAre("a", "b"));
}

TEST(TraceFile, APartCanBeSaved) {
  const TemporaryFolder folder;
  const Trace trace = synthetic_trace(3, 500);
  for (const TraceFormat format : {TraceFormat::pgt, TraceFormat::pytorch_pickle}) {
    save_trace(folder.file("a"), trace, format, {.from = 100, .to = 200});
    EXPECT_LE(load_trace(folder.file("a")).events.size(), 100u);
    EXPECT_EQ(load_trace(folder.file("a")).lost, format == TraceFormat::pgt ? 100u : 1u);
  }
}

TEST(TraceFile, WarnsOfEventsBeyondTheLimitOfViewers) {
  const TemporaryFolder folder;
  Trace trace;
  trace.events.resize(300'001);
  for (TraceEvent& event : trace.events) event.kind = TraceKind::step;
  EXPECT_THAT(save_trace(folder.file("a"), trace, TraceFormat::pytorch_pickle),
              HasSubstr("300001 events are more than the 300000 that the memory viewer shows"));
  EXPECT_EQ(save_trace(folder.file("a"), trace, TraceFormat::pgt), "");
  trace.events.pop_back();
  EXPECT_EQ(save_trace(folder.file("a"), trace, TraceFormat::pytorch_pickle), "");
}

TEST(TraceFile, WarnsOfContradictoryEvents) {
  const TemporaryFolder folder;
  Trace trace = synthetic_trace(4, 100);
  trace.events.push_back(trace.events[3]);
  trace.events.back().kind = TraceKind::free_completed;
  trace.events.back().address = 1;
  EXPECT_THAT(save_trace(folder.file("a"), trace, TraceFormat::chrome),
              StartsWith("1 events contradict the others and were left out."));
}

TEST(TraceFile, FormatsHaveNames) {
  for (const TraceFormat format : all_formats) EXPECT_EQ(parse_trace_format(to_string(format)), format);
  EXPECT_EQ(error_of<ValueError>([] { parse_trace_format("xml"); }),
            "[trace] unknown format 'xml'; known formats: pgt, pickle, json, csv, chrome");
}

TEST(TraceFile, RefusesAFileLargerThanTheMemoryOfTheMachine) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& begin) {
    write_bytes(folder.file("sparse"), begin);
    std::filesystem::resize_file(folder.file("sparse"), std::uintmax_t{1} << 42);  // uses no disk space
    return error_of<FileError>([&] { load_trace(folder.file("sparse")); });
  };
  const std::string path = "[read] " + folder.file("sparse") + ": ";
  for (const std::string& begin :
       {std::string(pgt_magic), std::string("\x80\x02"), std::string("Thread,"), std::string("{")})
    EXPECT_EQ(refusal(begin), path + "this machine has no memory to read a trace of 4.00 TiB");
  EXPECT_THAT(refusal("x"), HasSubstr("neither a .pgt file")) << "by its first bytes alone";
}

TEST(TraceFile, ShowsTextsOfFilesEscapedAndCut) {
  const std::string evil = "\x1b[2J\n[train] done", long_text(1'000'000, 'x');
  const auto csv = [](const std::string& action) {
    return error_of<FileError>([&] {
      decode_csv("Thread,Time,Action,Pointer,Size,Stream\n1,12:00:00.0," + action + ",0x1,1,0x0\n", "a\x1b[2J");
    });
  };
  EXPECT_EQ(csv("\x1b[2Jno"), "[read] a\\x1b[2J: line 2: unknown action '\\x1b[2Jno'");
  EXPECT_LT(csv(long_text).size(), 200u);
  const auto json = [](const std::string& state) {
    return error_of<FileError>([&] {
      decode_pytorch_snapshot("[{\"total_size\": 8, \"blocks\": [{\"size\": 8, \"state\": \"" + state + "\"}]}]", "a");
    });
  };
  EXPECT_EQ(json("\\u001b[2J\\n"), "[read] a: segments[0].blocks[0]: unknown state '\\x1b[2J\\n'");
  EXPECT_LT(json(long_text).size(), 200u);
  EXPECT_LT(error_of<FileError>([&] { decode_pytorch_snapshot("[" + long_text, "a"); }).size(), 200u);
  EXPECT_EQ(error_of<FileError>([] { decode_pytorch_snapshot(std::string("[]\0[]", 5), "a"); }),
            "[read] a: byte 3: not JSON")
      << "a second value behind a NUL byte";
}

TEST(TraceFile, RefusesATraceThatContradictsItself) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  const auto refusal_of = [&] { return error_of<FileError>([&] { load_trace(path); }); };
  const auto csv = [&](const std::string& lines) {
    write_bytes(path, "Thread,Time,Action,Pointer,Size,Stream\n" + lines);
    return refusal_of();
  };
  const std::string begin = "[read] " + path + ": the trace contradicts itself: ";
  const std::string allocate = "1,12:00:00.0,allocate,0x100,8,0x0\n", free = "1,12:00:00.0,free,0x100,8,0x0\n";
  EXPECT_EQ(csv(free + allocate + free + allocate), "no exception");
  EXPECT_EQ(csv(allocate + free + free), begin + "a block is freed twice: 8 bytes at address 256 (event 3 of 5)");
  EXPECT_EQ(csv(free + free), begin + "a block is freed twice: 8 bytes at address 256 (event 2 of 4)");
  EXPECT_EQ(csv(allocate + allocate),
            begin + "a block is allocated while it is live: 8 bytes at address 256 (event 1 of 2)");
  EXPECT_EQ(csv("1,12:00:00.0,allocate,0x8000000000000000,8,0x0\n"),
            begin + "a range ends beyond 2^63: 8 bytes at address 9223372036854775808 (event 0 of 1)");

  const Trace good = synthetic_trace(3, 50);
  const auto pgt = [&](const std::function<void(Trace&)>& change) {
    Trace trace = good;
    change(trace);
    save_trace(path, trace, TraceFormat::pgt);
    return refusal_of();
  };
  const auto number_of_first_free = [](const Trace& trace) -> TraceEvent {
    return *std::ranges::find(trace.events, TraceKind::free_requested, &TraceEvent::kind);
  };
  EXPECT_EQ(pgt([](Trace&) {}), "no exception");
  EXPECT_THAT(pgt([&](Trace& t) { t.events.push_back(number_of_first_free(t)); }), HasSubstr("a block is freed twice"));
  EXPECT_THAT(pgt([](Trace& t) { t.start_us = UINT64_MAX; }), HasSubstr("its start is beyond 2^53 microseconds"));
  EXPECT_THAT(pgt([](Trace& t) { t.lost = UINT64_MAX; }), HasSubstr("more than 2^53 events are lost"));
  EXPECT_THAT(pgt([](Trace& t) { t.events.back().time = UINT64_MAX; }), HasSubstr("a time is beyond 2^53"));
  EXPECT_THAT(pgt([](Trace& t) { t.blocks.push_back(t.blocks.back()); }), HasSubstr("a block overlaps another"));
  EXPECT_THAT(pgt([](Trace& t) { t.blocks.back().size = UINT64_MAX; }), HasSubstr("a block ends beyond 2^63"));
}

// The reader of an export accepts the trace of each source file that its reader accepted.
TEST(TraceFile, ReadsItsOwnExportOfADamagedTrace) {
  const TemporaryFolder folder;
  const std::uint64_t seed = seed_or(1);
  std::mt19937_64 random(seed);
  const std::uint64_t extremes[] = {0, 1, UINT32_MAX, std::uint64_t{1} << 53, INT64_MAX, UINT64_MAX - 1000, UINT64_MAX};
  const auto extreme = [&] { return random() % 4 == 0 ? random() : extremes[random() % std::size(extremes)]; };
  int accepted = 0, refused = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    Trace trace = synthetic_trace(random(), 30);
    for (std::size_t changes = random() % 3; changes > 0; --changes) {
      TraceEvent& event = trace.events[random() % trace.events.size()];
      BlockSnapshot& block = trace.blocks[random() % trace.blocks.size()];
      switch (random() % 10) {
        case 0: event.time = extreme(); break;
        case 1: event.address = extreme(); break;
        case 2: event.size = extreme(); break;
        case 3: event.allocation = extreme(); break;
        case 4: event = trace.events[random() % trace.events.size()]; break;
        case 5: event.kind = static_cast<TraceKind>(random() % trace_kind_count); break;
        case 6: block.address = extreme(); break;
        case 7: block.size = extreme(); break;
        case 8: block.requested = static_cast<std::size_t>(extreme()); break;
        default: (random() % 2 == 0 ? trace.start_us : trace.lost) = extreme(); break;
      }
    }
    save_trace(folder.file("source"), trace, TraceFormat::pgt);
    try {
      trace = load_trace(folder.file("source"));
      ++accepted;
    } catch (const FileError&) {
      ++refused;
      continue;
    }
    for (const TraceFormat format :
         {TraceFormat::pgt, TraceFormat::pytorch_pickle, TraceFormat::pytorch_json, TraceFormat::csv}) {
      const std::string copy = folder.file(std::string(to_string(format)));
      save_trace(copy, trace, format);
      ASSERT_EQ(error_of<FileError>([&] { load_trace(copy); }), "no exception") << to_string(format);
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 50);
}

TEST(TraceFile, RefusesOtherFiles) {
  const TemporaryFolder folder;
  const auto load_error = [&](const std::string& path) { return error_of<FileError>([&] { load_trace(path); }); };
  write_bytes(folder.file("text"), "hello");
  write_bytes(folder.file("empty"), "");
  save_trace(folder.file("chrome"), {}, TraceFormat::chrome);
  EXPECT_EQ(load_error(folder.file("text")),
            "[read] " + folder.file("text") + ": byte 0: neither a .pgt file, a memory snapshot, a CSV log nor JSON");
  EXPECT_THAT(load_error(folder.file("empty")), HasSubstr("neither a .pgt file"));
  write_bytes(folder.file("rmm"), "[ 17][12:00:00:000001][info  ] ----- RMM LOG BEGIN [PTDS DISABLED] -----\n");
  EXPECT_EQ(load_error(folder.file("rmm")),
            "[read] " + folder.file("rmm") +
                ": RMM's text log cannot be read; logging_resource_adaptor writes a CSV log that can");
  EXPECT_THAT(load_error(folder.file("chrome")), HasSubstr("a Chrome trace cannot be read back"));
  write_bytes(folder.file("array"), R"([{"name": "x", "ph": "B", "ts": 1}])");
  EXPECT_THAT(load_error(folder.file("array")), HasSubstr("a Chrome trace cannot be read back"));
  EXPECT_THAT(load_error(folder.file("missing")), HasSubstr("missing: does not exist"));
  EXPECT_THAT(load_error(folder.file("")), HasSubstr("not a regular file"));
  mkfifo(folder.file("fifo").c_str(), 0600);
  EXPECT_THAT(load_error(folder.file("fifo")), HasSubstr("not a regular file"));
}

TEST(TraceFile, ASnapshotMayQuoteTheTitleOfRmmsLog) {
  const TemporaryFolder folder;
  write_bytes(folder.file("json"), R"({"segments": [], "note": "RMM LOG BEGIN"})");
  EXPECT_EQ(format_of(folder.file("json")), TraceFormat::pytorch_json);
}

TEST(TraceFile, AFileThatCannotBeWrittenLeavesTheOldOne) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<FileError>([&] { save_trace(folder.file("none/a"), {}, TraceFormat::pgt); }),
              HasSubstr("cannot create a temporary file"));
  EXPECT_THAT(folder.names(), IsEmpty());
}

}  // namespace
}  // namespace poolgrad
