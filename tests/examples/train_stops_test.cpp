// Runs that end early, by Ctrl-C or an error, lose no data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "allocator/error.h"
#include "tensor/safetensors.h"
#include "tests/examples/small_run.h"
#include "tests/process_guards.h"

namespace poolgrad::examples {
namespace {

using ::testing::HasSubstr;
using testing_support::read_bytes;
using testing_support::write_bytes;

class TrainStops : public SmallRun {};

/// Sends Ctrl-C when `line` is written.
struct CtrlC : std::stringbuf {
  explicit CtrlC(std::string line) : line(std::move(line)) {}
  int sync() override {
    if (str().find(line) != std::string::npos && !raised) {
      raised = true;
      std::raise(SIGINT);
    }
    return 0;
  }
  std::string line;
  bool raised = false;
};

TEST_F(TrainStops, StopsCleanlyAtCtrlC) {
  options_.save = folder_.file("stopped.safetensors");
  options_.steps = 1000000;
  options_.report = 1;
  CtrlC buffer("step");
  std::ostream out(&buffer);
  const nn::TrainResult result = train(options_, out);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps.size(), 2u);
  EXPECT_TRUE(load_safetensors(options_.save).contains("model.head.weight"));
}

TEST_F(TrainStops, StopsDuringValidation) {
  options_.save = folder_.file("done.safetensors");
  CtrlC buffer("step 20/20");
  std::ostream out(&buffer);
  const nn::TrainResult result = train(options_, out);
  EXPECT_TRUE(buffer.raised);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps.size(), 20u);
  EXPECT_EQ(result.sample, "");
  EXPECT_GT(result.validation_loss, 0) << "that of the last line";
  EXPECT_TRUE(load_safetensors(options_.save).contains("model.head.weight"));
}

TEST_F(TrainStops, SavesUnderANewNameAndReplacesNoCheckpoint) {
  const testing_support::WorkingFolder here(folder_.file(""));
  write_bytes("poolgrad-train.safetensors", "older");
  options_.report = 1;
  for (const char* const name : {"poolgrad-train-2.safetensors", "poolgrad-train-3.safetensors"}) {
    CtrlC buffer("step");
    std::ostream out(&buffer);
    train(options_, out);
    EXPECT_THAT(buffer.str(), HasSubstr(std::string("--resume ") + name));
    EXPECT_TRUE(load_safetensors(name).contains("model.head.weight"));
  }
  EXPECT_EQ(read_bytes("poolgrad-train.safetensors"), "older");
}

/// Keeps a copy of a file at the time when a line is written.
struct Keep : std::stringbuf {
  Keep(std::string told, std::string path) : line(std::move(told)), file(std::move(path)) {}
  int sync() override {
    if (content.empty() && str().find(line) != std::string::npos) content = read_bytes(file);
    return 0;
  }
  std::string line, file, content;
};

TEST_F(TrainStops, ResumesFromThePeriodicCheckpoint) {
  options_.save = folder_.file("saved.safetensors");
  options_.save_every = 7;
  options_.report = 1;
  Keep buffer("step 16/20", options_.save);
  std::ostream out(&buffer);
  const nn::TrainResult whole = train(options_, out);
  write_bytes(options_.save, buffer.content);
  TrainOptions rest;
  rest.text = options_.text;
  rest.resume = options_.save;
  const nn::TrainResult resumed = run(rest);
  EXPECT_EQ(resumed.steps.front().step, 15);
  EXPECT_EQ(resumed.steps.back().loss, whole.steps.back().loss);
  EXPECT_EQ(resumed.validation_loss, whole.validation_loss);
}

/// As a user runs it: the program in its own process.
TEST_F(TrainStops, SavesItsCheckpointWhenItsOutputCloses) {
  const std::string save = folder_.file("saved.safetensors"), status = folder_.file("status"),
                    errors = folder_.file("errors");
  const auto run_program = [&](const std::string& limit, const std::string& reader) {
    return "(" + limit + POOLGRAD_TRAIN_PROGRAM + " --text " + folder_.file("text") +
           " --context 64 --layers 1 --width 16 --heads 2 --report 1 --steps 1000000 --save " + save + " 2>" + errors +
           "; echo $? >" + status + ") | " + reader + " >/dev/null";
  };
  ASSERT_EQ(std::system(run_program("", "head -n 5").c_str()), 0);
  EXPECT_EQ(read_bytes(status), "1\n");
  EXPECT_EQ(read_bytes(errors), "cannot write all results to standard output\n");
  EXPECT_TRUE(load_safetensors(save).contains("model.head.weight"));
  const std::string before = read_bytes(save);
  ASSERT_EQ(std::system(run_program("ulimit -f 4; ", "head -n 5").c_str()), 0);
  EXPECT_EQ(read_bytes(status), "1\n");
  EXPECT_THAT(read_bytes(errors), ::testing::MatchesRegex("\\[write\\] [^\n]*: cannot write: File too large\n"));
  EXPECT_EQ(read_bytes(save), before);
}

TEST_F(TrainStops, ContinuesAfterAFailedPeriodicCheckpoint) {
  const testing_support::WorkingFolder here(folder_.file(""));
  options_.save = folder_.file("folder") + "/saved.safetensors";
  options_.save_every = 7;
  options_.report = 1;
  std::filesystem::create_directory(folder_.file("folder"));
  struct Remove : std::stringbuf {
    explicit Remove(std::string path) : folder(std::move(path)) {}
    int sync() override {
      if (str().find("step  1/20") != std::string::npos) std::filesystem::remove_all(folder);
      return 0;
    }
    std::string folder;
  } buffer(folder_.file("folder"));
  std::ostream out(&buffer);
  std::size_t steps = 0;
  options_.reported = [&](nn::Trainer&, nn::TrainResult& result, bool) { steps = result.steps.size(); };
  EXPECT_THAT(testing_support::error_of<FileError>([&] { train(options_, out); }), HasSubstr(options_.save));
  EXPECT_EQ(steps, 20u);
  EXPECT_THAT(buffer.str(), HasSubstr("\nno checkpoint of step 14: [write] " + options_.save + ": cannot create"));
  EXPECT_TRUE(std::filesystem::exists("poolgrad-train.safetensors")) << "the last one goes where there is room";
}

TEST_F(TrainStops, ReportsTheMeasuredStepsAfterAnError) {
  options_.optimizer = "sgd";
  options_.lr = 1e30;
  options_.steps = 1000;
  options_.save = folder_.file("none.safetensors");
  options_.json = folder_.file("report.json");
  options_.metrics = folder_.file("steps.csv");
  nn::TrainResult shown;
  options_.reported = [&](nn::Trainer&, nn::TrainResult& result, bool finished) {
    if (finished) shown = result;
  };
  const std::string error = refusal<ValueError>(options_);
  EXPECT_THAT(error, HasSubstr("[train] step "));
  const auto report = nlohmann::json::parse(read_bytes(options_.json));
  const std::size_t steps = report["steps"].size();
  EXPECT_GE(steps, 1u);
  EXPECT_LT(steps, 1000u);
  EXPECT_EQ(report["error"], error);
  EXPECT_EQ(report["interrupted"], false);
  EXPECT_EQ(report["validations"][0]["step"], 1);
  EXPECT_GT(report["peak_live_bytes"], 0);
  EXPECT_GT(report["tokens_per_second"], 0);
  const std::string metrics = read_bytes(options_.metrics);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(metrics, '\n')), 1 + report["validations"].size());
  EXPECT_EQ(shown.error, error) << "on the page";
  EXPECT_EQ(shown.steps.size(), steps);
  EXPECT_FALSE(std::filesystem::exists(options_.save)) << "no checkpoint of a step that was not finished";
  EXPECT_THAT(out_.str(), HasSubstr("failed   after step " + std::to_string(steps) + ": " + error));
  EXPECT_THAT(out_.str(), HasSubstr("wrote    report " + options_.json));
}

TEST_F(TrainStops, FailsWhenTheLastUpdateDiverges) {
  options_.optimizer = "sgd";
  options_.lr = 1e308;
  options_.steps = 1;
  options_.save = folder_.file("none.safetensors");
  const std::string error = refusal<ValueError>(options_);
  EXPECT_THAT(error, ::testing::MatchesRegex("\\[train\\] step 1 diverged: validation loss -?nan after it"));
  EXPECT_THAT(out_.str(), HasSubstr("failed   after step 1: " + error));
  EXPECT_FALSE(std::filesystem::exists(options_.save)) << "no checkpoint of a model that is lost";
}

TEST_F(TrainStops, ReportsRunningOutOfMemoryInTheFirstStep) {
  options_.budget = "8MiB";
  options_.context = 4096;
  options_.width = 128;
  options_.json = folder_.file("report.json");
  const std::string error = refusal<OutOfMemoryError>(options_);
  const auto report = nlohmann::json::parse(read_bytes(options_.json));
  EXPECT_EQ(report["error"], error);
  EXPECT_TRUE(report["steps"].empty());
  EXPECT_TRUE(report["validation_loss"].is_null());
  EXPECT_THAT(out_.str(), HasSubstr("failed   after step 0: "));
}

}  // namespace
}  // namespace poolgrad::examples
