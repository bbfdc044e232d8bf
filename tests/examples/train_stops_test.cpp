// Ctrl-C: a run ends cleanly, and nothing is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <ostream>
#include <sstream>

#include "tensor/safetensors.h"
#include "tests/examples/small_run.h"
#include "tests/process_guards.h"

namespace poolgrad::examples {
namespace {

using ::testing::HasSubstr;
using testing_support::read_bytes;
using testing_support::write_bytes;

class TrainStops : public SmallRun {};

/// Presses Ctrl-C as soon as it is told `line`.
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

TEST_F(TrainStops, CleanlyAtCtrlC) {
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

TEST_F(TrainStops, WhileTheHeldOutTextIsScored) {
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

TEST_F(TrainStops, WithoutANameAndReplaceNoCheckpoint) {
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

}  // namespace
}  // namespace poolgrad::examples
