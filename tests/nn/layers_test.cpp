// Linear, Embedding, LayerNorm, RMSNorm, Dropout and FeedForward: each layer's additions to its operator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "autograd/operators.h"
#include "nn/checkpoint_sequential.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;

const ParameterOptions f64{.dtype = DType::f64};

const Tensor& parameter(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  throw ValueError("no " + name);
}

double deviation(const Tensor& x) {
  double sum = 0;
  for (const double value : x.to_vector<double>()) sum += value * value;
  return std::sqrt(sum / static_cast<double>(x.numel()));
}

TEST(Linear, MultipliesByItsWeightAndAddsItsBias) {
  Linear layer(2, 3);
  layer.load({{"weight", from_data<float>({1, 2, 3, 4, 5, 6}, {3, 2})}, {"bias", from_data<float>({10, 20, 30}, {3})}});
  EXPECT_TRUE(allclose(layer(from_data<float>({1, -1}, {1, 2})), from_data<float>({9, 19, 29}, {1, 3})));
  EXPECT_FALSE(Linear(2, 3, {.bias = false}).bias().defined());
}

TEST(Linear, StartsWithTheDeviationOneOverRootWidth) {
  EXPECT_NEAR(deviation(Linear(256, 256).weight()), 1.0 / 16, 1e-3);
  EXPECT_NEAR(deviation(Linear(256, 256, {.deviation = 2.0}).weight()), 2.0, 0.03);
  EXPECT_EQ(deviation(Linear(8, 8, {.deviation = 0.0}).weight()), 0.0);
}

TEST(Linear, ServesHalfActivationsWithFullParameters) {
  Linear layer(4, 2);
  const Tensor x = to(ones({3, 4}), DType::bf16);
  const Tensor y = layer(x);
  EXPECT_EQ(y.dtype(), DType::bf16);
  sum(y).backward();
  EXPECT_EQ(layer.weight().grad().dtype(), DType::f32);
  EXPECT_TRUE(allclose(layer.weight().grad(), full({2, 4}, 3.0)));
}

TEST(Embedding, LooksUpRows) {
  Embedding layer(4, 2);
  layer.load({{"weight", from_data<float>({0, 1, 10, 11, 20, 21, 30, 31}, {4, 2})}});
  const Tensor rows = layer(from_data<std::int64_t>({3, 1}, {1, 2}));
  EXPECT_TRUE(allclose(rows, from_data<float>({30, 31, 10, 11}, {1, 2, 2})));
  EXPECT_NEAR(deviation(Embedding(256, 64, 0.5).weight()), 0.5, 0.01);
}

TEST(Norms, StartAsPlainNormalization) {
  const Tensor x = from_data<double>({1, 2, 3, 4}, {1, 4});
  LayerNorm layer_norm(4, true, 0.0, f64);
  RMSNorm rms_norm(4, 0.0, f64);
  const double s = std::sqrt(1.25), r = std::sqrt(7.5);
  EXPECT_TRUE(allclose(layer_norm(x), from_data<double>({-1.5 / s, -0.5 / s, 0.5 / s, 1.5 / s}, {1, 4}), 1e-12));
  EXPECT_TRUE(allclose(rms_norm(x), from_data<double>({1 / r, 2 / r, 3 / r, 4 / r}, {1, 4}), 1e-12));
  EXPECT_EQ(layer_norm.named_parameters().size(), 2u);
  EXPECT_EQ(LayerNorm(4, false).named_parameters().size(), 1u);
  EXPECT_EQ(rms_norm.named_parameters().size(), 1u);
}

TEST(Dropout, ActsInTrainingOnly) {
  Generator generator(7);
  Dropout layer(0.25, generator);
  const Tensor x = ones({1000});
  const Tensor dropped = layer(x);
  const double kept = mean(dropped).item() * 0.75;
  EXPECT_NEAR(kept, 0.75, 0.05);
  EXPECT_NEAR(max(dropped).item(), 1 / 0.75, 1e-6);
  EXPECT_FALSE(bit_equal(layer(x), dropped)) << "the generator moves on";
  layer.eval();
  EXPECT_TRUE(layer(x).is_same(x));
  EXPECT_EQ(error_of<ValueError>([&] { Dropout(1.0, generator); }), "[dropout] p must be in [0, 1), but is 1.000000");
}

TEST(FeedForward, ComputesEachKindFromItsParts) {
  Generator generator(3);
  const ParameterOptions options{.dtype = DType::f64, .generator = &generator};
  const Tensor x = randn({2, 5, 4}, {.dtype = DType::f64}, generator);
  for (const FeedForwardKind kind : {FeedForwardKind::gelu, FeedForwardKind::gelu_exact, FeedForwardKind::swiglu}) {
    FeedForward layer(4, 6, {.kind = kind}, options);
    const NamedTensors parts = layer.named_parameters();
    const auto dense = [&](const std::string& name, const Tensor& input) {
      return matmul(input, transpose(parameter(parts, name + ".weight"), 0, 1)) + parameter(parts, name + ".bias");
    };
    const Tensor up = dense("up", x);
    Tensor hidden = up * 0.5 * (erf(up * std::sqrt(0.5)) + 1.0);
    if (kind == FeedForwardKind::gelu)
      hidden = up * 0.5 * (tanh((up + pow(up, 3.0) * 0.044715) * std::sqrt(2 / 3.14159265358979)) + 1.0);
    if (kind == FeedForwardKind::swiglu) {
      const Tensor gate = dense("gate", x);
      hidden = gate * sigmoid(gate) * up;
    }
    EXPECT_TRUE(allclose(layer(x), dense("down", hidden), 1e-10, 1e-12)) << static_cast<int>(kind);
  }
}

TEST(FeedForward, CanStartAsZero) {
  FeedForward layer(4, 8, {.down_deviation = 0.0});
  EXPECT_TRUE(bit_equal(layer(ones({2, 4})), zeros({2, 4})));
}

TEST(Sequential, RunsItsPartsInOrderAndNamesThemByIndex) {
  Generator generator(1);
  const auto linear_of = [&](std::int64_t inputs, std::int64_t outputs) {
    return std::make_unique<Linear>(inputs, outputs, LinearOptions{},
                                    ParameterOptions{.dtype = DType::f64, .generator = &generator});
  };
  auto first = linear_of(3, 4), last = linear_of(4, 2);
  Linear &a = *first, &b = *last;
  Sequential mlp(std::move(first), relu, std::move(last));
  mlp.add([](const Tensor& x) { return x * 2.0; }, "double");
  const Tensor x = randn({5, 3}, {.dtype = DType::f64});
  EXPECT_TRUE(bit_equal(mlp(x), b(relu(a(x))) * 2.0));
  std::vector<std::string> found;
  for (const auto& [name, parameter] : mlp.named_parameters()) found.push_back(name);
  EXPECT_THAT(found, ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
  mlp.eval();
  EXPECT_FALSE(a.training() || mlp.layers()[3]->training());
}

TEST(Sequential, TakesActivationsAsFunctionsOrWithOptions) {
  const Tensor x = randn({2, 3, 4}, {.dtype = DType::f64});
  const auto alone = [&](auto part) { return Sequential(part)(x); };
  EXPECT_TRUE(bit_equal(alone(gelu), gelu(x)));
  EXPECT_TRUE(bit_equal(alone(relu), relu(x)));
  EXPECT_TRUE(bit_equal(alone(silu), silu(x)));
  EXPECT_TRUE(bit_equal(alone(ReLU()), relu(x)));
  EXPECT_TRUE(bit_equal(alone(LeakyReLU{0.2}), leaky_relu(x, 0.2)));
  EXPECT_TRUE(bit_equal(alone(GELU()), gelu(x)));
  EXPECT_TRUE(bit_equal(alone(GELU{GeluKind::tanh}), gelu(x, GeluKind::tanh)));
  EXPECT_TRUE(bit_equal(alone(SiLU()), silu(x)));
  EXPECT_TRUE(bit_equal(alone(Softplus()), softplus(x)));
  EXPECT_TRUE(bit_equal(alone(Sigmoid()), sigmoid(x)));
  EXPECT_TRUE(bit_equal(alone(Tanh()), tanh(x)));
  EXPECT_TRUE(bit_equal(alone(Softmax{1}), softmax(x, 1)));
  EXPECT_TRUE(bit_equal(alone(LogSoftmax()), log_softmax(x, -1)));
  EXPECT_EQ(alone(Flatten()).shape(), (Shape{2, 12}));
  EXPECT_EQ(Sequential(GELU(), Flatten{0, 1}, Tanh()).layers().size(), 3u);
}

TEST(Sequential, WorksWithCheckpointSequential) {
  Generator generator(1);
  Sequential chain;
  for (int i = 0; i < 4; ++i) {
    chain.add(std::make_unique<Linear>(3, 3, LinearOptions{},
                                       ParameterOptions{.dtype = DType::f64, .generator = &generator}));
    chain.add([](const Tensor& x) { return tanh(x); });
  }
  const Tensor x = randn({2, 3}, {.dtype = DType::f64});
  sum(chain(x)).backward();
  const Tensor plain = chain.parameters()[0].grad();
  chain.zero_grad();
  sum(checkpoint_sequential(chain.layers(), x, {Checkpointing::Kind::sqrt})).backward();
  EXPECT_TRUE(bit_equal(chain.parameters()[0].grad(), plain));
}

TEST(Sequential, MayBeEmptyOrNestedAndRefusesNullParts) {
  const Tensor x = ones({2});
  EXPECT_TRUE(Sequential()(x).is_same(x));
  Sequential outer(std::make_unique<Sequential>(std::make_unique<RMSNorm>(2)), std::make_unique<RMSNorm>(2));
  EXPECT_EQ(outer.named_parameters()[0].first, "0.0.weight");
  EXPECT_EQ(outer.named_parameters()[1].first, "1.weight");
  EXPECT_EQ(error_of<ValueError>([&] { outer.add(std::unique_ptr<Layer>()); }), "[sequential] part 2 is no layer");
  EXPECT_EQ(error_of<ValueError>([&] { outer.add(std::function<Tensor(const Tensor&)>()); }),
            "[lambda] a layer needs a function");
  EXPECT_THAT(error_of<ValueError>([&] { outer.add(relu, "1"); }), HasSubstr("is called '1' already"));
  EXPECT_EQ(outer.layers().size(), 2u);
}

}  // namespace
}  // namespace poolgrad::nn
