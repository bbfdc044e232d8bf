// examples/recall as a whole, at a small size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/caching_allocator.h"
#include "examples/recall/recall.h"
#include "kernels/parallel.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;

class Recall : public ::testing::Test {
 protected:
  Recall() {
    options_.distance = 40;
    options_.ask = 0;
    options_.align = 4;
    options_.layers = 2;
    options_.pairs = 4;
    options_.keys = 4;
    options_.values = 4;
    options_.width = 32;
    options_.heads = 2;
    options_.tokens = 256;
    options_.steps = 6;
    options_.report = 2;
    options_.questions = 8;
    options_.attention.window = 8;
    options_.attention.segments = {16, 64};
    options_.attention.rates = {1, 2};
  }
  std::vector<RecallResult> run() {
    out_.str("");
    return run_recall(options_, out_);
  }
  template <class Change>
  std::string refusal(const Change& change) const {
    RecallOptions options = options_;
    change(options);
    return error_of<Error>([&] { options.check(); });
  }

  RecallOptions options_;
  std::ostringstream out_;
  TemporaryFolder folder_;
};

std::vector<double> numbers(const std::vector<RecallResult>& results) {
  std::vector<double> all;
  for (const RecallResult& r : results) {
    for (const RecallRecord& s : r.records) all.insert(all.end(), {s.loss, s.accuracy});
    for (const RecallScore& s : r.scores) all.push_back(s.accuracy());
  }
  return all;
}

TEST_F(Recall, AttentionLearnsAndATooShortWindowGuesses) {
  options_.attention.attention = "causal,window";
  options_.attention.window = 1;
  options_.pairs = options_.keys = 2;
  options_.distance = 4;
  options_.steps = 300;
  options_.questions = 200;
  const auto results = run();
  EXPECT_GT(results[0].scores.back().accuracy(), 0.9);
  EXPECT_TRUE(results[0].learned);
  EXPECT_NEAR(results[1].scores.back().accuracy(), options_.task().chance(), 0.12);
  EXPECT_FALSE(results[1].learned);
  EXPECT_EQ(results[1].records.size(), 300u);
}

TEST_F(Recall, TwoRunsAndAnyNumberOfThreadsGiveEqualBits) {
  const std::vector<double> first = numbers(run());
  EXPECT_EQ(numbers(run()), first);
  const int threads = kernels::num_threads();
  kernels::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_EQ(numbers(run()), first);
  kernels::set_num_threads(threads);
  options_.seed = 2;
  EXPECT_NE(numbers(run()), first);
}

TEST_F(Recall, ContendersTrainOnTheSameSequencesAndSteps) {
  options_.attention.attention = "causal,dense,window";  // two names of one pattern
  const auto results = run();
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(numbers({results[0]}), numbers({results[1]}));
  EXPECT_EQ(results[2].records.size(), results[0].records.size());
  EXPECT_EQ(results[2].tokens, results[0].tokens);
}

TEST_F(Recall, RunsWithEveryKindOfAttention) {
  options_.attention.attention = fmt::format("{}", fmt::join(attention_names(), ","));
  options_.attention.block = 16;
  options_.attention.ring_size = 3;
  options_.steps = 2;
  for (const RecallResult& result : run()) {
    EXPECT_EQ(result.records.size(), 2u) << result.attention;
    EXPECT_EQ(result.scores.size(), 2u) << result.attention;
  }
}

TEST_F(Recall, ALocalAndAGlobalNopeLayerExtrapolate) {
  options_.layers = LayerList("window:16+rope:100,causal+nope;2*window:16");
  options_.pairs = options_.keys = 2;
  options_.distance = 32;
  options_.ask = 512;
  options_.align = 1;
  options_.steps = 600;
  options_.questions = 100;
  const auto results = run();
  EXPECT_TRUE(results[0].learned);
  EXPECT_EQ(results[0].scores.back().distance, 512);
  EXPECT_GT(results[0].scores.back().accuracy(), 0.9);
  EXPECT_NEAR(results[1].scores.back().accuracy(), options_.task().chance(), 0.15) << "beyond the windows";
}

TEST_F(Recall, TestsDistancesBeyondTrainingForEachLayerList) {
  options_.layers = LayerList("window:16,causal+nope;2*window:4");
  options_.ask = 200;
  options_.svg = folder_.file("recall.svg");
  const auto results = run();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].attention, "window:16,causal+nope");
  for (const RecallResult& result : results) {
    for (const RecallRecord& record : result.records) EXPECT_LE(record.distance, 40);
    std::vector<std::int64_t> distances;
    for (const RecallScore& score : result.scores) distances.push_back(score.distance);
    EXPECT_EQ(distances, (std::vector<std::int64_t>{32, 64, 128, 200}));
  }
  EXPECT_THAT(out_.str(), HasSubstr("2 layers: window of 16, rope base 1000000; causal, no positions"));
  const std::string picture = read_bytes(options_.svg);
  EXPECT_TRUE(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(picture, HasSubstr("window:16,causal+nope"));
}

TEST_F(Recall, APasskeyHasTenPossibleDigits) {
  RecallOptions options;
  options.task_name = "passkey";
  EXPECT_EQ(options.task().chance(), 0.1);
  options_.task_name = "passkey";
  EXPECT_EQ(run()[0].scores.back().distance, 40);
}

TEST_F(Recall, LearnsEveryKindOfTask) {
  options_.layers = LayerList("window:64+rope:100+qk-norm,causal+nope");
  options_.distance = 8;
  options_.pairs = 2;
  options_.keys = options_.values = 4;
  options_.align = 1;
  options_.steps = 500;
  options_.questions = 100;
  for (const nn::TaskKind& kind : nn::task_kinds()) {
    options_.task_name = kind.name;
    const RecallResult result = run()[0];
    EXPECT_GT(result.scores.back().accuracy(), 0.5) << kind.name << ", by chance " << options_.task().chance();
    EXPECT_THAT(out_.str(),
                HasSubstr("task     " + std::string(kind.name) + ": 2 " + std::string(kind.unit) + "s stated"));
  }
}

TEST_F(Recall, StopsAtItsTimeLimit) {
  options_.steps = 0;
  options_.seconds = 0.05;
  const RecallResult result = run()[0];
  EXPECT_GE(result.records.size(), 1u);
  EXPECT_GE(result.seconds, 0.05);
  EXPECT_FALSE(result.interrupted);
}

TEST_F(Recall, StopsTrainingAtCtrlCAndStillTests) {
  options_.attention.attention = "window,causal";
  options_.steps = 1000000;
  struct Interrupting : std::stringbuf {
    int sync() override {
      if (str().find("step") != std::string::npos && str().find("ms/step") != std::string::npos && !raised) {
        raised = true;
        std::raise(SIGINT);
      }
      return 0;
    }
    bool raised = false;
  } buffer;
  std::ostream out(&buffer);
  const auto results = run_recall(options_, out);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0].interrupted);
  EXPECT_EQ(results[0].scores.size(), 2u);
}

TEST_F(Recall, PrintsProgressAndATable) {
  options_.attention.attention = "causal,window";
  run();
  for (const char* part : {"chance 25.0 %", "step 2/6", "ms/step", "ETA", "window of 8", "right answers by distance",
                           "distance  causal  window\n"})
    EXPECT_THAT(out_.str(), HasSubstr(part));
  options_.quiet = true;
  run();
  EXPECT_EQ(out_.str(), "");
}

TEST_F(Recall, WarnsWhenARateHasMorePhasesThanHeads) {
  options_.steps = 1;
  run();
  EXPECT_EQ(out_.str().find("note"), std::string::npos);
  options_.attention.rates = {1, 4};
  run();
  EXPECT_THAT(out_.str(), HasSubstr("note     2 heads take 2 of the 4 phases of rate 4"));
}

TEST_F(Recall, ReportsInJsonAndCsv) {
  options_.attention.attention = "causal,window";
  options_.json = folder_.file("report.json");
  options_.csv = folder_.file("steps.csv");
  const auto results = run();
  const auto report = nlohmann::json::parse(read_bytes(options_.json));
  EXPECT_EQ(report["config"]["distance"], 40);
  EXPECT_EQ(report["config"]["chance"], 0.25);
  ASSERT_EQ(report["results"].size(), 2u);
  EXPECT_EQ(report["results"][1]["attention"], "window");
  EXPECT_EQ(report["results"][1]["scores"][1]["accuracy"], results[1].scores[1].accuracy());
  EXPECT_EQ(report["results"][1]["steps"][5]["loss"], results[1].records[5].loss);
  const std::string csv = read_bytes(options_.csv);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13);
  options_.json = "/nowhere/report.json";
  EXPECT_EQ(error_of<FileError>([&] { run(); }),
            "[recall] cannot write /nowhere/report.json: its folder does not exist");
}

TEST_F(Recall, QuotesListsOfLayersInCsv) {
  options_.layers = LayerList("window:8,causal+nope");
  options_.steps = 1;
  options_.csv = folder_.file("steps.csv");
  run();
  EXPECT_THAT(read_bytes(options_.csv), HasSubstr("\n\"window:8,causal+nope\",1,"));
}

TEST_F(Recall, AFailedContenderDoesNotStopTheOthers) {
  options_.attention.attention = "causal,window";
  options_.json = folder_.file("report.json");
  options_.lr = 1e30;  // after one step all numbers are infinite
  EXPECT_THAT(error_of<ValueError>([&] { run(); }), HasSubstr("diverged"));
  EXPECT_THAT(out_.str(), HasSubstr("window failed: "));
  const auto report = nlohmann::json::parse(read_bytes(options_.json));
  ASSERT_EQ(report["results"].size(), 2u);
  EXPECT_THAT(std::string(report["results"][0]["error"]), HasSubstr("diverged"));
  EXPECT_GE(report["results"][1]["steps"].size(), 1u) << "those before";
}

TEST_F(Recall, LeaksNothingInThePool) {
  run();
  const auto live = allocator_for(cpu).statistics().requested_bytes.current;
  run();
  EXPECT_EQ(allocator_for(cpu).statistics().requested_bytes.current, live);
}

TEST_F(Recall, RefusesBadOptionsInOneSentence) {
  EXPECT_EQ(refusal([](auto& o) { o.attention.attention = "causal,cross"; }),
            "[recall] --attention must be one of causal, dense, window, dilated, block_sparse, global_local, strided, "
            "random, ring, delta, gla, nsa, but is cross");
  EXPECT_EQ(refusal([](auto& o) { o.attention.attention = "causal,window,causal"; }),
            "[recall] --attention names causal twice");
  EXPECT_EQ(refusal([](auto& o) { o.tokens = 0; }), "[recall] --tokens must be at least 1, but is 0");
  EXPECT_EQ(refusal([](auto& o) { o.steps = 0; }), "[recall] --steps 0 needs --seconds: the training ends after them");
  EXPECT_EQ(refusal([](auto& o) { o.lr = 0; }), "[recall] --lr must be positive, but is 0");
  EXPECT_EQ(refusal([](auto& o) { o.task_name = "kv"; }),
            "[recall] --task must be one of recall, passkey, mqar, copy, induction, variables, but is kv");
  EXPECT_EQ(refusal([](auto& o) { o.heads = 5; }), "[--layers, --width, --heads] width 32 is not divisible by 5 heads");
  EXPECT_EQ(refusal([](auto& o) { o.json = o.csv = "a"; }), "[recall] --json and --csv are both a");
  EXPECT_THAT(refusal([](auto& o) { o.attention.rates = {1}; }), HasSubstr("[--segments, --rates] "));
  EXPECT_EQ(refusal([](auto& o) { o.layers = LayerList("window;windw"); }),
            "[--layers] entry 1, windw: it has an unknown part windw: did you mean window?");
  EXPECT_EQ(refusal([](auto& o) { o.ask = -1; }), "[recall] --ask must not be negative, but is -1");
}

TEST_F(Recall, ReadsTheCommandLine) {
  const char* arguments[] = {"recall",     "--attention", "causal,dilated", "--distance", "128",
                             "--segments", "16,64",       "--rates",        "1,4"};
  RecallOptions options;
  EXPECT_EQ(parse_recall_options(9, arguments, options), -1);
  EXPECT_EQ(options.contenders().size(), 2u);
  EXPECT_EQ(options.contenders()[1].name, "dilated");
  EXPECT_EQ(options.contenders()[1].layers.count(), 2);
  EXPECT_EQ(options.attention.segments, (std::vector<std::int64_t>{16, 64}));
  EXPECT_EQ(options.task().distance, 128);
  const char* needle[] = {"recall", "--distance", "256", "--preset", "needle"};
  RecallOptions hidden;
  EXPECT_EQ(parse_recall_options(5, needle, hidden), -1);
  EXPECT_EQ(hidden.task_name, "passkey");
  EXPECT_EQ(hidden.distance, 256) << "what is given goes before a preset";
  const char* mqar[] = {"recall", "--preset", "mqar"};
  RecallOptions queries;
  EXPECT_EQ(parse_recall_options(3, mqar, queries), -1);
  EXPECT_EQ(queries.task().length(), 512) << "64 pairs, as in Zoology";
  EXPECT_EQ(queries.task().vocabulary(), 8192);
  const char* unknown[] = {"recall", "--distanse", "3"};
  ::testing::internal::CaptureStderr();
  EXPECT_GT(parse_recall_options(3, unknown, options), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("[recall] there is no option --distanse: did you mean --distance?"));
}

}  // namespace
}  // namespace poolgrad::examples
