// The plan program: what it says of runs is what they do.
#include "examples/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "allocator/error.h"
#include "tests/examples/train_program.h"

namespace poolgrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::error_of;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() {
    options_.train.context = 300;
    options_.train.layers = 2;
    options_.train.width = 32;
    options_.train.heads = 2;
    options_.train.attention.window = 40;
    options_.train.sample = 4;
    options_.memory = "64MiB";
  }
  std::string printed() {
    std::ostringstream out;
    run_plan(options_, out);
    return out.str();
  }
  nlohmann::json answer() {
    options_.json = "-";
    return nlohmann::json::parse(printed());
  }
  std::string refusal() {
    return error_of<ValueError>([&] { printed(); });
  }

  PlanOptions options_;
  TemporaryFolder folder_;
};

TEST_F(PlanTest, SaysToTheByteWhatTheRunOnTheCpuReserves) {
  std::string text;
  for (int i = 0; i < 800; ++i) text += "int f" + std::to_string(i) + "() { return 1; }\n";
  write_bytes(folder_.file("text"), text);
  const TrainOptions base = options_.train;
  struct Policy {
    const char* checkpoint;
    std::int64_t tile, chunk;
  };
  for (const auto& [checkpoint, tile, chunk] :
       {Policy{"none", 0, 0}, {"none", 0, 64}, {"block", 0, 0}, {"sqrt", 100, 0}, {"revolve", 64, 0}}) {
    options_.train = base;
    options_.train.checkpoint = checkpoint;
    options_.train.tile = tile;
    options_.train.chunk = chunk;
    SCOPED_TRACE(std::string(checkpoint) + ", tiles of " + std::to_string(tile) + ", chunks of " +
                 std::to_string(chunk));
    TrainOptions real = options_.train;
    real.text = {folder_.file("text")};
    real.budget = options_.memory;
    real.steps = 20;  // the plan goes through fewer
    const auto run = run_train_program(real, folder_);
    const auto row = answer()["rows"][0];
    EXPECT_TRUE(row["fits"]);
    EXPECT_EQ(row["peak_live_bytes"], run["peak_live_bytes"]);
    EXPECT_EQ(row["peak_reserved_bytes"], run["peak_reserved_bytes"]);
    EXPECT_EQ(row["bytes_by_category"], run["bytes_by_category"]);
  }
}

TEST_F(PlanTest, ShowsWhereTheBytesOfAStepGo) {
  const auto step = answer()["step"];
  EXPECT_LT(0, step["backward"]);
  EXPECT_LT(step["backward"], step["update"]);
  EXPECT_LT(step["update"], step["events"]);
  EXPECT_EQ(step["live"].size(), step["event"].size());
  EXPECT_GT(step["holders"].size(), 3u);
  options_.json.clear();
  EXPECT_THAT(printed(), AllOf(HasSubstr("2 layers, width 32, 2 heads (2 for keys), context 300, window of 40, f32"),
                               HasSubstr(": fits in 64.00 MiB"), HasSubstr("optimizer_state"), HasSubstr("█")));
}

TEST_F(PlanTest, SaysWhatARunNeedsThatDoesNotFit) {
  options_.memory = "2MiB";
  const auto row = answer()["rows"][0];
  EXPECT_FALSE(row["fits"]);
  EXPECT_THAT(row["refusal"].get<std::string>(), HasSubstr("out of memory"));
  EXPECT_GT(row["peak_live_bytes"], 2 << 20);
  options_.json.clear();
  EXPECT_THAT(printed(), HasSubstr(": does not fit in 2.00 MiB"));
}

TEST_F(PlanTest, FindsTheLongestContext) {
  options_.longest = true;
  options_.devices = {"16MiB", "64MiB"};
  const auto row = answer()["rows"][0];
  const auto context = row["longest"]["context"].get<std::int64_t>();
  const std::size_t memory = parse_bytes(options_.memory);
  EXPECT_LE(row["longest"]["peak_reserved_bytes"], memory);
  EXPECT_GT(row["longest"]["peak_live_bytes"], memory / 10 * 9);
  TrainOptions train = options_.train;
  train.context = context;
  EXPECT_TRUE(dry_run(train, memory, Through::steps).fits);
  train.context = context + context / 512 + 1;
  EXPECT_FALSE(dry_run(train, memory, Through::steps).fits);
  EXPECT_EQ(row["devices"][1]["context"], context);
  EXPECT_LT(row["devices"][0]["context"], context / 3);
  EXPECT_GT(row["devices"][0]["context"], context / 6);

  options_.most = 1000;
  EXPECT_EQ(answer()["rows"][0]["longest"]["context"], 1000);
  options_.json.clear();
  EXPECT_THAT(printed(), HasSubstr("longest  at least 1,000 tokens train in 64.00 MiB"));
  options_.memory = "1MiB";  // less than the optimiser's state
  options_.train.width = 256;
  EXPECT_THAT(printed(), HasSubstr("longest  0 tokens train in 1.00 MiB\n"));
}

TEST_F(PlanTest, PlansEveryValueOfATrainingOption) {
  options_.vary = {"dtype=f32,bf16", "chunk=0,64"};
  const auto rows = answer()["rows"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1]["name"], "dtype f32, chunk 64");
  EXPECT_EQ(rows[1]["settings"]["chunk"], "64");
  EXPECT_EQ(rows[2]["settings"]["dtype"], "bf16");
  for (const std::size_t row : {0u, 2u}) {  // what chunks save in memory they cost in time
    EXPECT_LT(rows[row + 1]["peak_live_bytes"], rows[row]["peak_live_bytes"]);
    EXPECT_GT(rows[row + 1]["simulated_step_seconds"], rows[row]["simulated_step_seconds"]);
  }
  EXPECT_LT(rows[2]["peak_live_bytes"], rows[0]["peak_live_bytes"]);
}

TEST_F(PlanTest, PlansEveryWayToSaveMemory) {
  options_.policies = true;
  options_.train.layers = 4;
  options_.train.context = 9000;
  options_.memory = "1GiB";
  const auto rows = answer()["rows"];
  ASSERT_EQ(rows.size(), memory_policies().size());
  for (std::size_t row = 1; row < rows.size(); ++row) {
    EXPECT_LT(rows[row]["peak_live_bytes"], rows[0]["peak_live_bytes"]) << rows[row]["name"];
    EXPECT_GT(rows[row]["simulated_step_seconds"], rows[0]["simulated_step_seconds"]) << rows[row]["name"];
  }
  options_.vary = {"layers=1,2"};
  EXPECT_EQ(refusal(), "[plan] --policies and --vary do not go together");
}

TEST_F(PlanTest, WritesOnePageThatRefersToNothing) {
  options_.longest = true;
  options_.devices = {"<b>"};
  EXPECT_THAT(refusal(), HasSubstr("'<b>'"));
  options_.devices = {"16MiB"};
  options_.vary = {"attention=window,dilated"};
  options_.html = folder_.file("plan.html");
  options_.quiet = true;
  EXPECT_EQ(printed(), "");
  const std::string html = read_bytes(options_.html);
  EXPECT_THAT(html, AllOf(HasSubstr("<!doctype html>"), HasSubstr("</svg>"), HasSubstr("prefers-color-scheme: dark"),
                          HasSubstr("attention dilated"), HasSubstr("16MiB")));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http")), Not(HasSubstr("<script")), Not(HasSubstr("url("))));
}

TEST_F(PlanTest, LeavesTheDeviceEmpty) {
  printed();
  options_.memory = "1MiB";
  options_.train.context = 3000;
  printed();
  EXPECT_EQ(allocator_for(parse_device("sim:1GiB,like=cpu", "plan")).statistics().allocated_bytes.current, 0u);
}

TEST_F(PlanTest, RefusesWhatItCannotPlanInOneSentence) {
  const auto refused = [&](const auto& change) {
    const PlanOptions before = options_;
    change(options_);
    const std::string text = refusal();
    options_ = before;
    return text;
  };
  EXPECT_EQ(refused([](PlanOptions& o) { o.memory = "1KiB"; }),
            "[plan] --memory must be from 1.00 MiB to 768.00 GiB, but is 1KiB");
  EXPECT_EQ(refused([](PlanOptions& o) {
              o.devices = {"8GB", "9TB"};
            }),
            "[plan] --devices must be from 1.00 MiB to 768.00 GiB, but is 9TB");
  EXPECT_EQ(refused([](PlanOptions& o) { o.most = 0; }), "[plan] --most must be at least 1, but is 0");
  for (const char* vary : {"attention", "=window", "attention="})
    EXPECT_EQ(refused([&](PlanOptions& o) { o.vary = {vary}; }),
              std::string("[plan] --vary must be NAME=VALUE,VALUE, but is ") + vary);
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"wheels=3"}; }), HasSubstr("[plan] --vary wheels=3: "));
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"layers=many"}; }), HasSubstr("[plan] --vary layers=many: "));
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"attention=window,cross"}; }),
              HasSubstr("--attention must be one of"));
  EXPECT_THAT(refused([](PlanOptions& o) { o.train.width = 33; }), HasSubstr("33"));
  EXPECT_NO_THROW(printed());
}

}  // namespace
}  // namespace poolgrad::examples
