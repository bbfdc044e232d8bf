#include "allocator/lab/formats/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/allocator/trace/synthetic_trace.h"
#include "tests/allocator/trace/trace_testing.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using nlohmann::json;

json written(const WindowedTrace& window) { return json::parse(encode_chrome_trace(window)).at("traceEvents"); }

std::vector<json> of_phase(const json& events, const std::string& phase) {
  std::vector<json> found;
  for (const json& event : events)
    if (event.at("ph") == phase) found.push_back(event);
  return found;
}

// Returns the last value of a counter.
json last(const json& events, const std::string& name) {
  json found;
  for (const json& event : events)
    if (event.at("ph") == "C" && event.at("name") == name) found = event.at("args");
  return found;
}

TEST(ChromeTrace, EndsItsCountersAtTheSumsOverBlocks) {
  for (const std::size_t lost : {0u, 1000u}) {
    const WindowedTrace window = cut_trace(without_beginning(synthetic_trace(seed_or(1), 3000), lost));
    std::uint64_t allocated = 0, pending = 0, reserved = 0;
    std::map<Category, std::uint64_t> categories;
    for (const BlockSnapshot& block : window.trace.blocks) {
      if (block.state != BlockState::uncommitted) reserved += block.size;
      if (block.state == BlockState::pending) pending += block.requested;
      if (block.state != BlockState::live) continue;
      allocated += block.requested;
      categories[block.tag.category] += block.requested;
    }
    const json events = written(window);
    EXPECT_EQ(last(events, "reserved").at("bytes"), reserved);
    const json memory = last(events, "memory");
    EXPECT_EQ(memory.at("allocated"), allocated);
    EXPECT_EQ(memory.at("pending"), pending);
    EXPECT_EQ(memory.at("cached"), reserved - allocated - pending);
    for (const auto& [category, bytes] : categories)
      EXPECT_EQ(last(events, std::string(to_string(category))).at("bytes"), bytes) << to_string(category);
  }
}

TEST(ChromeTrace, GivesEveryEventTheFieldsOfViewers) {
  const json events = written(cut_trace(synthetic_trace(2, 2000)));
  double time = 0.0;
  for (const json& event : events) {
    ASSERT_TRUE(event.at("name").is_string());
    ASSERT_TRUE(event.contains("pid") && event.contains("tid"));
    if (event.at("ph") == "M" || event.at("ph") == "X") continue;
    ASSERT_GE(event.at("ts").get<double>(), time);
    time = event.at("ts");
  }
  EXPECT_EQ(of_phase(events, "M").at(0).at("args").at("name"), "poolgrad sim:1");
}

TEST(ChromeTrace, ShowsStagesAndFailuresAsInstants) {
  Trace trace;
  trace.scopes = {"", "model.block3"};
  TraceEvent stage;
  stage.kind = TraceKind::stage;
  stage.time = 1'500;
  stage.stage = 4;
  stage.size = 4096;
  stage.address = 250;
  TraceEvent failure;
  failure.kind = TraceKind::out_of_memory;
  failure.time = 2'000;
  failure.size = 1 << 30;
  failure.address = 77;
  failure.scope = 1;
  trace.events = {stage, failure};
  const std::vector<json> instants = of_phase(written(cut_trace(trace)), "i");
  ASSERT_EQ(instants.size(), 2u);
  EXPECT_EQ(instants[0].at("name"), "commit");
  EXPECT_EQ(instants[0].at("ts"), 1.5);
  EXPECT_EQ(instants[0].at("args"), (json{{"bytes", 4096}, {"nanoseconds", 250}}));
  EXPECT_EQ(instants[1].at("name"), "out of memory");
  EXPECT_EQ(instants[1].at("args"), (json{{"requested", 1 << 30}, {"device free", 77}, {"scope", "model.block3"}}));
}

TEST(ChromeTrace, StepsLastUntilTheNextOne) {
  Trace trace;
  for (const std::uint64_t time : {1'000u, 5'250u, 9'000u}) {
    TraceEvent& event = trace.events.emplace_back();
    event.kind = TraceKind::step;
    event.size = trace.events.size() - 1;
    event.time = time;
  }
  trace.events[2].kind = TraceKind::stage;
  const std::vector<json> steps = of_phase(written(cut_trace(trace)), "X");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].at("name"), "step 0");
  EXPECT_EQ(steps[0].at("ts"), 1.0);
  EXPECT_EQ(steps[0].at("dur"), 4.25);
  EXPECT_EQ(steps[1].at("name"), "step 1");
  EXPECT_EQ(steps[1].at("dur"), 3.75);
}

TEST(ChromeTrace, AnEmptyTraceIsValid) { EXPECT_EQ(of_phase(written(cut_trace({})), "i").size(), 0u); }

}  // namespace
}  // namespace poolgrad
