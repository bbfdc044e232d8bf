// Chunks with mixers other than attention; tests/attention/modules/past_keys_test.cpp tests attention.
#include "nn/chunked.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing_support::error_of;

/// h_t = decay * h_{t-1} + x_t: every position affects every later one through a state. It also counts in integers.
class Recurrence : public SequenceMixer {
 public:
  explicit Recurrence(const ParameterOptions& options) { decay_ = constant_parameter("decay", {8}, 0.7, options); }

  Tensor forward(const Tensor& x, SequenceState* state) override {
    const bool goes_on = state && state->length > 0;
    Tensor h = goes_on ? state->tensors.at(0) : zeros({x.size(0), 1, x.size(2)}, x.options());
    std::vector<Tensor> all;
    for (std::int64_t t = 0; t < x.size(1); ++t) {
      h = h * decay_ + slice(x, 1, t, t + 1);
      all.push_back(h);
      ++steps;
    }
    if (fails_at != 0 && steps >= fails_at) throw Error("[recurrence] broken");
    if (state) {
      state->tensors = {h, full({1}, static_cast<double>(x.size(1)), {.dtype = DType::i64})};
      state->length += x.size(1);
    }
    return cat(all, 1);
  }

  static std::int64_t steps, fails_at;

 private:
  Tensor decay_;
};
std::int64_t Recurrence::steps = 0, Recurrence::fails_at = 0;

/// Ignores earlier positions.
class Forgetful : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState*) override { return x; }
};

LanguageModelConfig small_in_f64(double dropout = 0.0) {
  return {.vocabulary = 10,
          .context = 40,
          .layers = 2,
          .width = 8,
          .heads = 2,
          .kv_heads = 2,
          .positions = Positions::learned,
          .tied_head = true,
          .dropout = dropout,
          .dtype = DType::f64};
}

MixerFactory recurrence() {
  return [](const LanguageModelConfig&, const ParameterOptions& options, std::int64_t) {
    return std::make_unique<Recurrence>(options);
  };
}

struct ChunkedSteps {
  Generator generator{5};
  LanguageModel model;
  Tensor tokens, targets;
  explicit ChunkedSteps(double dropout = 0.0) : model(small_in_f64(dropout), recurrence(), {.generator = &generator}) {
    Recurrence::steps = Recurrence::fails_at = 0;
    const NoGradGuard no_grad;
    for (Tensor& parameter : model.parameters())
      parameter.copy_from(parameter + randn(parameter.shape(), parameter.options(), generator) * 0.1);
    tokens = randint(0, 10, {3, 40}, {.dtype = DType::i64}, generator);
    targets = randint(0, 10, {3, 40}, {.dtype = DType::i64}, generator);
  }
  Tensor chunked(std::int64_t chunk, std::int64_t store_every = 1) {
    generator.set_seed(9);
    return chunked_loss(model, tokens, targets, {.chunk = chunk, .store_every = store_every});
  }
  Tensor whole() {
    generator.set_seed(9);
    return model.loss(tokens, targets, true);
  }
  std::vector<Tensor> gradients() const {
    std::vector<Tensor> result;
    for (const Tensor& parameter : model.parameters()) result.push_back(parameter.grad().copy());
    return result;
  }
};

TEST(ChunkedLoss, MatchesOnePassWithRecurrenceAndDropout) {
  for (const double dropout : {0.0, 0.25}) {
    ChunkedSteps steps(dropout);
    steps.whole().backward();
    const std::vector<Tensor> want = steps.gradients();
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{39}, std::int64_t{40}, INT64_MAX})
      for (const std::int64_t store_every : {1, 4}) {
        steps.model.zero_grad();
        const Tensor loss = steps.chunked(chunk, store_every);
        loss.backward();
        EXPECT_NEAR(loss.item(), steps.whole().item(), 1e-11);
        const std::vector<Tensor> got = steps.gradients();
        for (std::size_t i = 0; i < want.size(); ++i)
          EXPECT_LE(max_difference(got[i], want[i]), 1e-11) << i << " in chunks of " << chunk;
      }
  }
}

TEST(ChunkedLoss, RunsAChunkOnceMoreWhenStatesAreRecomputed) {
  ChunkedSteps steps;
  steps.chunked(10).backward();
  EXPECT_EQ(Recurrence::steps, 2 * 2 * 40) << "two layers, forward and once more";
  Recurrence::steps = 0;
  steps.chunked(10, 2).backward();
  EXPECT_EQ(Recurrence::steps, 2 * (2 * 40 + 20)) << "the first chunk of each pair is run for the state of the second";
}

TEST(ChunkedLoss, ComposesWithOtherLossesAndFrozenParameters) {
  ChunkedSteps steps;
  steps.whole().backward();
  const std::vector<Tensor> want = steps.gradients();
  Tensor frozen = steps.model.parameters().back();
  frozen.set_requires_grad(false);
  (steps.chunked(16) * 2.0 - steps.chunked(11)).backward();  // adds to the existing gradients
  frozen.set_requires_grad();
  const std::vector<Tensor> got = steps.gradients();
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(max_difference(got[i], want[i] * (i + 1 < want.size() ? 2.0 : 1.0)), 1e-11) << i;
}

TEST(ChunkedLoss, KeepsOnlyStates) {
  ChunkedSteps steps;
  const CachingAllocator& pool = allocator_for(cpu);
  const std::uint64_t before = pool.statistics().allocated_bytes.current;
  const Tensor loss = steps.chunked(10);
  EXPECT_LE(pool.statistics().allocated_bytes.current - before, 3 * 2 * 2 * 512u)
      << "3 boundaries, 2 layers, 2 tensors";
}

TEST(ChunkedLoss, RefusesBadChunksAndShapes) {
  ChunkedSteps steps;
  EXPECT_EQ(error_of<ValueError>([&] { steps.chunked(0); }),
            "[chunked_loss] chunk and store_every must be at least 1, but are 0 and 1: tokens (3, 40) i64 on cpu, "
            "targets (3, 40) i64 on cpu");
  EXPECT_THROW(steps.chunked(8, 0), ValueError);
  EXPECT_EQ(error_of<ShapeError>([&] { chunked_loss(steps.model, steps.tokens, slice(steps.targets, 1, 1)); }),
            "[chunked_loss] tokens and targets must be (B, T): tokens (3, 40) i64 on cpu, targets (3, 39) i64 on cpu");
  LanguageModel forgetful(small_in_f64(), [](const auto&...) { return std::make_unique<Forgetful>(); });
  EXPECT_EQ(error_of<ValueError>([&] { chunked_loss(forgetful, steps.tokens, steps.tokens, {.chunk = 16}); }),
            "[language_model] block 0 must extend its state from 0 to 16 positions, but has 0");
}

TEST(ChunkedLoss, AFailedBackwardLeaksNothingAndCanBeRepeated) {
  ChunkedSteps steps(0.25);
  steps.chunked(10).backward();
  const std::vector<Tensor> want = steps.gradients();
  steps.model.zero_grad();
  const CachingAllocator& pool = allocator_for(cpu);
  const std::uint64_t before = pool.statistics().allocated_bytes.current;
  {
    const Tensor loss = steps.chunked(10);
    const std::uint64_t numbers = steps.generator.state().offset;
    Recurrence::fails_at = Recurrence::steps + 50;
    EXPECT_EQ(error_of<Error>([&] { loss.backward(); }), "[recurrence] broken");
    EXPECT_EQ(steps.generator.state().offset, numbers) << "the generator is where it was";
    Recurrence::fails_at = 0;
  }
  EXPECT_EQ(pool.statistics().allocated_bytes.current, before);
  steps.chunked(10).backward();
  const std::vector<Tensor> got = steps.gradients();
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(bit_equal(got[i], want[i]));
}

TEST(ChunkedLoss, RefusesWrittenParametersAndSecondDerivatives) {
  ChunkedSteps steps;
  const Tensor loss = steps.chunked(10);
  {
    const NoGradGuard no_grad;
    steps.model.parameters()[0].fill(1.0);
  }
  EXPECT_THAT(error_of<Error>([&] { loss.backward(); }), HasSubstr("was written in place"));
  EXPECT_EQ(error_of<Error>([&] { steps.chunked(10).backward({}, true, true); }),
            "[chunked_loss] has no second derivative");
}

// A recomputed chunk would differ from its first run, and the gradients would be silently wrong.
TEST(ChunkedLoss, RefusesAModelSwitchedToEvaluation) {
  for (const std::int64_t store_every : {1, 2}) {
    ChunkedSteps steps(0.25);
    const Tensor loss = steps.chunked(10, store_every);
    steps.model.eval();
    EXPECT_THAT(error_of<Error>([&] { loss.backward(); }),
                MatchesRegex("\\[chunked_loss\\] a chunk took random numbers 0 times, and the first one [1-9] times: a "
                             "model must stay in train\\(\\) or in eval\\(\\) until its backward pass is over"));
    EXPECT_FALSE(steps.model.parameters()[0].grad().defined());
  }
  ChunkedSteps steps(0.25);
  steps.model.eval();
  const Tensor loss = steps.chunked(10);
  steps.model.train();
  EXPECT_THAT(error_of<Error>([&] { loss.backward(); }), HasSubstr("the first run took no more"));
}

TEST(ChunkedLoss, RefusesSubstitutedParameters) {
  ChunkedSteps steps;
  const auto [name, parameter] = steps.model.named_parameters()[2];
  const Tensor other = (parameter.detach() * 1.5).set_requires_grad();
  const Tensor loss = steps.chunked(10);
  {
    const Substitution standing_in(steps.model, {{name, other}});
    EXPECT_EQ(error_of<Error>([&] { loss.backward(); }),
              "[chunked_loss] the function cannot be run again: other tensors substitute the parameters of a module "
              "(Substitution, functional_call)");
  }
  const Tensor again = steps.chunked(10);
  swap_tensors(parameter, other);
  EXPECT_EQ(
      error_of<Error>([&] { again.backward(); }),
      "[chunked_loss] a parameter is another tensor than in the forward pass: " + name + " " + describe(parameter));
  swap_tensors(parameter, other);
  steps.chunked(10).backward();
}

TEST(ChunkedLoss, RefusesWrittenTokensAndTargets) {
  ChunkedSteps steps;
  for (Tensor* written : {&steps.tokens, &steps.targets}) {
    const Tensor loss = steps.chunked(10);
    written->fill(1e9);
    EXPECT_THAT(error_of<Error>([&] { loss.backward(); }), HasSubstr("was written in place"));
    written->fill(1.0);
  }
}

}  // namespace
}  // namespace poolgrad::nn
