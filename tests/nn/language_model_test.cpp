#include "nn/language_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;

/// A mixer without attention: averages all positions so far.
class RunningMean : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState* state) override {
    if (state) state->length += x.size(1);
    const Tensor counts = arange(1, static_cast<double>(x.size(1)) + 1, 1, x.options());
    return cumsum(x, 1) / reshape(counts, {x.size(1), 1});
  }
};

MixerFactory running_mean() {
  return
      [](const LanguageModelConfig&, const ParameterOptions&, std::int64_t) { return std::make_unique<RunningMean>(); };
}

LanguageModelConfig tiny() {
  return {.vocabulary = 10, .context = 8, .layers = 2, .width = 8, .heads = 2, .kv_heads = 2};
}

Tensor some_tokens(std::int64_t rows, std::int64_t length) {
  Generator generator(5);
  return randint(0, 10, {rows, length}, {.dtype = DType::i64}, generator);
}

TEST(LanguageModel, StartsWithTheUniformDistribution) {
  Generator generator(1);
  LanguageModel model(tiny(), running_mean(), {.generator = &generator});
  const Tensor tokens = some_tokens(3, 8);
  EXPECT_NEAR(model.loss(tokens, tokens).item(), std::log(10.0), 1e-5);
  EXPECT_NEAR(model.loss(tokens, tokens, true).item(), 24 * std::log(10.0), 1e-4);
}

TEST(LanguageModel, LossIsTheCrossEntropyOfItsLogits) {
  Generator generator(1);
  LanguageModelConfig config = tiny();
  config.tied_head = true;
  LanguageModel model(config, running_mean(), {.generator = &generator});
  const Tensor tokens = some_tokens(2, 7), targets = some_tokens(2, 7);
  const Tensor logits = model.logits(tokens);
  EXPECT_EQ(logits.shape(), (Shape{2, 7, 10}));
  EXPECT_NEAR(model.loss(tokens, targets).item(), cross_entropy(logits, targets).item(), 1e-5);
}

TEST(LanguageModel, PerPositionLossesAgreeInPiecesAndChunks) {
  Generator generator(1);
  LanguageModelConfig config = tiny();
  config.context = 700;
  config.tied_head = true;
  config.dtype = DType::f64;
  LanguageModel model(config, running_mean(), {.generator = &generator});
  const Tensor tokens = some_tokens(3, 700), targets = some_tokens(3, 700) + 0;
  const Tensor found = model.losses(tokens, targets);
  EXPECT_FALSE(found.requires_grad());
  const Tensor expected = cross_entropy(model.logits(tokens), targets, {.reduction = Reduction::none});
  EXPECT_TRUE(allclose(found, expected, 1e-12, 1e-12)) << "pieces of 341 positions";
  EXPECT_EQ(model.losses(slice(tokens, 1, 0, 0), slice(targets, 1, 0, 0)).shape(), (Shape{3, 0}));
}

TEST(LanguageModel, AMixerWithoutWeightsReturnsNone) {
  LanguageModel model(tiny(), running_mean());
  for (const Tensor& weights : model.mixing_weights(some_tokens(1, 8))) EXPECT_FALSE(weights.defined());
}

TEST(LanguageModel, NamesEveryPart) {
  const LanguageModel model(tiny(), running_mean());
  std::string names;
  for (const auto& [name, tensor] : model.named_parameters()) names += name + " ";
  EXPECT_EQ(names,
            "embedding.weight block0.norm1.weight block0.norm2.weight block0.feed_forward.up.weight "
            "block0.feed_forward.down.weight block1.norm1.weight block1.norm2.weight block1.feed_forward.up.weight "
            "block1.feed_forward.down.weight norm.weight head.weight ");
}

TEST(LanguageModel, EveryParameterOfEveryKindGetsAGradientAfterOneStep) {
  for (const bool tied : {false, true})
    for (const Positions positions : {Positions::rope, Positions::learned}) {
      LanguageModelConfig config = tiny();
      config.tied_head = tied;
      config.positions = positions;
      config.biases = true;
      config.norm = NormKind::layer_norm;
      config.dropout = 0.1;
      LanguageModel model(config, running_mean());
      for (Tensor parameter : model.parameters()) {  // away from their initial zeros
        const NoGradGuard no_grad;
        parameter.copy_from(randn(parameter.shape()));
      }
      model.loss(some_tokens(2, 8), some_tokens(2, 8)).backward();
      for (const auto& [name, parameter] : model.named_parameters()) {
        ASSERT_TRUE(parameter.grad().defined()) << name;
        EXPECT_GT(norm(parameter.grad()).item(), 0.0) << name;
      }
    }
}

TEST(LanguageModel, KeepsF32ParametersUnderHalfActivations) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    LanguageModelConfig config = tiny();
    config.dtype = dtype;
    LanguageModel model(config, running_mean());
    const Tensor tokens = some_tokens(1, 8);
    EXPECT_EQ(model.hidden(tokens).dtype(), dtype);
    EXPECT_EQ(model.parameters()[0].dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
    EXPECT_NEAR(model.loss(tokens, tokens).item(), std::log(10.0), 0.02);
  }
}

TEST(LanguageModel, RefusesInvalidConfigurations) {
  const auto refusal = [](auto change) {
    LanguageModelConfig config = tiny();
    change(config);
    return error_of<ValueError>([&] { config.check(); });
  };
  EXPECT_EQ(refusal([](auto& c) { c.width = 9; }), "[language_model] width 9 is not divisible by 2 heads");
  EXPECT_EQ(refusal([](auto& c) { c.kv_heads = 3; }), "[language_model] 2 heads are not a multiple of 3 kv-heads");
  EXPECT_EQ(refusal([](auto& c) { c.layers = 0; }), "[language_model] layers must be at least 1, but is 0");
  EXPECT_EQ(refusal([](auto& c) { c.width = 6; }),
            "[language_model] rotary positions need an even width per head, but 6 / 2 is odd");
  EXPECT_EQ(refusal([](auto& c) { c.dtype = DType::i64; }),
            "[language_model] activations must be floating, but are i64");
  EXPECT_EQ(refusal([](auto& c) { c.kv_heads = -1; }), "[language_model] kv_heads must not be negative, but is -1");
  EXPECT_EQ(refusal([](auto& c) { c.feed_forward_multiplier = 1e30; }),
            "[language_model] the feed-forward multiplier 1e+30 makes more than 2^40 hidden units of width 8");
  EXPECT_EQ(refusal([](auto& c) { c.feed_forward_multiplier = INFINITY; }),
            "[language_model] the feed-forward multiplier inf makes more than 2^40 hidden units of width 8");
  EXPECT_EQ(refusal([](auto& c) { c.logit_softcap = -1; }),
            "[language_model] the softcap of logits must be 0 or from 1e-30 to 1e30, but is -1");
  EXPECT_EQ(refusal([](auto& c) { c.hidden = -1; }), "[language_model] hidden units must not be negative, but are -1");
  EXPECT_EQ(refusal([](auto& c) { c.hidden = std::int64_t{1} << 41; }),
            "[language_model] 2199023255552 hidden units are more than 2^40");
  EXPECT_EQ(refusal([](auto& c) { c.norm_epsilon = INFINITY; }),
            "[language_model] the epsilon of norms must be a number from 0 on, but is inf");
  EXPECT_THROW(LanguageModel(LanguageModelConfig{.width = 7}, running_mean()), ValueError);
}

TEST(LanguageModel, RefusesMorePositionsThanLearned) {
  LanguageModelConfig config = tiny();
  config.positions = Positions::learned;
  LanguageModel model(config, running_mean());
  EXPECT_EQ(error_of<ShapeError>([&] { model.hidden(some_tokens(2, 9)); }),
            "[language_model] there are 8 learned positions, 0 of them seen before, too few for tokens (2, 9) i64 on "
            "cpu");
  LanguageModel::State state = model.new_state();
  state.front().length = 5;
  EXPECT_EQ(error_of<ShapeError>([&] { model.hidden(some_tokens(2, 4), &state); }),
            "[language_model] there are 8 learned positions, 5 of them seen before, too few for tokens (2, 4) i64 on "
            "cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { model.hidden(zeros({4}, {.dtype = DType::i64})); }),
            "[language_model] tokens must be (B, T): tokens (4,) i64 on cpu");
}

TEST(LanguageModel, TakesAnyLengthWithoutLearnedPositions) {
  LanguageModel model(tiny(), running_mean());
  LanguageModel::State state = model.new_state();
  EXPECT_EQ(model.hidden(some_tokens(2, 20)).shape(), (Shape{2, 20, 8}));
  EXPECT_EQ(model.hidden(some_tokens(2, 20), &state).shape(), (Shape{2, 20, 8}));
}

TEST(LanguageModel, RefusesTheStateOfAnotherModel) {
  LanguageModelConfig config = tiny();
  config.layers = 3;
  LanguageModel model(config, running_mean()), draft(tiny(), running_mean());
  const Tensor tokens = some_tokens(1, 4);
  const auto refusal = [&](LanguageModel::State state) {
    return error_of<ValueError>([&] { model.logits(tokens, &state); });
  };
  EXPECT_EQ(refusal(draft.new_state()),
            "[language_model] the state has 2 blocks, the model 3: tokens (1, 4) i64 on cpu");
  EXPECT_EQ(refusal({}), "[language_model] the state has 0 blocks, the model 3: tokens (1, 4) i64 on cpu");
  EXPECT_EQ(refusal(LanguageModel::State(4)),
            "[language_model] the state has 4 blocks, the model 3: tokens (1, 4) i64 on cpu");
  EXPECT_EQ(refusal(model.new_state()), "no exception");
}

TEST(LanguageModel, KvHeadsDefaultToHeads) {
  std::vector<std::int64_t> told;
  const MixerFactory mixer = [&](const LanguageModelConfig& config, const ParameterOptions&, std::int64_t) {
    told.push_back(config.kv_heads);
    return std::make_unique<RunningMean>();
  };
  EXPECT_EQ(LanguageModel({.layers = 1, .heads = 8}, mixer).config().kv_heads, 8);
  EXPECT_EQ(LanguageModel({.layers = 1, .heads = 8, .kv_heads = 2}, mixer).config().kv_heads, 2);
  EXPECT_THAT(told, ElementsAre(8, 2));
}

TEST(LanguageModel, RefusesAMixerThatLooksAheadUnlessAllowed) {
  struct Backwards : RunningMean {
    Tensor forward(const Tensor& x, SequenceState*) override { return flip(x, 1); }
    bool looks_ahead() const override { return true; }
  };
  const MixerFactory second = [](const LanguageModelConfig&, const ParameterOptions&,
                                 std::int64_t layer) -> std::unique_ptr<SequenceMixer> {
    if (layer != 1) return std::make_unique<RunningMean>();
    return std::make_unique<Backwards>();
  };
  EXPECT_EQ(error_of<ValueError>([&] { LanguageModel(tiny(), second); }),
            "[language_model] block 1 looks ahead and sees the tokens to predict: make it causal (& "
            "Pattern::causal()), or set looks_ahead to allow it");
  LanguageModelConfig config = tiny();
  config.looks_ahead = true;
  EXPECT_EQ(LanguageModel(config, second).hidden(some_tokens(1, 8)).shape(), (Shape{1, 8, 8}));
}

TEST(LanguageModel, NamesAMissingPart) {
  EXPECT_EQ(error_of<ValueError>([] { LanguageModel(tiny(), MixerFactory()); }),
            "[language_model] the factory of mixers is empty");
  EXPECT_EQ(error_of<ValueError>([] { LanguageModel(tiny(), MixerFactory([](const auto&...) { return nullptr; })); }),
            "[transformer_block] there is no mixer");
  EXPECT_EQ(error_of<ValueError>([] { TransformerBlock(8, std::make_unique<RunningMean>(), nullptr); }),
            "[transformer_block] there is no feed-forward layer");
}

TEST(LanguageModel, UsesTheDefaultGeneratorWithoutAnother) {
  default_generator().set_seed(3);
  LanguageModel given(tiny(), running_mean());
  default_generator().set_seed(3);
  LanguageModel none(tiny(), running_mean(), {.generator = nullptr});
  for (std::size_t i = 0; i < given.parameters().size(); ++i)
    EXPECT_TRUE(bit_equal(none.parameters()[i], given.parameters()[i])) << i;
}

TEST(LanguageModel, CheckpointingChangesNoBitAndKeepsLess) {
  LanguageModelConfig config = tiny();
  config.layers = 6;
  config.context = 64;
  config.dropout = 0.2;
  config.positions = Positions::learned;
  Generator generator(1);
  LanguageModel model(config, running_mean(), {.generator = &generator});
  for (Tensor parameter : model.parameters()) {
    const NoGradGuard no_grad;
    parameter.copy_from(randn(parameter.shape(), {}, generator));
  }
  const Tensor tokens = some_tokens(4, 64), targets = some_tokens(4, 64);
  struct Step {
    double loss;
    std::vector<Tensor> gradients;
    std::uint64_t peak;
    kernels::RandomKey generator;
  };
  CachingAllocator& pool = allocator_for(cpu);
  const auto step = [&](const std::string& policy) {
    model.set_checkpointing(Checkpointing::parse(policy));
    model.zero_grad();
    generator.set_seed(7);
    const std::uint64_t before = pool.statistics().requested_bytes.current;
    pool.reset_peaks();
    const Tensor loss = model.loss(tokens, targets);
    loss.backward();
    Step result{loss.item(), {}, pool.statistics().requested_bytes.peak - before, generator.state()};
    for (const Tensor& parameter : model.parameters()) result.gradients.push_back(parameter.grad());
    return result;
  };
  const Step expected = step("none");
  for (const std::string policy : {"block", "sqrt", "revolve", "revolve:1", "revolve:2"}) {
    const Step found = step(policy);
    EXPECT_EQ(found.loss, expected.loss) << policy;
    for (std::size_t i = 0; i < found.gradients.size(); ++i)
      EXPECT_TRUE(bit_equal(found.gradients[i], expected.gradients[i])) << policy << ", parameter " << i;
    EXPECT_LT(found.peak, expected.peak * 2 / 3) << policy;
    EXPECT_EQ(found.generator.offset, expected.generator.offset) << policy;
  }
}

TEST(LanguageModel, TiledFeedForwardIsEqualUpToRounding) {
  LanguageModelConfig config = tiny();
  config.context = 64;
  config.dropout = 0.2;
  config.dtype = DType::f64;
  std::uint64_t kept = 0;  // bytes saved for the backward pass
  const auto step = [&](std::int64_t tile, const std::string& policy) {
    config.tile = tile;
    Generator generator(1);
    LanguageModel model(config, running_mean(), {.generator = &generator});
    for (Tensor parameter : model.parameters()) {
      const NoGradGuard no_grad;
      parameter.copy_from(randn(parameter.shape(), {.dtype = DType::f64}, generator));
    }
    model.set_checkpointing(Checkpointing::parse(policy));
    const Tensor tokens = some_tokens(3, 64);
    const std::uint64_t before = allocator_for(cpu).statistics().requested_bytes.current;
    const Tensor loss = model.loss(tokens, tokens);
    kept = allocator_for(cpu).statistics().requested_bytes.current - before;
    loss.backward();
    std::vector<Tensor> gradients;
    for (const Tensor& parameter : model.parameters()) gradients.push_back(parameter.grad());
    return gradients;
  };
  const std::vector<Tensor> expected = step(0, "none");
  const std::uint64_t kept_whole = kept;
  const std::vector<Tensor> tiled = step(10, "none");
  EXPECT_LE(kept, kept_whole - 2 * 3 * 64 * 2 * 32 * sizeof(double));  // two hidden tensors in each of two layers
  const std::vector<Tensor> both = step(10, "revolve:2");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(relative_error(tiled[i], expected[i]), 1e-12) << "parameter " << i;
    EXPECT_TRUE(bit_equal(both[i], tiled[i])) << "parameter " << i;
  }
}

TEST(LanguageModel, ASoftcapBoundsTheLogitsOfEveryLoss) {
  Generator generator(1);
  LanguageModelConfig config = tiny();
  config.dtype = DType::f64;
  LanguageModel plain(config, running_mean(), {.generator = &generator});
  config.logit_softcap = 2;
  LanguageModel capped(config, running_mean(), {.generator = &generator});
  for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
    const NoGradGuard no_grad;
    plain.parameters()[i].copy_from(randn(plain.parameters()[i].shape(), {.dtype = DType::f64}, generator));
    capped.parameters()[i].copy_from(plain.parameters()[i]);
  }
  const Tensor tokens = some_tokens(2, 8), want = tanh(plain.logits(tokens) / 2.0) * 2.0;
  EXPECT_TRUE(allclose(capped.logits(tokens), want, 1e-12, 1e-12));
  EXPECT_NEAR(capped.loss(tokens, tokens).item(), cross_entropy(want, tokens).item(), 1e-12);
  EXPECT_TRUE(allclose(capped.losses(tokens, tokens), cross_entropy(want, tokens, {.reduction = Reduction::none}),
                       1e-12, 1e-12));
}

TEST(LanguageModel, SwigluHasAsManyParametersAsGeluUnlessToldItsHiddenUnits) {
  LanguageModelConfig config{.width = 96};
  EXPECT_EQ(config.hidden_units(), 384);
  config.feed_forward = FeedForwardKind::swiglu;
  EXPECT_EQ(config.hidden_units(), 256);
  config.hidden = 100;
  EXPECT_EQ(config.hidden_units(), 100);
}

}  // namespace
}  // namespace poolgrad::nn
