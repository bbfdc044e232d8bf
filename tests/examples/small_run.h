// A training run as a whole, at a small size.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "examples/support/train.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {

class SmallRun : public ::testing::Test {
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

  nn::TrainResult run(const TrainOptions& options) {
    out_.str("");
    return train(options, out_);
  }
  nn::TrainResult run() { return run(options_); }
  /// How to go on with such a run: the configuration comes from its checkpoint.
  TrainOptions stopped_after_step_9() {
    options_.save = folder_.file("half.safetensors");
    options_.stop_after = 9;
    run();
    TrainOptions resumed;
    resumed.text = options_.text;
    resumed.resume = options_.save;
    resumed.sample = 16;
    return resumed;
  }
  template <class E>
  std::string refusal(const TrainOptions& options) {
    return testing_support::error_of<E>([&] { run(options); });
  }

  testing_support::TemporaryFolder folder_;
  TrainOptions options_;
  std::ostringstream out_;
};

}  // namespace poolgrad::examples
