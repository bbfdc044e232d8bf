// The page of a report: its embedded data, and the escaping of that data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "allocator/lab/formats/trace_file.h"
#include "examples/lab/page.h"
#include "tests/examples/lab_support.h"

namespace poolgrad::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Unpacks a column like the page's script.
std::vector<std::uint64_t> unpack(const std::string& text) {
  static const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = (bits << 6) | static_cast<std::uint32_t>(digits.find(c));
    if ((have += 6) >= 8) bytes += static_cast<char>((bits >> (have -= 8)) & 255);
  }
  std::vector<std::uint64_t> values;
  std::uint64_t value = 0, zigzag = 0;
  int shift = 0;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    zigzag |= static_cast<std::uint64_t>(byte & 127) << shift;
    shift += 7;
    if (byte & 128) continue;
    value += (zigzag >> 1) ^ (~(zigzag & 1) + 1);
    values.push_back(value);
    zigzag = 0;
    shift = 0;
  }
  return values;
}

std::vector<std::uint64_t> unpack(const Json& column) { return unpack(column.get<std::string>()); }

/// Two steps: a parameter stays, an activation is allocated and freed, one large request fails.
TraceBuilder two_steps() {
  TraceBuilder trace;
  trace.map(0, lab_page).allocate(0, 4096, Category::parameter);
  for (int step = 0; step < 2; ++step) trace.step().allocate(8192, 1000, Category::activation).free(8192, 1000);
  trace.stage(4, lab_page, 1500).fail(std::uint64_t{1} << 40);
  trace.remains(0, 4096, BlockState::live, 1).remains(4096, lab_page - 4096, BlockState::free);
  return trace;
}

Json data_of(const Trace& trace, const PageLimits& limits = {}) {
  return page_parts({.trace = trace, .title = "a title", .source = "a.pgt"}, limits).data;
}

/// Returns the embedded data as a browser reads it: the parsed text of the script element.
Json embedded(const std::string& page) {
  const std::string open = R"(<script type="application/json" id="data">)";
  const std::size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(PackedColumns, RoundTrip) {
  std::vector<std::uint64_t> values{0, 1, 127, 128, 5, 0x7f0000000000, 0, (std::uint64_t{1} << 52) - 1, 3};
  for (std::size_t length = 0; length <= values.size(); ++length) {
    const std::vector<std::uint64_t> part(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(unpack(pack_column(part)), part);
  }
}

TEST(PackedColumns, AreSmallForSlowlyChangingValues) {
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < 3000; ++i) values.push_back(0x7f0000000000 + 40 * i);
  EXPECT_LT(pack_column(values).size(), 4100u);  // a byte each, in base 64
}

TEST(PageData, HoldsBlocksPagesAndSamples) {
  TraceBuilder trace = two_steps();
  const Json data = data_of(*trace);
  EXPECT_EQ(data["title"], "a title");
  EXPECT_EQ(data["events"], trace->events.size());
  const auto moments = unpack(data["moments"]["event"]), times = unpack(data["moments"]["time"]);
  const auto begin = unpack(data["blocks"]["begin"]), end = unpack(data["blocks"]["end"]);
  ASSERT_EQ(begin.size(), 3u);
  EXPECT_EQ(moments.at(begin[0]), 2u);
  EXPECT_EQ(times.at(begin[0]), 2000u);
  EXPECT_EQ(moments.at(end[0]), trace->events.size() + 1);
  EXPECT_EQ(moments.at(end[1]), 6u);
  EXPECT_THAT(unpack(data["blocks"]["size"]), ElementsAre(4096, 1000, 1000));
  EXPECT_THAT(unpack(data["blocks"]["address"]), ElementsAre(0, 8192, 8192)) << "offsets in used addresses";
  EXPECT_THAT(unpack(data["ranges"]["address"]), ElementsAre(lab_base));
  EXPECT_THAT(unpack(data["pages"]["size"]), ElementsAre(lab_page));
  EXPECT_EQ(data["sampled"], Json({"parameter", "activation"})) << "what stays is stacked first";
  EXPECT_EQ(unpack(data["requested"][0]).back(), 4096u);
  EXPECT_EQ(unpack(data["steps"]).size(), 2u);
  EXPECT_TRUE(data["notes"].empty());
}

TEST(PageData, MarksReclaimStagesAndFailures) {
  TraceBuilder trace = two_steps();
  const Json marks = data_of(*trace)["marks"];
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(marks[0]["title"], "stage: commit");
  EXPECT_THAT(marks[0]["rows"].dump(), HasSubstr(R"(["yield","2.00 MiB"],["took","1.50 us"])"));
  EXPECT_EQ(marks[1]["kind"], "oom");
  EXPECT_THAT(marks[1]["rows"].dump(), HasSubstr("1.00 TiB"));
  const std::string page = page_html({.trace = *trace, .title = "two steps", .source = "a.pgt"});
  for (const Json& mark : marks)
    EXPECT_THAT(page, HasSubstr("m.kind === " + mark["kind"].dump())) << "the legend has every kind of mark";
}

TEST(PageData, ListsTheHoldersOfMemoryAtThePeak) {
  TraceBuilder trace;
  trace->scopes = {"", "block0.mlp", "block11.mlp", "head"};
  trace->locations = {{}, {"tensor/creation.cpp", "zeros", 41}};
  for (std::uint32_t i = 1; i <= 3; ++i) {
    trace.allocate(4096 * i, i == 3 ? 10 : 1000, Category::parameter);
    trace->events.back().scope = i;
    trace->events.back().location = 1;
  }
  const std::string tables = page_parts({.trace = *trace, .title = "", .source = ""}).tables;
  const auto first = tables.find("<td>1.95 KiB</td><td>99.5 %</td><td>2</td><td>parameter</td><td>block*.mlp</td>");
  const auto second = tables.find("<td>head</td><td>tensor/creation.cpp:41 zeros</td>");
  EXPECT_LT(first, second);
  EXPECT_NE(second, std::string::npos);
}

TEST(PageData, CountsRoundingAsWaste) {
  TraceBuilder trace;
  trace.map(0, 2 * lab_page).allocate(0, lab_page / 2, Category::activation).free(0, lab_page / 2);
  for (TraceEvent& event : trace->events)
    if (event.kind != TraceKind::segment_map) event.slack = lab_page / 2;
  const Json data = data_of(*trace);
  const auto utilisation = std::ranges::find_if(data["tiles"], [](const Json& row) { return row[0] == "utilisation"; });
  ASSERT_NE(utilisation, data["tiles"].end());
  EXPECT_EQ((*utilisation)[1], format_percent(0.5));
}

TEST(PageData, OmitsTheSmallestBlocksAndNotesIt) {
  TraceBuilder trace;
  for (std::uint64_t i = 0; i < 50; ++i) trace.allocate(8192 * i, 64 + i).stage(4, 1, 1);
  const Json data = data_of(*trace, {.blocks = 10, .samples = 20, .marks = 5});
  EXPECT_EQ(unpack(data["blocks"]["size"]).size(), 10u);
  EXPECT_EQ(data["omitted_blocks"], 40);
  EXPECT_EQ(unpack(data["samples"]["moment"]).size(), 21u);
  EXPECT_EQ(data["marks"].size(), 5u);
  const std::string notes = data["notes"].dump();
  EXPECT_THAT(notes, HasSubstr("10 blocks with the most bytes x events, of 50"));
  EXPECT_THAT(notes, HasSubstr("the fullest moment of every 5.0 events"));
  EXPECT_THAT(notes, HasSubstr("The last 45 stages"));
}

TEST(PageData, ShowsOnlyNumbersExactInJavaScript) {
  TraceBuilder trace;
  trace.allocate(0, 64).allocate(64, 64);
  trace->events[1].allocation = (std::uint64_t{1} << 62) + 1;  // scratch of kernels is counted separately
  EXPECT_THAT(unpack(data_of(*trace)["blocks"]["number"]), ElementsAre(1, 0));
}

TEST(PageData, NotesMissingPartsOfTheTrace) {
  TraceBuilder trace;
  trace.allocate(0, 64);
  trace->lost = 7;
  const Json data = data_of(*trace);
  EXPECT_EQ(data["has_pages"], false);
  EXPECT_THAT(data["notes"].dump(), HasSubstr("does not record which pages"));
  EXPECT_THAT(data["notes"].dump(), HasSubstr("7 older events were overwritten"));
}

TEST(PageData, NotesLostEventsOfASnapshotWithoutANumber) {
  const auto notes_of = [](std::uint64_t lost) {
    TraceBuilder trace = two_steps();
    trace->lost = lost;
    const WindowedTrace window = cut_trace(*trace);
    const std::string snapshot = encode_pytorch_snapshot(std::span(&window, 1), SnapshotEncoding::pickle);
    return data_of(decode_pytorch_snapshot(snapshot, "file").at(0))["notes"].dump();
  };
  EXPECT_THAT(notes_of(900), HasSubstr("One or more older events were overwritten"));
  EXPECT_THAT(notes_of(0), Not(HasSubstr("overwritten")));
}

TEST(Page, IsCompleteForAnEmptyTrace) {
  const Trace empty;
  const std::string page = page_html({.trace = empty, .title = "empty", .source = "nowhere"});
  EXPECT_EQ(embedded(page)["events"], 0);
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST(Page, HasNoPlaceholderLeft) {
  TraceBuilder trace = two_steps();
  const std::string page = page_html({.trace = *trace, .title = "@DATA@ @STYLE@ @SCRIPT@", .source = "a.pgt"});
  EXPECT_EQ(embedded(page)["title"], "@DATA@ @STYLE@ @SCRIPT@");
  EXPECT_THAT(page.substr(0, page.find("application/json")), Not(HasSubstr("@STYLE@")));
  EXPECT_THAT(page.substr(page.rfind("<script>")), Not(HasSubstr("@SCRIPT@")));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme"));
}

TEST(Page, EscapesHostileNames) {
  const std::string hostile = "</script><script>alert(1)</script><!-- & ]]> \" \\ http://evil.example/ \x01\xff";
  TraceBuilder trace = two_steps();
  trace->scopes.push_back(hostile);
  trace->locations.push_back({hostile, hostile, 1});
  trace.allocate(16384, 8192);
  trace->events.back().scope = trace->events.back().location = 1;
  trace->settings = hostile;
  const std::string page = page_html({.trace = *trace, .title = hostile, .source = hostile});
  const Json data = embedded(page);
  EXPECT_THAT(data["scopes"][1].get<std::string>(),
              HasSubstr("</script><script>alert(1)</script><!-- & ]]> \" \\ http"));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  const std::regex script("<script");
  EXPECT_EQ(std::distance(std::sregex_iterator(page.begin(), page.end(), script), {}), 2) << "the data and the program";
}

TEST(Page, HasNoExternalReference) {
  TraceBuilder trace = two_steps();
  trace->scopes.push_back("https://evil.example/");
  const std::string page = page_html({.trace = *trace, .title = "http://evil.example", .source = "a.pgt"});
  EXPECT_FALSE(std::regex_search(page, std::regex("https?://|//[a-z]+\\.[a-z]|@import|url\\(|src=|href=")));
}

}  // namespace
}  // namespace poolgrad::examples
