// A trace attributes each allocation to an operator and to the line of this file that called it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory_scope.h"
#include "autograd/engine/engine.h"
#include "autograd/functional.h"
#include "autograd/operators.h"
#include "nn/ema.h"
#include "nn/language_model.h"
#include "nn/layers.h"
#include "nn/loss_scaler.h"
#include "nn/optimizer.h"
#include "nn/text/windows.h"
#include "nn/training/sampler.h"
#include "tensor/creation.h"
#include "tensor/safetensors.h"
#include "tests/call_sites.h"

namespace poolgrad::nn {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using testing_support::expect_this_line;
using testing_support::Place;
using testing_support::places;

Place here(unsigned line, const std::string& name) { return {"call_site_test.cpp", line, name}; }

TEST(CallSites, NameTheOperatorAndTheCallingLine) {
  const Tensor a = ones({8, 9}), b = ones({9, 7});
  Tensor y;
  EXPECT_THAT(places([&] { y = matmul(a, b); }), ElementsAre(here(__LINE__, "poolgrad::matmul")));
  EXPECT_THAT(places([&] { y = softmax(a); }), ElementsAre(here(__LINE__, "poolgrad::softmax")));
  EXPECT_THAT(places([&] { y = zeros({3}); }), ElementsAre(here(__LINE__, "poolgrad::zeros")));
  EXPECT_THAT(places([&] { y = a.copy(); }), ElementsAre(here(__LINE__, "poolgrad::Tensor::copy")));
}

TEST(CallSites, NameOperatorsWrittenAsSymbols) {
  const Tensor a = ones({8, 9});
  Tensor y;
  EXPECT_THAT(places([&] { y = a + a; }), ElementsAre(here(__LINE__, "poolgrad::add")));
  EXPECT_THAT(places([&] { y = a + 1.0; }), ElementsAre(here(__LINE__, "poolgrad::operator+")));
  EXPECT_THAT(places([&] { y = a / 2.0; }), ElementsAre(here(__LINE__, "poolgrad::operator/")));
  const unsigned line = __LINE__ + 1;
  const auto found = places([&] { y = 2.0 * -a; });
  EXPECT_THAT(found, UnorderedElementsAre(here(line, "poolgrad::neg"), here(line, "poolgrad::operator*")));
  const Tensor leaf = ones({8, 9}).set_requires_grad();
  Tensor sum = leaf * 1.0;
  EXPECT_THAT(places([&] { sum += 1.0; }), ElementsAre(here(__LINE__, "poolgrad::operator+=")));
}

TEST(CallSites, NameTheLineOfEveryKindOfOperator) {
  const Tensor a = ones({8, 9}), index = zeros({8, 9}, {.dtype = DType::i64});
  Tensor y;
  EXPECT_THAT(places([&] { y = exp(a); }), ElementsAre(here(__LINE__, "poolgrad::exp")));
  EXPECT_THAT(places([&] { y = gelu(a); }), ElementsAre(here(__LINE__, "poolgrad::gelu")));
  EXPECT_THAT(places([&] { y = sum(a, 1); }), ElementsAre(here(__LINE__, "poolgrad::sum")));
  EXPECT_THAT(places([&] { y = max(a, 1); }), ElementsAre(here(__LINE__, "poolgrad::max")));
  EXPECT_THAT(places([&] { y = where(a > 0.5, a, a); }), Contains(here(__LINE__, "poolgrad::where")));
  EXPECT_THAT(places([&] { y = gather(a, 1, index); }), ElementsAre(here(__LINE__, "poolgrad::gather")));
  EXPECT_THAT(places([&] { y = clone(a); }), ElementsAre(here(__LINE__, "poolgrad::Tensor::copy")));
  EXPECT_THAT(places([&] { y = roll(a, 1, 0); }), Each(FieldsAre("call_site_test.cpp", __LINE__, _)));
  EXPECT_THAT(places([&] { y = sort(a).values; }), Each(FieldsAre("call_site_test.cpp", __LINE__, _)));
  EXPECT_THAT(places([&] { y = cat({a, a}); }), ElementsAre(here(__LINE__, "poolgrad::cat")));
  EXPECT_THAT(places([&] { y = sum_to(a, {9}); }), Each(FieldsAre("call_site_test.cpp", __LINE__, _)));
}

TEST(CallSites, NameTheOutermostCallOfAFunctionPointer) {
  const Tensor a = ones({8, 9});
  Tensor y;
  const auto apply = [&](Tensor (*function)(TensorArg)) { y = function(a); };
  const unsigned called = __LINE__ - 1;
  EXPECT_THAT(places([&] { apply(exp); }), ElementsAre(here(called, "poolgrad::exp")));
  const CallSite site;
  const unsigned declared = __LINE__ - 1;
  EXPECT_THAT(places([&] { apply(exp); }), ElementsAre(here(declared, "poolgrad::exp")));
  EXPECT_THAT(places([&] { y = a + a; }), ElementsAre(here(declared, "poolgrad::add")));
  EXPECT_THAT(places([&] { y = matmul(a, transpose(a, 0, 1)); }), ElementsAre(here(declared, "poolgrad::matmul")));
}

TEST(CallSites, NameTheModuleCallForItsOperators) {
  Linear layer(9, 7);
  const Tensor x = ones({8, 9});
  Tensor y;
  const unsigned line = __LINE__ + 1;
  EXPECT_THAT(places([&] { y = layer(x); }), Contains(here(line, "poolgrad::linear")));
}

TEST(CallSites, NameTheForwardLineOfABackward) {
  const Tensor a = ones({8, 9}).set_requires_grad(), b = ones({9, 7}).set_requires_grad();
  const unsigned forward = __LINE__ + 1;
  const Tensor y = matmul(a, b);
  const Tensor loss = sum(y);
  const unsigned backward = __LINE__ + 1;
  const std::set<Place> found = places([&] { loss.backward(); });
  EXPECT_THAT(found, Contains(here(forward, "matmul backward")));
  for (const auto& [file, line, name] : found) {
    EXPECT_EQ(file, "call_site_test.cpp") << name;
    EXPECT_TRUE(line == forward || line == backward) << line << " " << name;
  }
}

TEST(CallSites, NameTheForwardLineOfAnIndexingBackward) {
  const Tensor a = ones({8, 9}).set_requires_grad();
  const unsigned line = __LINE__ + 1;
  const Tensor row = a[0], some = a[{slice(1, 3), -1}];
  const Tensor loss = sum(row) + sum(some);
  EXPECT_THAT(places([&] { loss.backward(); }),
              AllOf(Contains(here(line, "select backward")), Contains(here(line, "slice backward"))));
}

TEST(CallSites, NameTheLineOfAnOptimizerStep) {
  const Tensor wide = ones({4, 6});
  Tensor parameter = transpose(wide, 0, 1).detach().set_requires_grad();
  parameter.set_grad(ones({6, 4}));
  SGD optimizer({{"w", parameter}});
  const unsigned line = __LINE__ + 1;
  for (const auto& [file, at, name] : places([&] { optimizer.step(); })) {
    EXPECT_EQ(file, "call_site_test.cpp") << name;
    EXPECT_EQ(at, line) << name;
  }
}

/// A layer as a user writes one.
class OwnLayer : public Layer {
 public:
  explicit OwnLayer(std::int64_t width) : factor_(constant_parameter("factor", {width}, 2.0, {})) {}
  static constexpr unsigned makes = __LINE__ - 1;

  Tensor forward(const Tensor& x) override { return x * factor_; }
  static constexpr unsigned computes = __LINE__ - 1;

 private:
  Tensor factor_;
};

/// A mixer without attention.
class RunningSum : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState* state) override {
    if (state) state->length += x.size(1);
    return cumsum(x, 1);
  }
};

std::unique_ptr<SequenceMixer> running_sum(const LanguageModelConfig&, const ParameterOptions&, std::int64_t) {
  return std::make_unique<RunningSum>();
}

Tensor squared(const Tensor& x) { return x * x; }

const LanguageModelConfig two_blocks{
    .vocabulary = 10, .context = 8, .layers = 2, .width = 8, .heads = 2, .kv_heads = 2};

TEST(CallSites, NeverLieInsideTheLibrary) {
  const std::set<Place> found = places(
      [] {
        Linear layer(9, 7);
        OwnLayer own(7);
        to(layer, DType::f64);
        to(layer, DType::f32);
        AdamW optimizer(layer.named_parameters());
        const Tensor x = randn({8, 9});
        const Tensor loss = mean(square(gelu(own(layer(x))) - 1.0));
        backward({loss});
        optimizer.step(1.0 / gradient_norm(layer.parameters()));
        jacobian([&](const Tensor& a) { return layer(a); }, x);
      },
      true);
  EXPECT_GT(found.size(), 8u);
  EXPECT_THAT(found, Each(FieldsAre("call_site_test.cpp", _, _)));
}

TEST(CallSites, NameTheLineOfAModulesConstruction) {
  auto mixer = std::make_unique<RunningSum>();
  auto feed_forward = std::make_unique<Lambda>(squared);
  expect_this_line([] { const Linear layer(9, 7); });
  expect_this_line([] { const Embedding layer(9, 7); });
  expect_this_line([] { const LayerNorm layer(7); });
  expect_this_line([] { const RMSNorm layer(7); });
  expect_this_line([] { const FeedForward layer(9, 7, {.kind = FeedForwardKind::swiglu}); });
  expect_this_line([&] { const TransformerBlock block(8, std::move(mixer), std::move(feed_forward)); });
  expect_this_line([] { const LanguageModel model(two_blocks, running_sum); });
  EXPECT_THAT(places([] { const OwnLayer layer(7); }),
              ElementsAre(here(OwnLayer::makes, "poolgrad::nn::Module::constant_parameter")));
  const CallSite site;  // the standard library allocates in a file of its own
  const unsigned line = __LINE__ - 1;
  EXPECT_THAT(places([] { std::make_unique<Linear>(9, 7); }), Each(FieldsAre("call_site_test.cpp", line, _)));
}

TEST(CallSites, NameTheLineOfAMoveSaveOrLoad) {
  Sequential model(std::make_unique<Linear>(9, 7), GELU(), std::make_unique<Linear>(7, 9));
  const std::string path = ::testing::TempDir() + "call_site.safetensors";
  expect_this_line([&] { to(model, DType::f64); });
  model.save_file(path);
  expect_this_line([&] { load_safetensors(path); });
  expect_this_line([&] { model.load_file(path); });
  std::filesystem::remove(path);
}

TEST(CallSites, NameTheLineOfAModuleCall) {
  LanguageModel model(two_blocks, running_sum);
  RunningSum mixer;
  const Tensor x = randn({8, 9}), rows = randn({2, 8, 9}), tokens = zeros({2, 8}, {.dtype = DType::i64});
  const std::unique_ptr<Layer> layer = std::make_unique<Linear>(9, 7);
  TransformerBlock block(9, std::make_unique<RunningSum>(), std::make_unique<Linear>(9, 9));
  TextWriter writer(model);
  writer.read(std::vector<std::int64_t>{1, 2});
  expect_this_line([&] { (*layer)(x); });
  expect_this_line([&] { mixer(rows); });
  expect_this_line([&] { block.forward(rows); });
  expect_this_line([&] { functional_call(*layer, layer->named_parameters(), x); });
  expect_this_line([&] { model.hidden(tokens); });
  expect_this_line([&] { model.logits(tokens); });
  expect_this_line([&] { model.loss(tokens, tokens).backward(); });
  expect_this_line([&] { writer.write(); });
}

TEST(CallSites, NameTheLinesInsideADirectForward) {
  OwnLayer scale(9);
  Linear layer(9, 7);
  const Tensor x = randn({8, 9});
  EXPECT_THAT(places([&] { scale.forward(x); }), ElementsAre(here(OwnLayer::computes, "poolgrad::mul")));
  const CallSite site;
  const unsigned line = __LINE__ - 1;
  EXPECT_THAT(places([&] { layer.forward(x); }), ElementsAre(here(line, "poolgrad::linear")));
}

TEST(CallSites, NameTheLineOfAGradientFunction) {
  const Tensor x = randn({3}).set_requires_grad(), direction = ones({3});
  const UnaryFunction f = [](const Tensor& a) { return a * a * a; };
  const UnaryFunction g = [](const Tensor& a) { return sum(a * a * a); };
  const Tensor y = g(x);
  unsigned line = 0;
  const auto are_of = [&](const char* name) {  // memory of the nodes, and of the first gradient, that of y itself
    return AllOf(Contains(here(line, name)), Each(FieldsAre("call_site_test.cpp", _, _)));
  };
  line = __LINE__ + 1;
  EXPECT_THAT(places([&] { grad({y}, {x}, {}, {.retain_graph = true}); }, true), are_of("poolgrad::grad"));
  line = __LINE__ + 1;
  EXPECT_THAT(places([&] { backward({y}); }, true), are_of("poolgrad::backward"));
  expect_this_line([&] { jacobian(f, x); });
  expect_this_line([&] { hessian(g, x); });
  expect_this_line([&] { vjp(f, x, direction); });
  expect_this_line([&] { jvp(f, x, direction); });
  expect_this_line([&] { hessian_vector_product(g, x, direction); });
  expect_this_line([&] { vmap(f, x); });
}

TEST(CallSites, NameTheModuleSourceInsideMakeUnique) {
  std::unique_ptr<Layer> layer;
  std::shared_ptr<Layer> shared;
  std::optional<Linear> kept;
  const auto make_all = [&] {
    layer = std::make_unique<Linear>(9, 7);
    shared = std::make_shared<Linear>(9, 7);
    kept.emplace(9, 7);
  };
  EXPECT_THAT(places(make_all), AllOf(Not(IsEmpty()), Each(FieldsAre("layers.cpp", _, _))));
  const CallSite site;
  const unsigned line = __LINE__ - 1;
  EXPECT_THAT(places(make_all), Each(FieldsAre("call_site_test.cpp", line, _)));
}

TEST(CallSites, NameTheLineOfAnOptimizersConstruction) {
  const NamedTensors parameters{{"wide", ones({6, 4}).set_requires_grad()},
                                {"half", ones({6, 4}, {.dtype = DType::bf16}).set_requires_grad()}};
  const Linear layer(9, 7);
  expect_this_line([&] { const SGD optimizer(parameters, {.momentum = 0.9}); });
  expect_this_line([&] { const AdamW optimizer(parameters); });
  expect_this_line([&] { const Lion optimizer(parameters); });
  expect_this_line([&] { const Muon optimizer(parameters); });
  expect_this_line([&] { const EMA average(layer); });
  expect_this_line([&] { const LossScaler scaler; });
}

TEST(CallSites, NameTheLineOfEachPartOfAStep) {
  Linear layer(9, 7);
  const Tensor x = randn({8, 9});
  Muon optimizer(layer.named_parameters());
  LossScaler scaler;
  Tensor loss, norm, scale;
  double number = 0;
  loss = mean(layer(x));
  expect_this_line([&] { loss = scaler.scaled(loss); });
  loss.backward();
  expect_this_line([&] { norm = gradient_norm_tensor(layer.parameters()); });
  expect_this_line([&] { number = gradient_norm(layer.parameters()); });
  expect_this_line([&] { scale = clip_scale(norm, 1.0); });
  expect_this_line([&] { scaler.gradient_scale(norm, 1.0); });
  expect_this_line([&] { optimizer.step(scale); });
  expect_this_line([&] { scaler.step(optimizer, number); });
  expect_this_line([&] { newton_schulz(x); });
  expect_this_line([&] { windows_of(Text(std::vector<std::uint8_t>(8)), {0, 1}, 4); });
}

}  // namespace
}  // namespace poolgrad::nn
