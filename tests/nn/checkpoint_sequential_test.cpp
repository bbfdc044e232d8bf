// Every policy gives the same bits; numbers of calls and peaks follow the formulas.
#include "nn/checkpoint_sequential.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using testing_support::error_of;
using Kind = Checkpointing::Kind;

/// Returns the least number of calls that reverse `stages` with `slots` kept inputs; Griewank & Walther's formula
/// solves this recurrence.
std::int64_t fewest_calls(std::int64_t stages, std::int64_t slots) {
  static std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> known;
  if (stages <= 1) return stages;
  if (slots == 1) return stages * (stages + 1) / 2;
  auto [entry, added] = known.try_emplace({stages, slots}, INT64_MAX);
  if (!added) return entry->second;
  std::int64_t best = INT64_MAX;
  for (std::int64_t first = 1; first < stages; ++first)
    best = std::min(best, first + fewest_calls(stages - first, slots - 1) + fewest_calls(first, slots));
  return known[{stages, slots}] = best;
}

/// Figures of one step of a chain.
struct Measured {
  std::int64_t calls = 0;
  std::uint64_t peak = 0;  // beyond the input
  Tensor gradient;
};

constexpr std::int64_t width = 1 << 12;
constexpr std::uint64_t state_bytes = width * sizeof(double);  // size of a stage's output

/// Each stage keeps its input and one more tensor, and has dropout.
Measured run_chain(std::int64_t stages, Checkpointing policy) {
  Measured result;
  Generator generator(1), input(2);
  Tensor x = randn({width}, {.dtype = DType::f64}, input).set_requires_grad();
  const Tensor weight = ones({width}, {.dtype = DType::f64});
  const std::vector<Stage> chain(static_cast<std::size_t>(stages), [&](const Tensor& in) {
    ++result.calls;
    return dropout(sin(cos(in)), 0.1, generator) * weight;
  });
  CachingAllocator& pool = allocator_for(cpu);
  const std::uint64_t before = pool.statistics().requested_bytes.current;
  pool.reset_peaks();
  const Tensor loss = sum(checkpoint_sequential(chain, x, policy));  // the operand of sum() is freed
  loss.backward();
  result.peak = pool.statistics().requested_bytes.peak - before;
  result.gradient = x.grad();
  return result;
}

const std::vector<std::string>& policies() {
  static const std::vector<std::string> names{"none",      "block",     "sqrt",      "revolve",
                                              "revolve:1", "revolve:2", "revolve:3", "revolve:7"};
  return names;
}

TEST(CheckpointSequential, EveryPolicyGivesTheSameBits) {
  for (const std::int64_t stages : {1, 2, 3, 7, 12}) {
    const Tensor expected = run_chain(stages, {}).gradient;
    for (const std::string& policy : policies())
      EXPECT_TRUE(bit_equal(run_chain(stages, Checkpointing::parse(policy)).gradient, expected))
          << policy << " of " << stages;
  }
}

TEST(CheckpointSequential, CallsStagesAsOftenAsPredicted) {
  for (const std::int64_t stages : {1, 2, 3, 5, 10, 17, 64})
    for (const std::string& name : policies()) {
      const Checkpointing policy = Checkpointing::parse(name);
      EXPECT_EQ(run_chain(stages, policy).calls, policy.calls(stages)) << name << " of " << stages;
    }
}

TEST(CheckpointSequential, RevolveMakesTheFewestCalls) {
  for (std::int64_t stages = 1; stages <= 80; ++stages)
    for (std::int64_t slots = 1; slots <= 12; ++slots)
      ASSERT_EQ((Checkpointing{Kind::revolve, slots}.calls(stages)), fewest_calls(stages, slots))
          << stages << " stages, " << slots << " slots";
  EXPECT_EQ((Checkpointing{Kind::revolve, INT64_MAX}.calls(64)), 2 * 64 - 1);
  EXPECT_EQ((Checkpointing{Kind::revolve}.calls(0)), 0);
}

TEST(CheckpointSequential, PeaksFollowTheFormulas) {
  const auto peak = [](const std::string& policy, std::int64_t stages) {
    const std::uint64_t bytes = run_chain(stages, Checkpointing::parse(policy)).peak;
    EXPECT_LT(bytes % state_bytes, 64u);  // the loss
    return static_cast<std::int64_t>(bytes / state_bytes);
  };
  // A stage makes four tensors in sequence. For its backward it keeps its input (the first stage's is not counted) and
  // the first of the four. A gradient in the backward pass adds one more.
  EXPECT_EQ(peak("none", 64), 63 + 64 + 3);      // the last stage has made its other three
  EXPECT_EQ(peak("block", 64), 63 + 4);          // inputs, and a stage that is recomputed
  EXPECT_EQ(peak("sqrt", 64), 7 + (7 + 8) + 2);  // inputs of segments, saved tensors of a segment, two gradients
  for (const std::int64_t slots : {1, 2, 3, 7, 20})
    EXPECT_EQ(peak("revolve:" + std::to_string(slots), 64), slots - 1 + (1 + 4) + 1) << slots << " slots";
  EXPECT_EQ(peak("revolve:1", 8), peak("revolve:1", 64));
}

TEST(CheckpointSequential, TakesLayersAndAnEmptyList) {
  Generator generator(3);
  Linear a(4, 4, {}, {.generator = &generator}), b(4, 4, {}, {.generator = &generator});
  const Tensor x = randn({2, 4}, {}, generator);
  for (const std::string& policy : policies()) {
    const Tensor y = checkpoint_sequential(std::vector<Layer*>{&a, &b}, x, Checkpointing::parse(policy));
    EXPECT_TRUE(bit_equal(y, b(a(x))));
    EXPECT_TRUE(checkpoint_sequential(std::vector<Layer*>{}, x, Checkpointing::parse(policy)).is_same(x));
  }
}

TEST(CheckpointSequential, PassesTensorsOnToLaterStages) {
  const auto run = [](const std::string& policy) {
    Generator input(2);
    const Tensor x = randn({8}, {.dtype = DType::f64}, input).set_requires_grad();
    std::vector<PassingStage> stages;
    for (std::size_t i = 0; i < 7; ++i)
      stages.emplace_back([i](const Tensor& in, std::vector<Tensor>& passed) {
        EXPECT_EQ(passed.size(), i);
        passed.push_back(sin(in));
        return cos(in) * passed[i / 2];
      });
    const Tensor y = checkpoint_sequential(stages, x, Checkpointing::parse(policy));
    sum(y).backward();
    return std::pair{y, x.grad()};
  };
  const auto [y, gradient] = run("none");
  for (const std::string& policy : policies()) {
    const auto [found, its_gradient] = run(policy);
    EXPECT_TRUE(bit_equal(found, y)) << policy;
    EXPECT_TRUE(bit_equal(its_gradient, gradient)) << policy;
  }
}

TEST(CheckpointSequential, NamesTheEmptyStage) {
  Linear a(4, 4);
  for (const std::string& policy : policies()) {
    const Checkpointing kind = Checkpointing::parse(policy);
    EXPECT_EQ(error_of<ValueError>([&] {
                checkpoint_sequential(std::vector<Stage>{[](const Tensor& x) { return x; }, Stage()}, ones({4}), kind);
              }),
              "[checkpoint_sequential] stage 1 is empty");
    EXPECT_EQ(error_of<ValueError>([&] {
                checkpoint_sequential(std::vector<Layer*>{nullptr, &a}, ones({4}), kind);
              }),
              "[checkpoint_sequential] stage 0 is empty");
  }
}

TEST(Checkpointing, IsReadAndWritten) {
  for (const std::string& name : policies()) EXPECT_EQ(Checkpointing::parse(name).to_string(), name);
  for (const std::string text : {"", "all", "revolve:", "revolve:0", "revolve:-1", "revolve:x", "block:2", "none:"})
    EXPECT_EQ(error_of<ValueError>([&] { Checkpointing::parse(text); }),
              "[checkpoint] the policy must be none, block, sqrt, revolve or revolve:SLOTS, but is " + text);
}

}  // namespace
}  // namespace poolgrad::nn
