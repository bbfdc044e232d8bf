// gradcheck passes what is right, and says where and how what is wrong is wrong.
#include "autograd/gradcheck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using Tensors = std::vector<Tensor>;

Tensor random(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {.dtype = DType::f64}, generator).set_requires_grad();
}

/// |x| with the derivative of the right at 0.
Tensor absolute(const Tensor& x) {
  Tensor out = Tensor::empty_like(x);
  kernels::unary({}, kernels::UnaryOp::abs, out.view(), x.view());
  if (wants_gradient({x}))
    record("absolute", {x}, {out}, [x](const BackwardCall& call) -> Gradients {
      Tensor dx = call.gradient().copy();
      for (std::int64_t i = 0; i < x.count(); ++i)
        if (x.data<double>()[i] < 0) dx.data<double>()[i] *= -1;
      return {dx};
    });
  return out;
}

TEST(Gradcheck, PassesARightGradient) {
  const GradcheckReport report =
      gradcheck([](const Tensors& inputs) { return Tensors{times(exponential(inputs[0]), inputs[1])}; },
                {random({3, 4}, 1), random({3, 4}, 2)});
  EXPECT_TRUE(report) << report.text;
  EXPECT_THAT(report.text, MatchesRegex("gradcheck passed: 24 elements of 2 inputs, largest relative error .*e-.*"));
}

TEST(Gradcheck, ShowsTheWorstElementOfAWrongGradient) {
  Tensor x = from_data<double>({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad();
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        return Tensors{with_backward(scaled(inputs[0], 2), [](const BackwardCall& call) -> Gradients {
          Tensor wrong = call.gradient().copy();
          wrong.data<double>()[4] *= 3;
          return {wrong};
        })};
      },
      {x});
  EXPECT_FALSE(report);
  EXPECT_EQ(report.input, 0);
  EXPECT_EQ(report.index, (Shape{1, 1}));
  EXPECT_NEAR(report.analytic, 3 * report.numeric, 1e-6 * std::abs(report.numeric));
  EXPECT_THAT(report.text, StartsWith("gradcheck failed at element (1, 1) of input 0 (2, 3) f64 on cpu\n"));
  EXPECT_THAT(report.text, HasSubstr("relative error  0.667"));
  EXPECT_THAT(report.text, HasSubstr("they agree, no kink is near"));
  EXPECT_THAT(report.text, HasSubstr("wrong elements  1 of 6 of input 0"));
}

TEST(Gradcheck, NamesTheInputThatIsWrong) {
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        Tensor out = run_binary(kernels::BinaryOp::mul, inputs[0], inputs[1]);
        if (wants_gradient(inputs))
          record("half_right", inputs, {out}, [inputs](const BackwardCall& call) -> Gradients {
            return {times(call.gradient(), inputs[1]), times(call.gradient(), inputs[1])};
          });
        return Tensors{out};
      },
      {random({5}, 1), random({5}, 2)});
  EXPECT_FALSE(report);
  EXPECT_EQ(report.input, 1);
  EXPECT_THAT(report.text, HasSubstr("0 of 5 of input 0, 5 of 5 of input 1"));
}

TEST(Gradcheck, FindsAForgottenGradient) {
  EXPECT_FALSE(
      gradcheck([](const Tensors& inputs) { return Tensors{times(inputs[0], inputs[0].detach())}; }, {random({3}, 1)}));
  EXPECT_FALSE(
      gradcheck([](const Tensors& inputs) { return Tensors{scaled(inputs[0].detach(), 2)}; }, {random({3}, 1)}));
}

TEST(Gradcheck, FindsANaN) {
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        return Tensors{with_backward(
            inputs[0], [](const BackwardCall& call) -> Gradients { return {scaled(call.gradient(), std::nan(""))}; })};
      },
      {random({2}, 1)});
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, HasSubstr("nan"));
}

TEST(Gradcheck, SaysThatAKinkIsNear) {
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{absolute(inputs[0])}; };
  EXPECT_TRUE(gradcheck(function, {leaf({1, -2})}));
  const GradcheckReport report = gradcheck(function, {leaf({1, 0})});
  EXPECT_FALSE(report);
  EXPECT_EQ(report.index, (Shape{1}));
  EXPECT_THAT(report.text, HasSubstr("they disagree, a kink or jump is near"));
}

TEST(Gradcheck, RefusesLowPrecisionUnlessAllowed) {
  Tensor x = full({2}, 0.5).set_requires_grad();
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{scaled(inputs[0], 2)}; };
  EXPECT_EQ(
      message_of<DTypeError>([&] { gradcheck(function, {x}); }),
      "[gradcheck] differences mislead in less than f64; pass f64 or allow_low_precision: input 0 (2,) f32 on cpu");
  EXPECT_TRUE(
      gradcheck(function, {x}, {.epsilon = 1e-2, .relative = 1e-2, .absolute = 1e-3, .allow_low_precision = true}));
  EXPECT_EQ(message_of<ValueError>([&] { gradcheck(function, {x.detach()}); }),
            "[gradcheck] no input requires a gradient");
}

TEST(Gradcheck, TakesStridedExpandedAndEmptyInputs) {
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{times(inputs[0], inputs[0])}; };
  const Tensor base = random({4, 6}, 3).detach();
  const Tensor strided = base.alias(transposed(sliced(base.geometry(), 1, 1, 6, 2), 0, 1));
  ASSERT_FALSE(strided.is_contiguous());
  const Tensor row = random({1, 4}, 4).detach();
  for (Tensor x : {strided.detach(), row.alias(expanded(row.geometry(), {3, 4})), zeros({0, 3}, base.options()),
                   scalar(1.5, base.options())}) {
    const std::vector<double> before = values(x);
    const GradcheckReport report = gradcheck(function, {x.set_requires_grad()});
    EXPECT_TRUE(report) << report.text;
    EXPECT_EQ(values(x), before);
    EXPECT_FALSE(x.grad().defined());
  }
}

TEST(Gradcheck, PassesOverInputsAndOutputsWithoutGradients) {
  const Tensor mask = from_data<std::int64_t>({1, 0}, {2});
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        return Tensors{inputs[0].copy(), scaled(inputs[1], 2), exponential(inputs[1])};
      },
      {mask, leaf({1, 2})});
  EXPECT_TRUE(report) << report.text;
}

TEST(Gradcheck, NoticesWhatIsNotDeterministic) {
  double factor = 1.0;
  EXPECT_THAT(
      gradcheck([&](const Tensors& inputs) { return Tensors{scaled(inputs[0], factor += 1)}; }, {leaf({1})}).text,
      HasSubstr("two runs of the function give other bits"));
  const GradcheckReport report = gradcheck(
      [&](const Tensors& inputs) {
        return Tensors{with_backward(inputs[0], [&](const BackwardCall& call) -> Gradients {
          return {scaled(call.gradient(), factor += 1e-15)};
        })};
      },
      {leaf({1})});
  EXPECT_THAT(report.text, HasSubstr("give other bits"));
}

TEST(Gradcheck, NoticesABackwardThatTakesItsGradientToBeDense) {
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        return Tensors{with_backward(inputs[0], [](const BackwardCall& call) -> Gradients {
          Tensor dx = Tensor::empty_like(call.gradient());
          std::copy_n(call.gradient().data<double>(), dx.count(), dx.data<double>());  // reads past the strides
          return {dx};
        })};
      },
      {leaf({1, 2, 3, 4})});
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, HasSubstr("strided output gradient"));
}

TEST(Gradgradcheck, PassesWhatIsWrittenWithDifferentiableOperators) {
  const GradcheckReport report = gradgradcheck(
      [](const Tensors& inputs) {
        return Tensors{times(exponential(inputs[0]), inputs[1]), total(inputs[0])};
      },
      {random({2, 3}, 5), random({2, 3}, 6)});
  EXPECT_TRUE(report) << report.text;
}

TEST(Gradgradcheck, PassesALinearFunctionWhoseSecondDerivativeIsZero) {
  const GradcheckReport report =
      gradgradcheck([](const Tensors& inputs) { return Tensors{scaled(inputs[0], 3)}; }, {random({4}, 7)});
  EXPECT_TRUE(report) << report.text;
}

TEST(Gradgradcheck, FindsABackwardThatForgetsItsOwnGraph) {
  const GradcheckReport report = gradgradcheck(
      [](const Tensors& inputs) {
        Tensor x = inputs[0];
        Tensor out = run_binary(kernels::BinaryOp::mul, x, x);
        if (wants_gradient({x}))
          record("flat", {x}, {out}, [x = x.detach()](const BackwardCall& call) -> Gradients {
            return {times(scaled(call.gradient(), 2), x)};
          });
        return Tensors{out};
      },
      {random({3}, 8)});
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, StartsWith("gradgradcheck failed at element"));
}

TEST(Gradgradcheck, FindsAFirstDerivativeThatDiffersUnderCreateGraph) {
  const GradcheckReport report = gradgradcheck(
      [](const Tensors& inputs) {
        return Tensors{with_backward(inputs[0], [](const BackwardCall& call) -> Gradients {
          return {scaled(call.gradient(), grad_enabled() ? 1.0 : 2.0)};
        })};
      },
      {random({3}, 9)});
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, HasSubstr("with create_graph"));
}

}  // namespace
}  // namespace poolgrad
