// Checks a module with all its parameters at once; the report names the wrong one.
#include "autograd/gradcheck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/error.h"
#include "autograd/engine/function.h"
#include "autograd/operators.h"
#include "autograd/testing_gtest.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const ParameterOptions in_f64{.dtype = DType::f64};

Tensor input(const Shape& shape, std::uint64_t seed = 3) {
  Generator generator(seed);
  return randn(shape, {.dtype = DType::f64}, generator).set_requires_grad();
}

/// Computes a b, with a gradient of b that is twice the right one.
struct CarelessProduct : Function {
  Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    context.save(inputs[0]);
    context.save(inputs[1]);
    return inputs[0] * inputs[1];
  }
  Gradients backward(FunctionContext& context, const Tensor& gradient) override {
    return {gradient * context.saved(1), 2.0 * gradient * context.saved(0)};
  }
};

class Scale : public Layer {
 public:
  explicit Scale(bool careless) : careless_(careless) { weight_ = constant_parameter("weight", {3}, 1.5, in_f64); }
  Tensor forward(const Tensor& x) override {
    return careless_ ? apply<CarelessProduct>("careless", {x, expand(weight_, x.shape())}) : x * weight_;
  }

 private:
  Tensor weight_;
  bool careless_;
};

/// Two inputs, two outputs, submodules, dropout, and an optional parameter.
class Net : public Module {
 public:
  explicit Net(bool careless = false, bool uses_spare = true)
      : scale_(careless), linear_(3, 2, {}, in_f64), dropout_(0.5, generator_), uses_spare_(uses_spare) {
    spare_ = constant_parameter("spare", {2}, 0.25, in_f64);
    add_module("scale", scale_);
    add_module("linear", linear_);
    add_module("dropout", dropout_);
  }
  std::vector<Tensor> forward(const Tensor& x, const Tensor& y) {
    const Tensor z = linear_.forward(scale_.forward(x) * y);
    return {dropout_.forward(uses_spare_ ? tanh(z + spare_) : tanh(z)), y};
  }

 private:
  Generator generator_{5};
  Scale scale_;
  Linear linear_;
  Dropout dropout_;
  Tensor spare_;
  bool uses_spare_;
};

TEST(ModuleGradcheck, ChecksInputsAndAllParametersWithDropoutOn) {
  Net net;
  const Tensor x = input({4, 3}), y = input({4, 3}, 4);
  const GradcheckReport report = gradcheck(net, x, y);
  EXPECT_TRUE(report);
  EXPECT_THAT(report.text, StartsWith("gradcheck passed: 37 elements of 6 inputs, "));
  EXPECT_GRADCHECK(net, x, y.detach());
  EXPECT_GRADGRADCHECK(net, x, y);
  for (const Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(ModuleGradcheck, NamesTheParameterWithTheWrongGradient) {
  Net net(/*careless=*/true);
  const GradcheckReport report = gradcheck(net, input({4, 3}), input({4, 3}, 4));
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, HasSubstr(" of parameter scale.weight (3,) f64 on cpu\n"));
  EXPECT_THAT(report.text,
              HasSubstr("wrong elements  0 of 12 of input 0, 0 of 12 of input 1, 0 of 2 of parameter spare, 3 of 3 of "
                        "parameter scale.weight, 0 of 6 of parameter linear.weight, 0 of 2 of parameter linear.bias"));
}

TEST(ModuleGradcheck, NamesAnUnusedParameter) {
  Net net(/*careless=*/false, /*uses_spare=*/false);
  const Tensor x = input({2, 3}), y = input({2, 3}, 4);
  EXPECT_THAT(gradcheck(net, x, y).text, StartsWith("gradcheck failed: no output depends on parameter spare (2,) f64"));
  const TensorFunction function = [&](const std::vector<Tensor>& inputs) { return net.forward(inputs[0], inputs[1]); };
  EXPECT_TRUE(gradcheck(net, function, {x, y}, {.allow_unused = true, .names = {"x", "y"}}));
}

TEST(ModuleGradcheck, RequiresF64Parameters) {
  Linear linear(3, 2);
  EXPECT_EQ(
      testing_support::error_of<DTypeError>([&] {
        gradcheck(linear, input({2, 3}).detach());
      }),
      "[gradcheck] differences are unreliable below f64; pass f64 or allow_low_precision: parameter weight (2, 3) "
      "f32 on cpu");
}

TEST(ModuleGradcheck, TakesIndicesAndLayersOfLayers) {
  Embedding embedding(5, 3, 1.0, in_f64);
  EXPECT_GRADCHECK(embedding, from_data<std::int64_t>({4, 0, 4}, {3}));
  FeedForward swiglu(3, 4, {.kind = FeedForwardKind::swiglu}, in_f64);
  EXPECT_GRADCHECK(swiglu, input({2, 3}));
}

TEST(ModuleGradcheck, TakesMixersPointersTemporariesAndOptions) {
  struct Shift : SequenceMixer {
    Tensor scale = constant_parameter("scale", {3}, 0.5, in_f64);
    Tensor forward(const Tensor& x, SequenceState*) override { return tanh(x * scale) + roll(x, 1, 1); }
  } shift;
  SequenceMixer& mixer = shift;
  const Tensor x = input({1, 2, 3});
  EXPECT_THAT(gradcheck(mixer, x).text, StartsWith("gradcheck passed: 9 elements of 2 inputs"));
  EXPECT_TRUE(gradgradcheck(mixer, x));
  EXPECT_TRUE(gradcheck(mixer, x, {.epsilon = 1e-5}));
  const auto owned = std::make_unique<Linear>(3, 2, LinearOptions{}, in_f64);
  EXPECT_THAT(gradcheck(owned, x).text, StartsWith("gradcheck passed: 14 elements of 3 inputs"));
  EXPECT_TRUE(gradcheck(*owned, x));
  EXPECT_TRUE(gradcheck(Linear(3, 2), to(x, DType::f32).detach(), {.allow_low_precision = true}));
}

}  // namespace
}  // namespace poolgrad::nn
