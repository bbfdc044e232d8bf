// Whole training runs of a small size.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "examples/support/train.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {

/// Runs options_ and keeps the output of the last run.
class TrainRuns : public ::testing::Test {
 protected:
  nn::TrainResult run(const TrainOptions& options) {
    out_.str("");
    return train(options, out_);
  }
  nn::TrainResult run() { return run(options_); }
  template <class E>
  std::string refusal(const TrainOptions& options) {
    return testing_support::error_of<E>([&] { run(options); });
  }

  testing_support::TemporaryFolder folder_;
  TrainOptions options_;
  std::ostringstream out_;
};

class SmallRun : public TrainRuns {
 protected:
  SmallRun() {
    std::string text;
    for (int i = 0; i < 2000; ++i)
      text += "int f" + std::to_string(i * i % 97) + "() { return " + std::to_string(i) + "; }\n";
    testing_support::write_bytes(folder_.file("text"), text);
    options_.text = {folder_.file("text")};
    options_.context = 96;
    options_.layers = 1;
    options_.width = 32;
    options_.heads = 4;
    options_.kv_heads = 2;
    options_.attention.window = 24;
    options_.batch = 2;
    options_.steps = 20;
    options_.report = 5;
    options_.sample = 16;
    options_.dropout = 0.1;
  }
};

}  // namespace poolgrad::examples
