// Random models, patterns, dtypes and limits: with every memory policy a run gives the same numbers and stays within
// its budget to the byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "examples/support/train.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::examples {
namespace {

using nn::StepRecord, nn::TrainResult;

class MemoryPolicies : public ::testing::Test {
 protected:
  MemoryPolicies() {
    std::string text;
    for (int i = 0; i < 900; ++i) text += "f(" + std::to_string(i * i % 97) + ") = " + std::to_string(i) + ";\n";
    testing_support::write_bytes(folder_.file("text"), text);
  }

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

  /// Two steps of a small model of any kind.
  TrainOptions any_model() {
    TrainOptions o;
    o.text = {folder_.file("text")};
    o.context = static_cast<std::int64_t>(64 + below(200));
    o.layers = static_cast<std::int64_t>(1 + below(5));
    o.heads = one_of<std::int64_t>({2, 4});
    o.kv_heads = one_of<std::int64_t>({1, o.heads});
    o.width = o.heads * 8 * static_cast<std::int64_t>(1 + below(3));
    o.batch = static_cast<std::int64_t>(1 + below(3));
    o.dropout = one_of<double>({0.0, 0.2});
    o.dtype = one_of<std::string>({"f32", "f32", "f64", "bf16"});
    o.attention.attention = one_of(attention_names());
    o.attention.window = 24;
    o.attention.segments = {16, 512};
    o.attention.rates = {1, 4};
    o.attention.block = 16;
    o.attention.global = 5;
    o.attention.ring_size = 3;
    if (below(3) == 0)
      o.layers = LayerList(one_of<std::string>(
          {"2*window+rope:1e6,causal+nope+sinks", "causal+nope+heads:1,dilated+qk-norm+softcap:20", "strided,2*ring"}));
    o.steps = 2;
    o.report = 2;
    o.sample = 0;
    o.quiet = true;
    return o;
  }

  static std::string describe(const TrainOptions& o) {
    return (o.layers.is_number() ? o.attention.attention + ", " : "") + o.dtype + ", " + o.layers.text() +
           " layers, width " + std::to_string(o.width) + ", " + std::to_string(o.batch) + " x " +
           std::to_string(o.context) + ", " + o.checkpoint + (o.budget.empty() ? "" : " within " + o.budget) +
           (o.offload.empty() ? "" : ", offload");
  }

  static TrainResult run_of(const TrainOptions& options) {
    std::ostringstream out;
    return train(options, out);
  }

  static void expect_equal_numbers(const TrainResult& found, const TrainResult& expected) {
    ASSERT_EQ(found.steps.size(), expected.steps.size());
    for (std::size_t i = 0; i < found.steps.size(); ++i) {
      EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << "step " << i + 1;
      EXPECT_EQ(found.steps[i].gradient_norm, expected.steps[i].gradient_norm) << "step " << i + 1;
    }
    EXPECT_EQ(found.validation_loss, expected.validation_loss);
  }

  testing_support::TemporaryFolder folder_;
  std::mt19937_64 random_{test_seed()};
};

TEST_F(MemoryPolicies, GiveTheSameResultsWithinTheBudget) {
  int fitted = 0;
  for (int round = 0; round < 8; ++round) {
    TrainOptions options = any_model();
    const TrainResult whole = run_of(options);
    for (const std::string policy : {"selective", "block", "sqrt", "revolve:2", "auto"}) {
      options.checkpoint = policy;
      options.offload = below(3) ? "" : ::testing::TempDir();
      std::uint64_t limit = UINT64_MAX;
      if (below(2) || policy == "auto") {
        limit = whole.peak_reserved_bytes * (30 + below(70)) / 100;
        options.budget = std::to_string(limit);
      }
      SCOPED_TRACE(describe(options));
      try {
        const TrainResult found = run_of(options);
        expect_equal_numbers(found, whole);
        EXPECT_LE(found.peak_reserved_bytes, limit);
        ++fitted;
      } catch (const OutOfMemoryError&) {
        EXPECT_NE(limit, UINT64_MAX) << "out of memory without a limit";
      }
      options.budget = "";
    }
  }
  EXPECT_GT(fitted, 15);
}

TEST_F(MemoryPolicies, NeedTheSameBytesOnASimulatedDevice) {
  for (int round = 0; round < 8; ++round) {
    TrainOptions options = any_model();
    options.attention.attention = one_of<std::string>({"causal", "window", "dilated", "block_sparse"});
    options.checkpoint = one_of<std::string>({"none", "selective", "block", "sqrt"});
    const TrainResult unlimited = run_of(options);
    if (options.checkpoint == "none" && below(2)) {
      options.checkpoint = "auto";
      options.budget = std::to_string(unlimited.peak_reserved_bytes * 8 / 10);
    }
    SCOPED_TRACE(describe(options));
    TrainOptions dry = options;
    dry.device = "sim:1GiB,like=cpu";
    try {
      const TrainResult real = run_of(options), simulated = run_of(dry);
      if (options.budget.empty()) {
        EXPECT_EQ(simulated.peak_live_bytes, real.peak_live_bytes);
      } else {  // dropped tensors and reserved bytes depend on block addresses, and so on earlier runs
        EXPECT_LE(simulated.peak_reserved_bytes, parse_bytes(options.budget));
        EXPECT_LE(real.peak_reserved_bytes, parse_bytes(options.budget));
      }
    } catch (const OutOfMemoryError&) {
      EXPECT_THROW(run_of(options), OutOfMemoryError);
      EXPECT_THROW(run_of(dry), OutOfMemoryError);
    }
  }
}

}  // namespace
}  // namespace poolgrad::examples
