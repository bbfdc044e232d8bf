// The plan program: its predictions hold for real runs.
#include "examples/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "allocator/error.h"
#include "tests/examples/train_program.h"
#include "tests/threads.h"

namespace poolgrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
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

TEST_F(PlanTest, PlansAndMeasuresListsOfLayers) {
  std::string text;
  for (int i = 0; i < 800; ++i) text += "int f" + std::to_string(i) + "() { return 1; }\n";
  write_bytes(folder_.file("text"), text);
  options_.train.text = {folder_.file("text")};
  options_.train.sample = 0;
  options_.vary = {"layers=2*window;window:40,nope:causal;causal+sinks+qk-norm,2*dilated:16/512:1/4+heads:1+softcap:9"};
  options_.measure = 2;
  options_.program = POOLGRAD_TRAIN_PROGRAM;
  const auto rows = answer()["rows"];
  ASSERT_EQ(rows.size(), 3u);
  for (const auto& row : rows) {
    EXPECT_EQ(row["measured"]["peak_live_bytes"], row["peak_live_bytes"]) << row;
    EXPECT_EQ(row["measured"]["peak_reserved_bytes"], row["peak_reserved_bytes"]) << row;
  }
  EXPECT_NE(rows[0]["peak_live_bytes"], rows[2]["peak_live_bytes"]);
}

TEST_F(PlanTest, FindsTheSmallestTrainableBudget) {
  const Threads two(2);  // their scratch cannot be dropped
  for (std::int64_t context = 1300; context <= 2900; context += 200) {
    options_.train.context = context;
    TrainOptions within = options_.train;
    within.budget = "1MiB";
    const std::size_t least = smallest_budget(within, std::size_t{1} << 20);
    EXPECT_LT(least, dry_run(options_.train, no_limit).peak_reserved / 2);
    const auto trains = [&](std::size_t bytes) {
      TrainOptions options = options_.train;
      options.checkpoint = "budget";
      options.budget = std::to_string(bytes);
      return dry_run(options, bytes).fits;
    };
    EXPECT_TRUE(trains(least)) << context;
    EXPECT_FALSE(trains(least - (std::size_t{1} << 20))) << context;
  }
}

TEST_F(PlanTest, PredictsReservedBytesOfTheCpuExactly) {
  std::string text;
  for (int i = 0; i < 800; ++i) text += "int f" + std::to_string(i) + "() { return 1; }\n";
  write_bytes(folder_.file("text"), text);
  const TrainOptions base = options_.train;
  struct Policy {
    const char* checkpoint;
    std::int64_t tile, chunk;
    const char* autocast = "none";
    const char* dtype = "f32";
    double ema = 0;
  };
  for (const auto& [checkpoint, tile, chunk, autocast, dtype, ema] : {Policy{"none", 0, 0},
                                                                      {"none", 0, 64},
                                                                      {"block", 0, 0},
                                                                      {"sqrt", 100, 0},
                                                                      {"revolve", 64, 0},
                                                                      {"none", 0, 0, "bf16"},
                                                                      {"none", 0, 64, "f16"},
                                                                      {"selective", 0, 0, "bf16"},
                                                                      {"block", 100, 0, "f16"},
                                                                      {"none", 0, 0, "none", "f16"},
                                                                      {"none", 0, 0, "none", "f32", 0.9}}) {
    options_.train = base;
    options_.train.checkpoint = checkpoint;
    options_.train.tile = tile;
    options_.train.chunk = chunk;
    options_.train.autocast = autocast;
    options_.train.dtype = dtype;
    options_.train.ema = ema;
    SCOPED_TRACE(std::string(checkpoint) + ", tiles of " + std::to_string(tile) + ", chunks of " +
                 std::to_string(chunk) + ", " + dtype + ", autocast " + autocast);
    TrainOptions real = options_.train;
    real.text = {folder_.file("text")};
    real.budget = options_.memory;
    real.steps = 20;  // the plan runs fewer
    const auto run = run_train_program(real, folder_);
    const auto row = answer()["rows"][0];
    EXPECT_TRUE(row["fits"]);
    EXPECT_EQ(row["peak_live_bytes"], run["peak_live_bytes"]);
    EXPECT_EQ(row["peak_reserved_bytes"], run["peak_reserved_bytes"]);
    EXPECT_EQ(row["bytes_by_category"], run["bytes_by_category"]);
  }
}

TEST_F(PlanTest, PlansABudgetBelowTheDeviceMemory) {
  write_bytes(folder_.file("text"), std::string(60000, 'a'));
  TrainOptions& options = options_.train;
  options.width = 32;
  options.checkpoint = "budget";
  options.text = {folder_.file("text")};
  options.steps = 2;
  options.sample = 0;
  for (const auto& [context, bytes] : {std::pair{600, 2644813}, {1200, 3628032}, {1200, 4036813}, {1200, 4245613}}) {
    SCOPED_TRACE("context " + std::to_string(context) + ", budget " + std::to_string(bytes));
    options.context = context;
    options.budget = std::to_string(bytes);
    TrainOptions real = options;
    real.device = "sim:64MiB,like=cpu";
    const auto run = run_train_program(real, folder_);
    const DryRun planned = dry_run(options, static_cast<std::size_t>(bytes));
    EXPECT_EQ(planned.peak_live, run["peak_live_bytes"]);
    EXPECT_EQ(planned.peak_reserved, run["peak_reserved_bytes"]);
  }
}

TEST_F(PlanTest, ShowsTheBytesOfAStepByHolder) {
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

TEST_F(PlanTest, ReportsTheNeedOfARunThatDoesNotFit) {
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
  options_.memory = "1MiB";  // less than the optimizer's state
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
  for (const std::size_t row : {0u, 2u}) {  // chunks save memory and cost time
    EXPECT_LT(rows[row + 1]["peak_live_bytes"], rows[row]["peak_live_bytes"]);
    EXPECT_GT(rows[row + 1]["simulated_step_seconds"], rows[row]["simulated_step_seconds"]);
  }
  EXPECT_LT(rows[2]["peak_live_bytes"], rows[0]["peak_live_bytes"]);
}

TEST_F(PlanTest, PlansEveryPolicyWithinHalfOfThePlainPeak) {
  options_.memory = "";
  options_.policies = "all";
  options_.train.layers = 4;
  options_.train.context = 9000;
  const auto plan = answer();
  const auto rows = plan["rows"];
  ASSERT_EQ(rows.size(), memory_policies().size());
  EXPECT_EQ(rows[0]["name"], "none");
  EXPECT_FALSE(rows[0]["fits"]);
  EXPECT_EQ(plan["memory"], rows[0]["peak_reserved_bytes"].get<std::size_t>() / 2);
  for (std::size_t row = 1; row < rows.size(); ++row) {
    SCOPED_TRACE(rows[row]["name"]);
    EXPECT_LT(rows[row]["peak_live_bytes"], rows[0]["peak_live_bytes"]);
    EXPECT_GT(rows[row]["simulated_step_seconds"], rows[0]["simulated_step_seconds"]);
    EXPECT_GT(rows[row]["relative_time"], 1.0);
    if (rows[row]["policy"].get<std::string>().starts_with("budget")) {
      EXPECT_TRUE(rows[row]["fits"]);
      EXPECT_LE(rows[row]["peak_reserved_bytes"], plan["memory"]);
    }
  }
}

TEST_F(PlanTest, APolicySetsAndClearsTheMemoryOptions) {
  TrainOptions options = options_.train;
  options.tile = 100;
  options.offload = "/some/folder";
  const TrainOptions none = with_policy(options, "none"), all = with_policy(options, "sqrt+tile+offload"),
                     chunked = with_policy(options, "none+chunk");
  EXPECT_EQ(none.checkpoint, "none");
  EXPECT_EQ(none.tile, 0);
  EXPECT_EQ(none.offload, "");
  EXPECT_EQ(all.checkpoint, "sqrt");
  EXPECT_EQ(all.tile, 100);
  EXPECT_EQ(all.offload, "/some/folder");
  EXPECT_EQ(chunked.chunk, 1024);
  EXPECT_EQ(chunked.tile, 0);
  EXPECT_NE(with_policy(options_.train, "block+offload").offload, "");
}

TEST_F(PlanTest, RelativeTimesReferToTheFirstPolicyOfAPattern) {
  options_.vary = {"attention=window,causal"};
  options_.policies = "none,block";
  options_.train.context = 2000;
  const auto rows = answer()["rows"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[3]["name"], "attention causal, block");
  EXPECT_EQ(rows[2]["settings"]["attention"], "causal");
  const auto seconds = [&](std::size_t row) { return rows[row]["simulated_step_seconds"].get<double>(); };
  EXPECT_EQ(rows[2]["relative_time"], 1.0);
  EXPECT_EQ(rows[3]["relative_time"], seconds(3) / seconds(2));
  options_.json.clear();
  EXPECT_THAT(printed(), ContainsRegex("attention causal\n +none .* 1\\.00x\n +block .*x\n"));
}

/// A plan whose rows are trained as well, for three steps each.
class MeasuredPlanTest : public PlanTest {
 protected:
  MeasuredPlanTest() {
    std::string text;
    for (int i = 0; i < 800; ++i) text += "int g" + std::to_string(i) + "() { return 2; }\n";
    write_bytes(folder_.file("text of two words"), text);
    options_.train.text = {folder_.file("text of two words")};
    options_.train.offload = ::testing::TempDir();
    options_.program = POOLGRAD_TRAIN_PROGRAM;
    options_.measure = 3;
    options_.memory = "75%";
    options_.train.context = 600;
  }
};

TEST_F(MeasuredPlanTest, MeasuredPeaksEqualThePlannedBytes) {
  options_.policies = "none,selective,block,budget,budget+tile+offload,none+chunk";
  options_.train.tile = 100;
  options_.train.chunk = 64;
  const auto rows = answer()["rows"];
  ASSERT_EQ(rows.size(), 6u);
  for (const auto& row : rows) {
    SCOPED_TRACE(row["name"]);
    ASSERT_FALSE(row["measured"].contains("failure")) << row["measured"];
    EXPECT_EQ(row["measured"]["peak_live_bytes"], row["peak_live_bytes"]);
    EXPECT_EQ(row["measured"]["peak_reserved_bytes"], row["peak_reserved_bytes"]);
    EXPECT_EQ(row["relative_time"], row["measured"]["step_milliseconds"].get<double>() /
                                        rows[0]["measured"]["step_milliseconds"].get<double>());
    EXPECT_GT(row["longest"]["context"], 0);
  }
  EXPECT_GT(rows[5]["longest"]["context"], rows[0]["longest"]["context"]);
}

TEST_F(MeasuredPlanTest, ShowsProgressAndThenOneTable) {
  options_.policies = "none,block";
  std::ostringstream out;
  run_plan(options_, out, true);
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("measuring 1 of 2: none"), ContainsRegex("measuring 2 of 2: block, [0-9:]+ left"),
                    ContainsRegex("block +[^\n]* to the byte +[0-9,]+\n"), HasSubstr("median of 2 steps"),
                    Not(HasSubstr("141GB"))));
}

TEST_F(MeasuredPlanTest, NamesUnmeasuredRowsAndMeasuresTheRest) {
  options_.memory = "1MiB";
  options_.policies = "none,budget";
  const auto rows = answer()["rows"];
  EXPECT_GT(rows[0]["measured"]["step_milliseconds"], 0.0);
  EXPECT_EQ(rows[1]["measured"]["failure"], "does not fit in 1.00 MiB");
  EXPECT_TRUE(rows[1]["relative_time"].is_null());
  options_.json.clear();
  EXPECT_THAT(printed(), HasSubstr("  not measured: budget: does not fit in 1.00 MiB\n"));

  options_.policies = "";
  options_.program = "/nowhere/train";
  EXPECT_THAT(printed(), HasSubstr("/nowhere/train ended with status"));
  options_.program = "";  // the program train is not beside this test
  EXPECT_THAT(error_of<FileError>([&] { printed(); }), HasSubstr("[plan] --measure runs the program train"));
}

TEST_F(MeasuredPlanTest, RefusesAMissingTextOrFolderBeforeMeasuring) {
  options_.policies = "none,block+offload";
  options_.train.text = {"/nowhere/text"};
  EXPECT_THAT(error_of<FileError>([&] { printed(); }), HasSubstr("/nowhere/text"));
  options_.train.text = {folder_.file("text of two words")};
  options_.train.offload = "/nowhere/folder";
  EXPECT_THAT(error_of<FileError>([&] { printed(); }), HasSubstr("/nowhere/folder"));
}

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST_F(PlanTest, DrawsEveryRowOnTheSameAxes) {
  options_.memory = "50%";
  options_.policies = "none,block,budget,none+chunk";
  options_.train.context = 2000;
  options_.svg = folder_.file("rows.svg");
  options_.html = folder_.file("plan.html");
  options_.quiet = true;
  printed();
  const std::string svg = read_bytes(options_.svg), html = read_bytes(options_.html);
  EXPECT_THAT(
      svg, AllOf(StartsWith("<svg xmlns="), HasSubstr("prefers-color-scheme: dark"), HasSubstr(">none+chunk</text>")));
  EXPECT_EQ(count_of("class=\"name\"", svg), 4u);
  EXPECT_EQ(count_of(">backward</title>", svg), 4u);
  EXPECT_EQ(count_of("class=\"limit\"", svg), 5u);  // plus the legend's
  EXPECT_EQ(count_of("<title>activation: ", svg), 4u);
  EXPECT_EQ(count_of("class=\"name\"", html), 4u);
  EXPECT_THAT(html,
              AllOf(HasSubstr("Memory over one step of each run"), Not(HasSubstr("http")), Not(HasSubstr("nan"))));
  options_.policies = "";  // one large row without shared axes
  printed();
  EXPECT_THAT(read_bytes(options_.html), Not(HasSubstr("of each run")));
  EXPECT_EQ(count_of("<title>activation: ", read_bytes(options_.svg)), 1u);
}

TEST_F(PlanTest, WritesASelfContainedPage) {
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
                          HasSubstr("attention dilated"), HasSubstr("<td>16MiB</td>"),
                          HasSubstr(" tokens train in 64.00 MiB, attention window: ")));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http")), Not(HasSubstr("<script")), Not(HasSubstr("url("))));
}

TEST_F(PlanTest, PlansForAGpuWithoutAGpu) {
  EXPECT_THAT(printed(), HasSubstr("like this cpu: "));
  options_.train.device = "cuda";
  EXPECT_THAT(printed(), HasSubstr(" of a GPU\n"));
  const nlohmann::json plan = answer();
  EXPECT_EQ(plan["device"], "cuda");
  EXPECT_EQ(plan["rows"][0]["peak_reserved_bytes"].get<std::uint64_t>() % (std::uint64_t{2} << 20), 0u);
}

TEST_F(PlanTest, LeaksNothingOnTheDevice) {
  printed();
  options_.memory = "1MiB";
  options_.train.context = 3000;
  printed();
  EXPECT_EQ(allocator_for(parse_device("sim:1GiB,like=cpu", "plan")).statistics().allocated_bytes.current, 0u);
}

TEST_F(PlanTest, RefusesBadOptionsInOneSentence) {
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
              const char* const line[] = {"plan", "--budget", "1KiB"};
              parse_plan_options(3, line, o);
            }),
            "[plan] --budget must be from 1.00 MiB to 768.00 GiB, but is 1KiB");
  EXPECT_EQ(refused([](PlanOptions& o) {
              o.devices = {"8GB", "9TB"};
            }),
            "[plan] --devices must be from 1.00 MiB to 768.00 GiB, but is 9TB");
  EXPECT_EQ(refused([](PlanOptions& o) { o.svg = "-"; }), "[plan] --svg needs a file, but is -");
  EXPECT_EQ(refused([](PlanOptions& o) { o.svg = o.html = "a"; }), "[plan] --html and --svg are both a");
  const testing_support::TemporaryFolder folder;
  const std::string book = folder.file("book");
  testing_support::write_bytes(book, "text");
  EXPECT_EQ(refused([&](PlanOptions& o) {
              o.train.text = {book};
              o.json = book;
            }),
            "[plan] --json " + book + " would replace the text");
  EXPECT_EQ(refused([](PlanOptions& o) { o.train.device = "gpu"; }), "[plan] --device must be cpu or cuda, but is gpu");
  EXPECT_EQ(refused([](PlanOptions& o) { o.most = 0; }), "[plan] --most must be at least 1, but is 0");
  for (const char* vary : {"attention", "=window", "attention="})
    EXPECT_EQ(refused([&](PlanOptions& o) { o.vary = {vary}; }),
              std::string("[plan] --vary must be NAME=VALUE,VALUE, but is ") + vary);
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"wheels=3"}; }),
              HasSubstr("[--vary] there is no training option wheels"));
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"layers=many"}; }), HasSubstr("[--layers] entry 1, many: "));
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"width=many"}; }), HasSubstr("[plan] --vary width=many: "));
  EXPECT_THAT(refused([](PlanOptions& o) { o.vary = {"attention=window,cross"}; }),
              HasSubstr("--attention must be one of"));
  EXPECT_THAT(refused([](PlanOptions& o) { o.train.width = 33; }), HasSubstr("33"));
  for (const char* share : {"0%", "%", "much%", "-5%", "1001%", "nan%"})
    EXPECT_EQ(refused([&](PlanOptions& o) { o.memory = share; }),
              std::string("[plan] a share of --memory must be above 0 % and at most 1000 %, but is ") + share);
  EXPECT_EQ(refused([](PlanOptions& o) { o.measure = -1; }), "[plan] --measure must not be negative, but is -1");
  EXPECT_EQ(refused([](PlanOptions& o) { o.policies = "none,block+wheels"; }),
            "[plan] --policies: a suffix after + must be tile, chunk or offload, but is wheels in block+wheels");
  EXPECT_THAT(refused([](PlanOptions& o) { o.policies = "none,wheels"; }),
              AllOf(HasSubstr("must be none, selective, block"), HasSubstr("but is wheels")));
  EXPECT_THAT(refused([](PlanOptions& o) { o.policies = "none,,block"; }), HasSubstr("must be none, selective, block"));
  EXPECT_THAT(refused([](PlanOptions& o) { o.policies = "sqrt+chunk"; }), HasSubstr("--chunk"));
  EXPECT_EQ(refused([](PlanOptions& o) { o.train.context = 1'000'000'000'000'000; }),
            "[plan] --context 1000000000000000: a text of so many tokens does not fit in the memory of this machine");
  EXPECT_NO_THROW(printed());
}

}  // namespace
}  // namespace poolgrad::examples
