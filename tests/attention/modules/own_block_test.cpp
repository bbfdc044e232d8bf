// Blocks of one's own in a language model: value embeddings, a skip from the first block's input, shared keys and
// values. Trainer, sampler, checkpoints, budgets and plans work as with the blocks of the library.
#include "nn/block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/modules/multihead.h"
#include "autograd/gradcheck.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/operators.h"
#include "nn/chunked.h"
#include "nn/training/sampler.h"
#include "nn/training/trainer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using poolgrad::testing_support::TemporaryFolder;

/// Even layers have value embeddings and attend by a pattern, without one causally; odd layers attend to the keys and
/// values of the layer before. All mix x with x0.
class OwnBlock : public nn::Block {
 public:
  OwnBlock(const nn::LanguageModelConfig& config, const nn::ParameterOptions& parameters, std::int64_t layer,
           const Pattern& pattern)
      : shares_(layer % 2 == 1),
        mix_(constant_parameter("mix", {2}, 0.5, parameters)),
        norm1_(config.width, 1e-6, parameters),
        attention_(config.width, config.heads, options_for(config, shares_), parameters,
                   shares_ ? Pattern::causal() : pattern),
        norm2_(config.width, 1e-6, parameters),
        feed_forward_(config.width, config.hidden_units(), {.kind = config.feed_forward, .bias = false}, parameters) {
    add_module("norm1", norm1_);
    add_module("attention", attention_);
    if (!shares_)
      add_module("value_embedding",
                 values_.emplace(config.vocabulary, config.kv_heads * config.width / config.heads, 0.5, parameters));
    add_module("norm2", norm2_);
    add_module("feed_forward", feed_forward_);
  }

  Tensor forward(const Tensor& x, nn::BlockContext& context) override {
    const Tensor mix = to(mix_, x.dtype());
    const Tensor y = x * slice(mix, 0, 0, 1) + context.x0 * slice(mix, 0, 1, 2);
    std::vector<Tensor>& passed = context.passed;
    KeysValues shared;
    if (shares_) shared = {passed[passed.size() - 2], passed[passed.size() - 1]};
    const LayerOperands operands{.value_embedding = shares_ ? Tensor() : (*values_)(context.tokens), .shared = &shared};
    const Tensor h = y + attention_.forward(norm1_(y), context.state, operands);
    if (!shares_) passed.insert(passed.end(), {shared.k, shared.v});
    return h + feed_forward_(norm2_(h));
  }
  bool continues() const override { return attention_.continues(); }
  bool looks_ahead() const override { return attention_.looks_ahead(); }

 private:
  static MultiheadOptions options_for(const nn::LanguageModelConfig& config, bool shares) {
    MultiheadOptions options = as_mixer({.layer_norm = false, .post_norm = false}, config);
    options.shared_keys = shares;
    return options;
  }

  bool shares_;
  Tensor mix_;
  nn::RMSNorm norm1_;
  std::optional<nn::Embedding> values_;
  MultiheadAttention attention_;
  nn::RMSNorm norm2_;
  nn::FeedForward feed_forward_;
};

nn::BlockFactory own_blocks(const Pattern& pattern = Pattern::causal()) {
  return [pattern](const nn::LanguageModelConfig& config, const nn::ParameterOptions& parameters, std::int64_t layer) {
    return std::make_unique<OwnBlock>(config, parameters, layer, pattern);
  };
}

nn::LanguageModelConfig small(DType dtype = DType::f64) {
  return {.vocabulary = 11,
          .context = 24,
          .layers = 4,
          .width = 16,
          .heads = 4,
          .kv_heads = 2,
          .feed_forward = nn::FeedForwardKind::swiglu,
          .tied_head = true,
          .dtype = dtype,
          .logit_softcap = 5};
}

/// A model with random parameters.
struct OwnModel {
  Generator generator{test_seed()};
  nn::LanguageModel model;

  explicit OwnModel(const nn::LanguageModelConfig& config = small(), const Pattern& pattern = Pattern::causal())
      : model(config, own_blocks(pattern), {.generator = &generator}) {
    const NoGradGuard no_grad;
    for (Tensor& parameter : model.parameters())
      parameter.copy_from(parameter + randn(parameter.shape(), parameter.options(), generator) * 0.2);
  }
  Tensor tokens(std::int64_t rows, std::int64_t length) {
    return randint(0, 11, {rows, length}, {.dtype = DType::i64}, generator);
  }
};

Tensor parameter_of(const nn::Module& module, const std::string& name) {
  const Tensor* const found = nn::entry_of(module.named_parameters(), name);
  if (found == nullptr) throw IndexError("no parameter " + name);
  return *found;
}

/// Causal attention of q (B, T, H, D) to k and v (B, T, Hkv, D) by its scores.
Tensor attention_by_definition(const Tensor& q, const Tensor& k, const Tensor& v) {
  const std::int64_t length = q.size(1), heads = q.size(2), group = heads / k.size(2);
  const Tensor rows = arange(0, static_cast<double>(length), 1, {.dtype = DType::i64});
  const Tensor later = unsqueeze(rows, 0) > unsqueeze(rows, 1);
  std::vector<Tensor> result;
  for (std::int64_t h = 0; h < heads; ++h) {
    const Tensor scores =
        matmul(select(q, 2, h), transpose(select(k, 2, h / group), 1, 2)) / std::sqrt(static_cast<double>(q.size(3)));
    result.push_back(matmul(softmax(masked_fill(scores, later, -1e300), -1), select(v, 2, h / group)));
  }
  return cat(result, 2);
}

TEST(OwnBlock, EqualsItsDefinition) {
  nn::LanguageModelConfig config = small();
  config.positions = nn::Positions::learned;
  OwnModel own(config);
  const nn::LanguageModel& model = own.model;
  constexpr std::int64_t length = 17, head_dim = 4;
  const Tensor tokens = own.tokens(3, length);
  const auto weight = [&](const std::string& name) { return parameter_of(model, name + ".weight"); };
  const Tensor x0 = embedding(weight("embedding"), tokens) + slice(weight("positions"), 0, 0, length);
  const auto normed = [&](const Tensor& x, const std::string& name) {
    return x / sqrt(mean(square(x), -1, true) + 1e-6) * weight(name);
  };
  Tensor x = x0, k, v;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string block = "block" + std::to_string(layer) + ".";
    const Tensor mix = parameter_of(model, block + "mix");
    const Tensor y = x * slice(mix, 0, 0, 1) + x0 * slice(mix, 0, 1, 2), in = normed(y, block + "norm1");
    const Tensor packed = matmul(in, transpose(weight(block + "attention.projection"), 0, 1));
    const auto heads = [&](std::int64_t begin, std::int64_t count) {
      return reshape(slice(packed, 2, begin * head_dim, (begin + count) * head_dim), {3, length, count, head_dim});
    };
    if (layer % 2 == 0) {
      k = heads(4, 2);
      v = heads(6, 2) + reshape(embedding(weight(block + "value_embedding"), tokens), {3, length, 2, head_dim});
    }
    const Tensor seen = attention_by_definition(heads(0, 4), k, v);
    const Tensor h = y + matmul(seen, transpose(weight(block + "attention.output"), 0, 1));
    const auto product = [&](const Tensor& a, const std::string& name) {
      return matmul(a, transpose(weight(block + "feed_forward." + name), 0, 1));
    };
    const Tensor again = normed(h, block + "norm2"), gate = product(again, "gate");
    x = h + product(gate * sigmoid(gate) * product(again, "up"), "down");
  }
  const Tensor want = tanh(matmul(normed(x, "norm"), transpose(weight("embedding"), 0, 1)) / 5.0) * 5.0;
  EXPECT_LT(relative_error(own.model.logits(tokens), want), 1e-12);
  const Tensor targets = own.tokens(3, length);
  EXPECT_NEAR(own.model.loss(tokens, targets).item(), cross_entropy(want, targets).item(), 1e-12);
}

TEST(OwnBlock, HasTheGradientsOfCentralDifferences) {
  nn::LanguageModelConfig config = small();
  config.vocabulary = 5;
  config.layers = 2;
  config.width = 8;
  config.heads = 2;
  config.kv_heads = 1;
  OwnModel own(config);
  const Tensor tokens = randint(0, 5, {2, 5}, {.dtype = DType::i64}, own.generator);
  const Tensor scale = ones({}, {.dtype = DType::f64}).set_requires_grad();
  const auto loss = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{own.model.loss(tokens, tokens) * in[0]};
  };
  EXPECT_TRUE(gradcheck(own.model, loss, {scale}));
}

TEST(OwnBlock, ContinuesASequenceToTheWholeSequence) {
  for (const Pattern& pattern : {Pattern::causal(), Pattern::window(4, 0)}) {  // the keys are shared with causal layers
    OwnModel own(small(), pattern);
    const NoGradGuard no_grad;
    const Tensor tokens = own.tokens(2, 24), whole = own.model.logits(tokens);
    for (const std::int64_t step : {1, 5, 24}) {
      nn::LanguageModel::State state = own.model.new_state();
      std::vector<Tensor> parts;
      for (std::int64_t begin = 0; begin < 24; begin += step)
        parts.push_back(own.model.logits(slice(tokens, 1, begin, std::min<std::int64_t>(begin + step, 24)), &state));
      EXPECT_LT(relative_error(cat(parts, 1), whole), 1e-12) << pattern.to_string() << " by " << step;
    }
  }
}

TEST(OwnBlock, LayersThatShareKeysKeepNoneOfTheirOwn) {
  OwnModel own;
  const NoGradGuard no_grad;
  nn::LanguageModel::State state = own.model.new_state();
  own.model.logits(own.tokens(1, 10), &state);
  EXPECT_EQ(state[0].tensors.size(), 2u);
  EXPECT_TRUE(state[1].tensors.empty());
  EXPECT_EQ(state[1].length, 10);
}

TEST(OwnBlock, CheckpointsKeepEveryBit) {
  OwnModel own(small(DType::f32));
  const Tensor tokens = own.tokens(2, 24), targets = own.tokens(2, 24);
  const auto gradients = [&](const std::string& policy) {
    own.model.set_checkpointing(nn::Checkpointing::parse(policy));
    own.model.zero_grad();
    own.model.loss(tokens, targets).backward();
    std::vector<Tensor> result;
    for (const Tensor& parameter : own.model.parameters()) result.push_back(parameter.grad());
    return result;
  };
  const std::vector<Tensor> want = gradients("none");
  for (const char* const policy : {"block", "sqrt", "revolve", "revolve:1", "revolve:2"}) {
    const std::vector<Tensor> found = gradients(policy);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(want[i].defined()) << i;
      EXPECT_TRUE(bit_equal(found[i], want[i])) << policy << ", parameter " << i;
    }
  }
}

TEST(OwnBlock, ACheckpointedGraphIsFreedWithoutItsBackwardPass) {
  OwnModel own(small(DType::f32));
  const Tensor tokens = own.tokens(2, 24);
  own.model.loss(tokens, tokens);
  const std::uint64_t before = allocator_for(cpu).statistics().requested_bytes.current;
  own.model.set_checkpointing({nn::Checkpointing::Kind::block});
  own.model.loss(tokens, tokens);
  EXPECT_EQ(allocator_for(cpu).statistics().requested_bytes.current, before);
}

TEST(OwnBlock, ABudgetKeepsEveryBit) {
  nn::LanguageModelConfig config = small(DType::f32);
  config.context = 256;
  config.width = 64;
  OwnModel own(config);
  const Tensor tokens = own.tokens(2, 256), targets = own.tokens(2, 256);
  CachingAllocator& pool = allocator_for(cpu);
  const auto gradients = [&] {
    own.model.zero_grad();
    own.model.loss(tokens, targets).backward();
    std::vector<Tensor> result;
    for (const Tensor& parameter : own.model.parameters()) result.push_back(parameter.grad().copy());
    own.model.zero_grad();
    return result;
  };
  pool.trim();
  const std::uint64_t before = pool.statistics().requested_bytes.current;
  pool.reset_peaks();
  const std::vector<Tensor> want = gradients();
  const std::uint64_t peak = pool.statistics().requested_bytes.peak;
  pool.trim();
  const std::uint64_t live = pool.statistics().requested_bytes.current;
  const MemoryBudget budget(live + (peak - before) * 2 / 3);
  const std::vector<Tensor> found = gradients();
  EXPECT_GT(budget.statistics().dropped_bytes, 0u);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(bit_equal(found[i], want[i])) << "parameter " << i;
}

nn::Corpus some_text() {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 3000; ++i) text.push_back(static_cast<std::uint8_t>("abcab\n"[i % 6]));
  const nn::Text train(text);
  return {train, train.part(0, 300)};
}

/// Training of a model of own blocks.
struct OwnTraining {
  explicit OwnTraining(Device device = cpu, std::int64_t chunk = 0) : device_(device), chunk_(chunk) {}
  Device device_;
  std::int64_t chunk_;
  Generator generator{3};
  nn::Trainer trainer{
      std::make_unique<nn::LanguageModel>(
          nn::LanguageModelConfig{
              .context = 32, .layers = 2, .width = 16, .heads = 2, .tied_head = true, .logit_softcap = 15},
          own_blocks(), nn::ParameterOptions{.device = device_, .generator = &generator}),
      some_text(),
      {.batch = 2, .chunk = chunk_, .steps = 12, .generator = &generator}};
};

TEST(OwnBlock, IsTrainedAndSampled) {
  OwnTraining own;
  const double first = own.trainer.step().loss;
  for (int i = 1; i < 12; ++i) own.trainer.step();
  EXPECT_LT(own.trainer.validate(4).loss, first - 1.0);
  EXPECT_EQ(own.trainer.sample(std::vector<std::int64_t>{'a', 'b'}, 20).size(), 20u);
}

TEST(OwnBlock, ResumesBitForBit) {
  const TemporaryFolder folder;
  OwnTraining whole, begun, resumed;
  for (int i = 0; i < 6; ++i) whole.trainer.step();
  for (int i = 0; i < 3; ++i) begun.trainer.step();
  begun.trainer.save(folder.file("half.safetensors"));
  resumed.trainer.resume(folder.file("half.safetensors"));
  for (int i = 0; i < 3; ++i) resumed.trainer.step();
  const auto want = whole.trainer.model().parameters(), found = resumed.trainer.model().parameters();
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(bit_equal(found[i], want[i])) << "parameter " << i;
}

TEST(OwnBlock, MuonLeavesValueEmbeddingsToAdamW) {
  const TemporaryFolder folder;
  OwnTraining own;
  own.trainer.save(folder.file("start.safetensors"));
  const SafetensorsReader reader(folder.file("start.safetensors"));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : reader.outline().tensors) names.push_back(name);
  EXPECT_THAT(names, ::testing::Contains("optimizer.block0.value_embedding.weight.second_moment"));
  EXPECT_THAT(names, ::testing::Contains("optimizer.block0.attention.projection.weight.momentum"));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("optimizer.block0.value_embedding.weight.momentum")));
}

TEST(OwnBlock, ASimulatedDevicePredictsThePeakToTheByte) {
  const auto peak_on = [](Device device) {
    CachingAllocator& pool = allocator_for(device);
    const std::uint64_t before = pool.statistics().requested_bytes.current;
    pool.reset_peaks();
    OwnTraining own(device);
    own.trainer.step();
    own.trainer.step();
    own.trainer.validate(2);
    return pool.statistics().requested_bytes.peak - before;
  };
  constexpr int planned = 41;
  configure_simulated_device(planned, std::size_t{1} << 30, "cpu");
  EXPECT_EQ(peak_on({DeviceType::sim, planned}), peak_on(cpu));
}

/// Attends within the documents that end after token 0.
class DocumentBlock : public nn::Block {
 public:
  DocumentBlock(const nn::LanguageModelConfig& config, const nn::ParameterOptions& parameters)
      : norm_(config.width, 1e-6, parameters),
        attention_(config.width, config.heads, as_mixer({.layer_norm = false, .post_norm = false}, config), parameters,
                   Pattern::causal()) {
    add_module("norm", norm_);
    add_module("attention", attention_);
  }
  Tensor forward(const Tensor& x, nn::BlockContext& context) override {
    return x + attention_.forward(norm_(x), context.state, {.documents = documents_of(context.tokens, 0)});
  }

 private:
  nn::RMSNorm norm_;
  MultiheadAttention attention_;
};

TEST(OwnBlock, AttendsWithinTheDocumentsOfEachRow) {
  Generator generator(test_seed());
  nn::LanguageModel model(small(),
                          [](const auto& config, const auto& parameters, std::int64_t) {
                            return std::make_unique<DocumentBlock>(config, parameters);
                          },
                          {.generator = &generator});
  for (Tensor& parameter : model.parameters()) {
    const NoGradGuard no_grad;
    parameter.copy_from(parameter + randn(parameter.shape(), parameter.options(), generator) * 0.2);
  }
  const Tensor tokens = randint(0, 4, {3, 24}, {.dtype = DType::i64}, generator);
  const Tensor logits = model.logits(tokens);
  const RowDocuments rows = documents_of(tokens, 0);
  for (std::size_t row = 0; row < rows.size(); ++row)
    for (std::size_t d = 0; d + 1 < rows[row].size(); ++d) {
      const auto own = [&, b = static_cast<std::int64_t>(row)](const Tensor& y) {
        return slice(slice(y, 0, b, b + 1), 1, rows[row][d], rows[row][d + 1]);
      };
      EXPECT_LT(relative_error(own(logits), model.logits(own(tokens))), 1e-12) << "row " << row << ", document " << d;
    }
  nn::LanguageModel::State state = model.new_state();
  EXPECT_EQ(error_of<ValueError>([&] { model.logits(tokens, &state); }),
            "[multihead] documents by row need whole sequences, without a state");
}

TEST(OwnBlock, TrainsInChunksAsInOneCall) {
  nn::LanguageModelConfig config = small();
  config.layers = 1;  // without shared keys
  OwnModel own(config);
  const Tensor tokens = own.tokens(2, 24), targets = own.tokens(2, 24);
  const auto gradients = [&](const Tensor& loss) {
    own.model.zero_grad();
    loss.backward();
    std::vector<Tensor> result{loss};
    for (const Tensor& parameter : own.model.parameters()) result.push_back(parameter.grad());
    return result;
  };
  const std::vector<Tensor> want = gradients(own.model.loss(tokens, targets, true));
  for (const std::int64_t chunk : {1, 7, 24}) {
    const std::vector<Tensor> found = gradients(nn::chunked_loss(own.model, tokens, targets, {.chunk = chunk}));
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LT(relative_error(found[i], want[i]), 1e-12) << "chunk " << chunk << ", tensor " << i;
  }
}

TEST(OwnBlock, SharedKeysRefuseChunks) {
  OwnTraining own(cpu, 8);
  EXPECT_EQ(error_of<ValueError>([&] { own.trainer.step(); }),
            "[multihead] a layer with shared keys cannot process chunks");
}

TEST(OwnBlock, LeavesTheContextEmptyUnlessABlockReadsIt) {
  struct Blind : nn::Block {
    explicit Blind(bool reads) : reads_(reads) {}
    Tensor forward(const Tensor& x, nn::BlockContext& context) override {
      EXPECT_EQ(context.x0.defined(), reads_);
      EXPECT_EQ(context.tokens.defined(), reads_);
      return x;
    }
    bool reads_embeddings() const override { return reads_; }
    bool reads_;
  };
  for (const bool reads : {false, true}) {
    nn::LanguageModel model(small(), [&](const auto&...) { return std::make_unique<Blind>(reads); });
    EXPECT_EQ(model.hidden(zeros({1, 3}, {.dtype = DType::i64})).shape(), (Shape{1, 3, 16}));
  }
}

TEST(OwnBlock, IsRefusedIfItDoesNotExtendItsState) {
  struct Forgetful : nn::Block {
    Tensor forward(const Tensor& x, nn::BlockContext&) override { return x; }
  };
  nn::LanguageModel model(small(), [](const auto&...) { return std::make_unique<Forgetful>(); });
  auto state = model.new_state();
  EXPECT_EQ(error_of<ValueError>([&] {
              model.hidden(zeros({1, 3}, {.dtype = DType::i64}), &state);
            }),
            "[language_model] block 0 must extend its state from 0 to 3 positions, but has 0");
}

TEST(OwnBlock, IsRefusedForAnotherShape) {
  struct Wrong : nn::Block {
    Tensor forward(const Tensor& x, nn::BlockContext&) override { return slice(x, 1, 1); }
  };
  struct None : nn::Block {
    Tensor forward(const Tensor&, nn::BlockContext&) override { return {}; }
  };
  const Tensor tokens = zeros({2, 5}, {.dtype = DType::i64});
  nn::LanguageModel wrong(small(), [](const auto&...) { return std::make_unique<Wrong>(); });
  EXPECT_EQ(
      error_of<ShapeError>([&] { wrong.loss(tokens, tokens); }),
      "[language_model] block 0 must return a tensor like x: x (2, 5, 16) f64 on cpu, result (2, 4, 16) f64 on cpu");
  nn::LanguageModel none(small(), [](const auto&...) { return std::make_unique<None>(); });
  EXPECT_EQ(error_of<ShapeError>([&] { none.loss(tokens, tokens); }),
            "[language_model] block 0 must return a tensor like x: x (2, 5, 16) f64 on cpu, result undefined");
  EXPECT_EQ(error_of<ValueError>([] { nn::LanguageModel(small(), nn::BlockFactory()); }),
            "[language_model] the factory of blocks is empty");
  EXPECT_EQ(error_of<ValueError>([] {
              nn::LanguageModel(small(), [](const auto&...) -> std::unique_ptr<nn::Block> { return nullptr; });
            }),
            "[language_model] there is no block 0");
}

TEST(OwnBlock, MayOnlyAppendToPassedTensors) {
  struct Second : nn::Block {
    Second(std::int64_t layer, bool clears) : layer_(layer), clears_(clears) {}
    Tensor forward(const Tensor& x, nn::BlockContext& context) override {
      if (layer_ == 0) context.passed = {x, x};
      if (layer_ == 1 && clears_) context.passed.clear();
      if (layer_ == 1 && !clears_) context.passed[1] = x * 2.0;
      return x * 1.0;
    }
    std::int64_t layer_;
    bool clears_;
  };
  const Tensor tokens = zeros({2, 5}, {.dtype = DType::i64});
  for (const bool clears : {false, true})
    for (const char* const policy : {"none", "block"}) {
      nn::LanguageModel model(small(), [&](const auto&, const auto&, std::int64_t layer) {
        return std::make_unique<Second>(layer, clears);
      });
      model.set_checkpointing(nn::Checkpointing::parse(policy));
      EXPECT_EQ(error_of<ValueError>([&] { model.loss(tokens, tokens); }),
                "[language_model] block 1 may only append to the tensors that are passed on");
    }
}

TEST(MultiheadShell, RefusesOperandsThatDoNotFit) {
  const nn::ParameterOptions in_f64{.dtype = DType::f64};
  MultiheadAttention own(16, 4, {.kv_heads = 2}, in_f64, Pattern::causal());
  MultiheadAttention sharing(16, 4, {.kv_heads = 2, .shared_keys = true}, in_f64, Pattern::causal());
  const Tensor x = ones({2, 5, 16}, {.dtype = DType::f64});
  KeysValues keys, none;
  own.forward(x, nullptr, {.shared = &keys});
  EXPECT_EQ(keys.k.shape(), (Shape{2, 5, 2, 4}));
  EXPECT_EQ(sharing.forward(x, nullptr, {.shared = &keys}).shape(), x.shape());
  EXPECT_EQ(error_of<ValueError>([&] { own.forward(x, nullptr, {.shared = &keys}); }),
            "[multihead] a layer with keys of its own takes no shared ones: set shared_keys");
  EXPECT_FALSE(sharing.weights(x).defined());
  const auto refusal = [&](MultiheadAttention& layer, const Tensor& in, const LayerOperands& operands) {
    return error_of<Error>([&] { layer.forward(in, nullptr, operands); });
  };
  EXPECT_EQ(
      refusal(own, x, {.value_embedding = x}),
      "[multihead] the value embedding must be (2, 5, 8): x (2, 5, 16) f64 on cpu, value embedding (2, 5, 16) f64 "
      "on cpu");
  EXPECT_EQ(refusal(sharing, x, {}), "[multihead] a layer with shared keys needs those of an earlier layer");
  EXPECT_EQ(refusal(sharing, x, {.shared = &none}),
            "[multihead] a layer with shared keys needs those of an earlier layer");
  EXPECT_EQ(refusal(sharing, x, {.value_embedding = slice(x, 2, 0, 8), .shared = &keys}),
            "[multihead] a layer with shared keys has no values to add an embedding to");
  EXPECT_EQ(refusal(sharing, slice(x, 1, 0, 4), {.shared = &keys}),
            "[multihead] shared keys must be those of 4 positions: x (2, 4, 16) f64 on cpu, keys (2, 5, 2, 4) f64 on "
            "cpu");
  EXPECT_EQ(error_of<ValueError>([&] { sharing.forward(x, x, x); }),
            "[multihead] a layer with shared keys attends to no other keys");
}

}  // namespace
}  // namespace poolgrad::attention
