#include "allocator/trace/trace_file.h"

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
                                       TraceFormat::rmm_csv, TraceFormat::chrome};

TEST(TraceFile, FormatsAreRecognisedByContent) {
  const TemporaryFolder folder;
  const Trace traces[] = {Trace{}, synthetic_trace(1, 300)};
  for (const Trace& trace : traces) {
    for (const TraceFormat format : all_formats) {
      const std::string path = folder.file("no_ending");
      EXPECT_EQ(save_trace(path, trace, format), "");
      EXPECT_EQ(format_of(path), format) << to_string(format);
    }
  }
}

TEST(TraceFile, WhatWasSavedIsLoaded) {
  const TemporaryFolder folder;
  const Trace trace = synthetic_trace(2, 500);
  save_trace(folder.file("a"), trace, TraceFormat::pgt);
  expect_same_trace(load_trace(folder.file("a")), trace);
  for (const TraceFormat format : {TraceFormat::pytorch_pickle, TraceFormat::pytorch_json, TraceFormat::rmm_csv}) {
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
    EXPECT_EQ(load_trace(folder.file("a")).lost, 100u);
  }
  EXPECT_THAT(check_snapshot(folder.file("a")), IsEmpty());
}

TEST(TraceFile, WarnsOfMoreThanViewersShow) {
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

TEST(TraceFile, WarnsOfEventsThatContradictEachOther) {
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

TEST(TraceFile, WhatIsNoTraceIsAnError) {
  const TemporaryFolder folder;
  const auto load_error = [&](const std::string& path) { return error_of<FileError>([&] { load_trace(path); }); };
  write_bytes(folder.file("text"), "hello");
  write_bytes(folder.file("empty"), "");
  save_trace(folder.file("chrome"), {}, TraceFormat::chrome);
  EXPECT_EQ(load_error(folder.file("text")),
            "[read] " + folder.file("text") + ": byte 0: neither a .pgt file, a memory snapshot, an RMM log nor JSON");
  EXPECT_THAT(load_error(folder.file("empty")), HasSubstr("neither a .pgt file"));
  EXPECT_THAT(load_error(folder.file("chrome")), HasSubstr("a Chrome trace cannot be read back"));
  EXPECT_THAT(load_error(folder.file("missing")), HasSubstr("cannot open: No such file"));
  EXPECT_THAT(load_error(folder.file("")), HasSubstr("not a regular file"));
  mkfifo(folder.file("fifo").c_str(), 0600);
  EXPECT_THAT(load_error(folder.file("fifo")), HasSubstr("not a regular file"));
}

TEST(TraceFile, AFileThatCannotBeWrittenLeavesTheOldOne) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<FileError>([&] { save_trace(folder.file("none/a"), {}, TraceFormat::pgt); }),
              HasSubstr("cannot create a temporary file"));
  EXPECT_THAT(folder.names(), IsEmpty());
}

}  // namespace
}  // namespace poolgrad
