// Promises about memory, checked on configurations drawn by seed against runs of 200 steps. POOLGRAD_DRAWS sets the
// number of configurations: POOLGRAD_DRAWS=300 build/release/tests/examples/examples_test
// --gtest_filter='MemoryPromises.*'
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "examples/plan/dry_run.h"
#include "tests/effort.h"
#include "tests/examples/train_program.h"
#include "tests/test_seed.h"
#include "tests/threads.h"

namespace poolgrad::examples {
namespace {

int draws() {
  const char* text = std::getenv("POOLGRAD_DRAWS");
  return text != nullptr ? std::atoi(text) : is_brief() ? 1 : 3;
}

class MemoryPromises : public ::testing::Test {
 protected:
  static constexpr std::int64_t steps = 200;

  MemoryPromises() {
    std::string text;
    for (int i = 0; i < 8000; ++i) text += "int f" + std::to_string(i * i % 997) + "() { return 1; }\n";
    testing_support::write_bytes(folder_.file("text"), text);
  }

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

  /// Returns layers of random kinds, positions, scores and heads.
  LayerList mixed_layers(const TrainOptions& o) {
    std::string list;
    for (std::size_t entries = 1 + below(3); entries > 0; --entries) {
      if (below(3) == 0) list += "2*";
      const std::string kind = one_of(attention_names());
      list += kind;
      if (kind != "delta" && kind != "gla")  // recurrent layers have neither positions nor scores
        list += one_of<std::string>({"", "+rope:1e6", "+nope", "+rope:10000:ntk:2", "+rope:10000:yarn:4:64"}) +
                one_of<std::string>({"", "", "+qk-norm"});
      if (kind != "delta" && kind != "gla" && kind != "nsa")
        list += one_of<std::string>({"", "", "+softcap:20"}) + one_of<std::string>({"", "", "+sinks"});
      if (below(3) == 0) list += "+heads:" + std::to_string(one_of<std::int64_t>({1, o.heads}));
      if (entries > 1) list += ",";
    }
    return LayerList(list);
  }

  TrainOptions draw() {
    TrainOptions o;
    o.text = {folder_.file("text")};
    o.context = static_cast<std::int64_t>(32 + below(150));
    o.layers = static_cast<std::int64_t>(1 + below(3));
    o.heads = one_of<std::int64_t>({1, 2, 4});
    o.kv_heads = one_of<std::int64_t>({1, o.heads});
    o.width = o.heads * 8 * static_cast<std::int64_t>(1 + below(3));
    o.batch = static_cast<std::int64_t>(1 + below(2));
    o.accumulate = one_of<std::int64_t>({1, 1, 2, 3});
    o.attention.attention = one_of(attention_names());
    o.attention.window = 24;
    o.attention.segments = {16, 512};
    o.attention.rates = {1, 4};
    o.attention.block = 16;
    o.attention.count = 3;
    o.attention.global = 5;
    o.attention.stride = 16;
    o.optimizer = one_of<std::string>({"muon", "adamw", "lion", "sgd"});
    o.dtype = one_of<std::string>({"f32", "f32", "f64", "bf16"});
    o.dropout = one_of<double>({0.0, 0.0, 0.2});
    o.ema = one_of<double>({0.0, 0.0, 0.9});
    o.tile = one_of<std::int64_t>({0, 0, 40});
    o.checkpoint = one_of<std::string>({"none", "none", "budget", "budget", "selective", "block", "sqrt"});
    if (below(2) == 0) o.layers = mixed_layers(o);
    const std::vector<std::string> kinds = kinds_of(o.layer_runs());
    if (below(4) == 0 && std::ranges::count(kinds, "ring") + std::ranges::count(kinds, "random") == 0) {
      o.chunk = 48;
      o.checkpoint = one_of<std::string>({"none", "budget"});
    }
    o.steps = steps;
    o.report = one_of<std::int64_t>({1, 7, 50});
    o.sample = one_of<std::int64_t>({0, 9, 40});
    return o;
  }

  nlohmann::json run(TrainOptions o, const std::string& device, std::size_t budget, std::int64_t count = steps) {
    o.device = device;
    o.budget = std::to_string(budget);
    o.steps = count;
    return run_train_program(o, folder_,
                             "OMP_WAIT_POLICY=passive POOLGRAD_THREADS=" + std::to_string(kernels::num_threads()));
  }
  static bool ends(const nlohmann::json& run) { return !run["error"].is_null(); }

  /// Expects that the run uses the planned memory.
  void expect_as_planned(const TrainOptions& o, const DryRun& plan, std::size_t budget, const std::string& device) {
    const nlohmann::json real = run(o, device, budget);
    SCOPED_TRACE(device + ", budget " + std::to_string(budget));
    ASSERT_FALSE(ends(real)) << real["error"].get<std::string>();
    EXPECT_EQ(real["peak_live_bytes"], plan.peak_live);
    EXPECT_EQ(real["peak_reserved_bytes"], plan.peak_reserved);
    EXPECT_LE(real["peak_reserved_bytes"].get<std::size_t>(), budget);
  }
  static constexpr const char* sim = "sim:1GiB,like=cpu";

  testing_support::TemporaryFolder folder_;
  std::mt19937_64 random_;
};

TEST_F(MemoryPromises, HoldForPlansBudgetsAndLongestContexts) {
  constexpr std::size_t roomy = std::size_t{1} << 30;
  const std::uint64_t first = test_seed();
  for (int i = 0; i < draws(); ++i) {
    random_.seed(first + static_cast<std::uint64_t>(i));
    const Threads threads(one_of<int>({1, 2, 3}));
    TrainOptions o = draw();
    std::string shown;
    for (const auto& [name, value] : o.configuration()) shown += " --" + name + "=" + value;
    shown += " --checkpoint=" + o.checkpoint + " --report=" + std::to_string(o.report) +
             " --sample=" + std::to_string(o.sample) + ", " + std::to_string(kernels::num_threads()) + " threads";
    SCOPED_TRACE("seed " + std::to_string(first + static_cast<std::uint64_t>(i)) + ":" + shown);
    TrainOptions planned = o;
    planned.budget = "1GiB";

    // A plan without a limit, and a budget of exactly its reserved bytes.
    const DryRun plan = dry_run(planned, roomy);
    ASSERT_TRUE(plan.fits);
    expect_as_planned(o, plan, roomy, sim);
    const std::size_t reserved = plan.peak_reserved;
    const DryRun exact = dry_run(planned, reserved);
    ASSERT_TRUE(exact.fits);
    expect_as_planned(o, exact, reserved, one_of<std::string>({sim, "cpu"}));

    // The smallest budget of a plan, and budgets above and below it.
    std::size_t low = 0, high = reserved;
    while (high - low > 2048) {
      const std::size_t middle = low + (high - low) / 2;
      (dry_run(planned, middle).fits ? high : low) = middle;
    }
    for (const std::size_t budget : {high, high + below(high / 16), high - below(high / 64)}) {
      SCOPED_TRACE("budget " + std::to_string(budget) + ", least " + std::to_string(high));
      if (const DryRun tight = dry_run(planned, budget); tight.fits) {
        expect_as_planned(o, tight, budget, budget == high ? "cpu" : sim);
      } else if (!ends(run(o, sim, budget, 3))) {
        ADD_FAILURE() << "three steps fit, which the plan denies: " << tight.refusal;
      }
    }

    // The longest context.
    const std::size_t memory = reserved / 2 + below(reserved);
    ContextSearch search(planned, 2 * o.context);
    if (const Longest longest = search.in(memory); longest.context > 0) {
      o.context = longest.context;
      SCOPED_TRACE("longest context " + std::to_string(o.context) + " in " + std::to_string(memory));
      expect_as_planned(o, longest.run, memory, one_of<std::string>({sim, "cpu"}));
    }
    if (std::getenv("POOLGRAD_DRAWS") != nullptr) {
      std::printf("%d of %d, %s: %s, least budget %.3f of the live peak with everything kept\n", i + 1, draws(),
                  HasFailure() ? "BROKEN" : "kept", o.checkpoint.c_str(),
                  static_cast<double>(high) / static_cast<double>(plan.peak_live));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace poolgrad::examples
