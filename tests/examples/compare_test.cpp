// Kinds of attention compared: the table, the files, and the refused options.
#include "examples/compare/compare.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/error.h"
#include "tests/examples/train_program.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using poolgrad::testing_support::error_of;
using poolgrad::testing_support::read_bytes;
using poolgrad::testing_support::TemporaryFolder;
using ::testing::HasSubstr;

CompareOptions tiny_comparison(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
  poolgrad::testing_support::write_bytes(folder.file("text"), text);
  CompareOptions o;
  o.train.text = {folder.file("text")};
  o.train.context = 64;
  o.train.layers = 1;
  o.train.width = 16;
  o.train.heads = 2;
  o.train.steps = 6;
  o.train.given = {"steps"};
  o.train.attention.attention = "causal,window";
  o.train.attention.window = 8;
  return o;
}

TEST(Compare, TrainsEachKindAndReportsItsLoss) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_comparison(folder);
  o.json = folder.file("report.json");
  o.html = folder.file("page.html");
  std::ostringstream out;
  const std::vector<Compared> all = run_compare(o, out).kinds;
  ASSERT_EQ(all.size(), 2u);
  for (const Compared& one : all) {
    // The same run without the comparison.
    TrainOptions alone = o.train;
    alone.attention.attention = one.kind;
    alone.quiet = true, alone.sample = 0, alone.report = 1;
    std::ostringstream nowhere;
    const nn::TrainResult expected = train(alone, nowhere);
    EXPECT_EQ(one.result.validation_loss, expected.validation_loss) << one.kind;
    EXPECT_EQ(one.result.steps.back().loss, expected.steps.back().loss) << one.kind;
    EXPECT_EQ(one.result.peak_live_bytes, expected.peak_live_bytes) << one.kind;
  }
  EXPECT_NE(all[0].result.validation_loss, all[1].result.validation_loss);
  EXPECT_THAT(out.str(), HasSubstr("2 of 2: window of 8, 6 steps"));
  EXPECT_THAT(out.str(), ::testing::ContainsRegex("attention .*held out +after 1 to 8 +after 9 to 64"));
  EXPECT_THAT(out.str(), HasSubstr("causal"));
  const auto report = nlohmann::json::parse(read_bytes(o.json));
  ASSERT_EQ(report["kinds"].size(), 2u);
  EXPECT_EQ(report["kinds"][1]["attention"], "window");
  EXPECT_EQ(report["kinds"][1]["validation_loss"], all[1].result.validation_loss);
  EXPECT_EQ(report["kinds"][1]["loss_by_position"].back()["last"], 64);
  for (const auto& kind : report["kinds"])
    EXPECT_NEAR(kind["milliseconds_per_step"].get<double>() * kind["tokens_per_second"].get<double>(), 64e3, 1e-6)
        << "both of one step";
  EXPECT_THAT(out.str(), HasSubstr("ms/step and tok/s of the median step; "));
  EXPECT_FALSE(report["config"].contains("attention"));
  const std::string page = read_bytes(o.html);
  EXPECT_THAT(page, HasSubstr("window<small>window of 8</small>"));
  EXPECT_THAT(page, HasSubstr("<svg"));
}

TEST(Compare, TrainsEachListOfLayers) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_comparison(folder);
  o.train.layers = LayerList("2*window;window,causal+nope");
  o.json = folder.file("report.json");
  o.html = folder.file("page.html");
  std::ostringstream out;
  const std::vector<Compared> all = run_compare(o, out).kinds;
  ASSERT_EQ(all.size(), 2u);
  for (const Compared& one : all) {
    TrainOptions alone = o.train;
    alone.layers = LayerList(one.kind);
    alone.quiet = true, alone.sample = 0, alone.report = 1;
    std::ostringstream nowhere;
    EXPECT_EQ(one.result.validation_loss, train(alone, nowhere).validation_loss) << one.kind;
  }
  EXPECT_THAT(out.str(), HasSubstr("2 of 2: window of 8; causal, no positions, 6 steps"));
  const auto report = nlohmann::json::parse(read_bytes(o.json));
  EXPECT_EQ(report["kinds"][1]["attention"], "window,causal+nope");
  EXPECT_FALSE(report["config"].contains("layers"));
  EXPECT_THAT(read_bytes(o.html), HasSubstr("window,causal+nope<small>window of 8; causal, no positions</small>"));
}

TEST(Compare, TrainsEachKindForTheGivenTime) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_comparison(folder);
  o.train.given.clear();
  o.time = "0.2s";
  o.train.attention.attention = "window";
  std::ostringstream out;
  const std::vector<Compared> all = run_compare(o, out).kinds;
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(static_cast<std::int64_t>(all[0].result.steps.size()), all[0].steps);
  double seconds = 0;
  for (const nn::StepRecord& step : all[0].result.steps) seconds += 1e-3 * step.milliseconds;
  EXPECT_GT(seconds, 0.02);
  EXPECT_LT(seconds, 2.0) << all[0].steps << " steps";
}

CompareOptions tiny_tasks(const TemporaryFolder& folder) {
  CompareOptions o = tiny_comparison(folder);
  o.train.text.clear();
  o.train.layers = LayerList("2*window:8;window:8,causal+nope");
  o.tasks = {"recall:8:64", "copy:8"};
  return o;
}

TEST(Compare, TrainsEachListOfLayersOnEachTask) {
  const TemporaryFolder folder;
  const CompareOptions o = tiny_tasks(folder);
  std::ostringstream out;
  const CompareResult comparison = run_compare(o, out);
  EXPECT_TRUE(comparison.kinds.empty()) << "no text is given";
  ASSERT_EQ(comparison.tasks.size(), 2u);
  for (std::size_t i = 0; i < o.tasks.size(); ++i) {
    std::ostringstream nowhere;
    const std::vector<RecallResult> alone = run_recall(o.recall(o.tasks[i]), nowhere);
    ASSERT_EQ(comparison.tasks[i].results.size(), alone.size());
    for (std::size_t k = 0; k < alone.size(); ++k) {
      const RecallResult& found = comparison.tasks[i].results[k];
      EXPECT_EQ(found.records.size(), 6u);
      EXPECT_EQ(found.records.back().loss, alone[k].records.back().loss) << o.tasks[i];
      EXPECT_EQ(found.scores.back().right, alone[k].scores.back().right) << o.tasks[i];
    }
  }
  EXPECT_EQ(comparison.tasks[0].results[0].scores.back().distance, 64);
  EXPECT_EQ(comparison.tasks[1].results[0].scores.back().distance, 32) << "four times the distance of the training";
  EXPECT_THAT(out.str(), HasSubstr("task     copy: 8 symbols stated"));
}

TEST(Compare, ReportsTasksInJsonCsvAndHtml) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_tasks(folder);
  o.json = folder.file("report.json");
  o.csv = folder.file("report.csv");
  o.html = folder.file("page.html");
  std::ostringstream out;
  const CompareResult comparison = run_compare(o, out);
  const auto report = nlohmann::json::parse(read_bytes(o.json));
  EXPECT_TRUE(report["kinds"].empty());
  ASSERT_EQ(report["tasks"].size(), 2u);
  EXPECT_EQ(report["tasks"][1]["config"]["task"], "copy");
  EXPECT_EQ(report["tasks"][1]["results"][1]["attention"], "window:8,causal+nope");
  const double accuracy = comparison.tasks[1].results[1].scores[0].accuracy();
  EXPECT_EQ(report["tasks"][1]["results"][1]["scores"][0]["accuracy"], accuracy);
  const std::string csv = read_bytes(o.csv);
  EXPECT_TRUE(csv.starts_with("measure,attention,distance,value\n"));
  EXPECT_THAT(csv, HasSubstr(fmt::format("copy,\"window:8,causal+nope\",32,{}\n", accuracy)));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 2 * 2 + 2 * 1);
  const std::string page = read_bytes(o.html);
  EXPECT_THAT(page, HasSubstr("<section><h2>recall: right answers</h2>\n<svg"));
  EXPECT_THAT(page, HasSubstr("window:8,causal+nope<small>window of 8; causal, no positions</small>"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("Validation loss")));
}

TEST(Compare, TrainsOnATextBesideATask) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_comparison(folder);
  o.tasks = {"induction:8"};
  o.csv = folder.file("report.csv");
  std::ostringstream out;
  const CompareResult comparison = run_compare(o, out);
  EXPECT_EQ(comparison.kinds.size(), 2u);
  EXPECT_EQ(comparison.tasks.size(), 1u);
  const nn::PositionLoss last = comparison.kinds[1].result.by_position.back();
  EXPECT_THAT(read_bytes(o.csv), HasSubstr(fmt::format("loss,window,{},{}\n", last.last, last.loss)));
}

TEST(Compare, RefusesBadOptionsInOneSentence) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::function<void(CompareOptions&)>& change) {
    CompareOptions o = tiny_comparison(folder);
    change(o);
    std::ostringstream out;
    return error_of<Error>([&] { run_compare(o, out); });
  };
  EXPECT_EQ(refused([](auto& o) { o.train.attention.attention = ""; }), "[compare] --attention lists nothing");
  EXPECT_EQ(refused([](auto& o) { o.train.attention.attention = "window,window"; }),
            "[compare] --attention names window twice");
  EXPECT_THAT(refused([](auto& o) { o.train.attention.attention = "window,cross"; }),
              HasSubstr("[compare] --attention must be"));
  EXPECT_EQ(refused([](auto& o) { o.train.layers = LayerList("window;causal;window"); }),
            "[compare] --layers names window twice");
  EXPECT_EQ(refused([](auto& o) { o.train.layers = LayerList("window;causal,none"); }),
            "[--layers] entry 2, none: it has an unknown part none: did you mean nope?");
  EXPECT_EQ(refused([](auto& o) { o.time = "4"; }),
            "[compare] --time must be a time such as 90s, 4min or 1h, but is 4");
  EXPECT_EQ(refused([](auto& o) { o.time = "0s"; }),
            "[compare] --time must be a time such as 90s, 4min or 1h, but is 0s");
  EXPECT_THAT(refused([](auto& o) { o.train.device = "sim:1GiB"; }), HasSubstr("on sim nothing is learned"));
  EXPECT_EQ(refused([](auto& o) { o.html = o.train.text[0]; }),
            "[compare] --html " + folder.file("text") + " would replace the text");
  EXPECT_EQ(refused([](auto& o) { o.json = o.html = "a"; }), "[compare] --json and --html are both a");
  EXPECT_EQ(refused([](auto& o) { o.html = "-"; }), "[compare] --html needs a file, but is -");
  EXPECT_EQ(refused([](auto& o) { o.tasks = {"recall:8:x"}; }),
            "[compare] --task must be NAME:DISTANCE:ASK, such as recall:256:1024, but is recall:8:x");
  EXPECT_EQ(refused([](auto& o) {
              o.tasks = {"mqar", "riddle"};
            }),
            "[recall] --task must be one of recall, passkey, mqar, copy, induction, variables, but is riddle");
  EXPECT_EQ(refused([](auto& o) { o.train.steps = 0; }), "[compare] --steps must be at least 1: 0");
}

TEST(Compare, ContinuesAfterAFailedKind) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_comparison(folder);
  o.train.context = 1024;
  o.train.width = 64;
  o.train.attention.attention = "ring,window";
  o.train.checkpoint = "none";
  std::ostringstream out;
  const CompareResult free = run_compare(o, out);
  const std::uint64_t more = free.kinds[0].result.peak_live_bytes, less = free.kinds[1].result.peak_live_bytes;
  ASSERT_GT(more, less);
  o.train.budget = std::to_string((more + less) / 2);
  o.json = folder.file("report.json");
  o.html = folder.file("page.html");
  out.str("");
  const CompareResult comparison = run_compare(o, out);
  const std::vector<Compared>& all = comparison.kinds;
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].result.validation_loss, free.kinds[1].result.validation_loss);
  EXPECT_EQ(all[1].result.error, "");
  const auto report = nlohmann::json::parse(read_bytes(o.json));
  EXPECT_EQ(report["kinds"][0]["error"], all[0].result.error);
  EXPECT_TRUE(report["kinds"][0]["validation_loss"].is_null());
  EXPECT_TRUE(report["kinds"][1]["error"].is_null());
  EXPECT_GT(report["baselines"]["unigram"], 0);
  const std::string reason = all[0].result.error.substr(0, all[0].result.error.find('\n'));
  EXPECT_THAT(out.str(), HasSubstr("  failed: " + reason));
  EXPECT_THAT(out.str(), ::testing::ContainsRegex("ring.* 0 \\(failed\\) .* - *\n"));
  EXPECT_THAT(read_bytes(o.html), HasSubstr("<p>ring: "));
  EXPECT_EQ(error_of<Error>([&] { check_ended(comparison); }), "[compare] ring failed: " + reason);
  check_ended(free);
}

CompareOptions parsed(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "compare");
  CompareOptions o;
  EXPECT_EQ(parse_compare_options(static_cast<int>(arguments.size()), arguments.data(), o), -1);
  return o;
}

TEST(Compare, RefusesBothStepsAndATime) {
  for (const auto& time : {std::vector<const char*>{"--time", "2s"}, {"--budget", "2s"}}) {
    std::vector<const char*> arguments{"compare", "--steps", "5"};
    arguments.insert(arguments.end(), time.begin(), time.end());
    CompareOptions o;
    EXPECT_EQ(
        error_of<ValueError>([&] { parse_compare_options(static_cast<int>(arguments.size()), arguments.data(), o); }),
        "[compare] --steps and the time 2s both set the length of a run: give one of them");
  }
  EXPECT_EQ(parsed({"--steps", "5", "--budget", "1GiB"}).train.budget, "1GiB");
}

TEST(Compare, TheUnitOfABudgetTellsTimeFromMemory) {
  const CompareOptions timed = parsed({"--attention", "causal,window,dilated", "--budget", "90s"});
  EXPECT_EQ(timed.seconds(), 90);
  EXPECT_EQ(timed.train.budget, "");
  const CompareOptions bounded = parsed({"--budget", "512MiB"});
  EXPECT_EQ(bounded.seconds(), 240) << "the default";
  EXPECT_EQ(bounded.train.budget, "512MiB");
  for (const CompareOptions& both : {parsed({"--budget", "512MiB,2min"}), parsed({"--budget=2min", "--budget=512MiB"}),
                                     parsed({"--budget=512MiB", "--time=2min"})}) {
    EXPECT_EQ(both.seconds(), 120);
    EXPECT_EQ(both.train.budget, "512MiB");
  }
  const auto refused = [](const std::vector<const char*>& line) { return error_of<ValueError>([&] { parsed(line); }); };
  for (const char* neither : {"4", "much", "4 furlongs", "0s", "-1min"})
    EXPECT_EQ(
        refused({"--budget", neither}),
        std::string("[compare] --budget must be a time such as 4min or a size such as 512MiB, but is ") + neither);
  EXPECT_EQ(refused({"--budget", "4min", "--time", "1min"}),
            "[compare] the budget of time is given twice: --budget 4min");
  EXPECT_EQ(refused({"--budget", "1GiB,512MiB"}), "[compare] the budget of memory is given twice: --budget 512MiB");
}

TEST(Compare, HasNoSampleOption) {
  const std::vector<const char*> arguments{"compare", "--sample", "100"};
  CompareOptions o;
  ::testing::internal::CaptureStderr();
  EXPECT_GT(parse_compare_options(static_cast<int>(arguments.size()), arguments.data(), o), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--sample"));
}

/// Removes a file when the first line is written.
class Removing : public std::stringbuf {
 public:
  explicit Removing(std::string path) : path_(std::move(path)) {}

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    removed_ = removed_ || std::filesystem::remove(path_);
    return std::stringbuf::xsputn(text, count);
  }

  std::string path_;
  bool removed_ = false;
};

TEST(Compare, ReadsTheTextAndLearnsTheTokenizerOnce) {
  const TemporaryFolder folder;
  CompareOptions o = tiny_comparison(folder);
  o.train.tokenizer = "bpe:260";
  Removing lines(o.train.text[0]);
  std::ostream out(&lines);
  const std::vector<Compared> all = run_compare(o, out).kinds;
  EXPECT_FALSE(std::filesystem::exists(o.train.text[0])) << "before the first of them was trained";
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].result.steps.size(), 6u);
  EXPECT_THAT(lines.str(), HasSubstr("also by tokens of context"));
}

}  // namespace
}  // namespace poolgrad::examples
