// gradcheck adapts to the scale of a function. Its report describes a wrong gradient and names the operator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/engine/function.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using local::leaf;
using local::with_backward;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Tensors = std::vector<Tensor>;

/// Returns x, with `factor` times its gradient.
Tensor times_gradient(const Tensor& x, double factor, const std::string& name = "odd") {
  return with_backward(
      x, [factor](const BackwardCall& call) -> Gradients { return {call.gradient() * factor}; }, name);
}

TEST(GradcheckScale, RejectsAMissingGradientOfAnySize) {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const double size : {1.0, 1e-3, 1e-8, 1e-12, 1e-30}) {
      const Tensor x = to(from_data<double>({0.5, -0.3, 2.0}, {3}), dtype).detach().set_requires_grad();
      const auto check = [&](double factor) {
        return gradcheck([&](const Tensor& in) { return tanh(times_gradient(in, factor)) * size; }, x,
                         {.allow_low_precision = true});
      };
      EXPECT_TRUE(check(1.0)) << size;
      for (const double factor : {0.0, 0.5, 0.9, -1.0}) EXPECT_FALSE(check(factor)) << size << " times " << factor;
    }
}

TEST(GradcheckScale, RejectsASmallMissingGradientBesideALargeValue) {
  for (const double slope : {1e-6, 1e-9, 1e-12}) {
    const auto check = [&](double factor) {
      return gradcheck([&](const Tensor& in) { return times_gradient(in, factor) * slope + 1.0; }, leaf({0.5, -0.3}));
    };
    EXPECT_TRUE(check(1.0)) << slope;
    EXPECT_FALSE(check(0.0)) << slope;
  }
}

TEST(GradcheckScale, NarrowsTheStepForASteepFunction) {
  for (const double steep : {1e3, 1e6, 1e8, 1e10}) {
    const auto check = [&](double factor) {
      return gradcheck([&](const Tensor& in) { return exp(times_gradient(in, factor) * steep); },
                       leaf({1.0 / steep, -0.5 / steep}));
    };
    EXPECT_TRUE(check(1.0)) << steep;
    for (const double factor : {0.0, 0.99, -1.0}) {
      const GradcheckReport wrong = check(factor);
      EXPECT_FALSE(wrong) << steep << " times " << factor;
      EXPECT_THAT(wrong.text, HasSubstr("no kink is near")) << steep;
    }
  }
}

TEST(GradcheckScale, StaysOnOneSideOfAKink) {
  EXPECT_TRUE(gradcheck([](const Tensor& in) { return abs(in) + relu(in); }, leaf({1e-7, -1e-8, 1e-10})));
  EXPECT_FALSE(gradcheck([](const Tensor& in) { return times_gradient(abs(in), 0.0); }, leaf({1e-7, -1e-8})));
}

TEST(GradcheckScale, AcceptsRoundingAsAZeroGradient) {
  const Tensor rows = from_data<double>({1.0, -2.0, 0.5, 3.0, 0.1, -0.7}, {2, 3});
  EXPECT_TRUE(gradcheck([&](const Tensor& shift) { return softmax(rows + shift); }, leaf({0.3})));
  EXPECT_TRUE(gradcheck([&](const Tensor& shift) { return layer_norm(rows * 7.0 + shift); }, leaf({0.3})));
}

TEST(GradcheckReport, ReportsAThrowingBackwardAsAWrongGradient) {
  struct Misshapen : Function {
    Tensor forward(FunctionContext&, const Tensors& in) override { return in[0] * 2.0; }
    Gradients backward(FunctionContext&, const Tensor& gradient) override { return {sum(gradient) * 2.0}; }
  };
  struct Excessive : Misshapen {
    Gradients backward(FunctionContext&, const Tensor& gradient) override { return {gradient, gradient}; }
  };
  struct Coarse : Misshapen {
    Gradients backward(FunctionContext&, const Tensor& gradient) override { return {to(gradient, DType::f32)}; }
  };
  const Tensor x = leaf({1, 2, 3});
  const auto misshapen = [](const Tensor& in) { return apply<Misshapen>("misshapen", {in}); };
  const std::string sentence =
      "[misshapen] backward returned a gradient unlike input 0: gradient () f64 on cpu, input (3,) f64 on cpu";
  EXPECT_EQ(gradcheck(misshapen, x).text, "gradcheck failed: " + sentence);
  EXPECT_EQ(gradgradcheck(misshapen, x).text, "gradgradcheck failed: " + sentence);
  EXPECT_EQ(gradcheck([](const Tensor& in) { return apply<Excessive>("excessive", {in}); }, x).text,
            "gradcheck failed: [excessive] backward returned 2 gradients for 1 input");
  EXPECT_THAT(gradcheck([](const Tensor& in) { return apply<Coarse>("coarse", {in}); }, x).text,
              HasSubstr("gradient (3,) f32 on cpu, input (3,) f64 on cpu"));
}

TEST(GradcheckReport, NamesTheOperatorWithTheWrongBackward) {
  const Tensor x = leaf({0.5, -0.3, 2.0}), y = leaf({1.5, 0.7, -0.2});
  const auto report = [&](double first, double second) {
    return gradcheck(
               [&](const Tensor& a, const Tensor& b) {
                 const Tensor h = times_gradient(exp(a) * b, first, "first");
                 return sum(times_gradient(sin(h) + a, second, "second"));
               },
               x, y)
        .text;
  };
  EXPECT_THAT(report(0.5, 1.0), HasSubstr("\n  operator        the backward of first disagrees with differences of it "
                                          "alone (7 operators on the path)"));
  EXPECT_THAT(report(1.0, -1.0), HasSubstr("the backward of second disagrees"));
  EXPECT_THAT(report(2.0, 0.0), HasSubstr("the backward of first, second disagrees with differences of each alone"));
}

TEST(GradcheckReport, NamesTheInputWhereTheGradientStops) {
  EXPECT_THAT(gradcheck([](const Tensor& in) { return exp(in) * tanh(in.detach()); }, leaf({0.5, -0.3})).text,
              HasSubstr("the gradient stops at input 1 of mul: the input moves, but requires no gradient"));
  const auto beside = [](const Tensor& in) { return Tensors{exp(in), from_data(in.to_vector<double>(), in.shape())}; };
  EXPECT_THAT(gradcheck(beside, leaf({0.5, -0.3})).text, HasSubstr("the function also computes outside of the tape"));
}

TEST(GradcheckReport, DescribesTheErrorOfTheGradient) {
  const Tensor x = from_data<double>({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad();
  const auto ratio = [&](BackwardFunction backward) {
    return gradcheck([&](const Tensor& in) { return square(with_backward(in, backward)); }, x).text;
  };
  const auto times = [&](double factor) {
    return ratio([factor](const BackwardCall& call) -> Gradients { return {call.gradient() * factor}; });
  };
  EXPECT_THAT(times(0.0), HasSubstr("\n  ratio           0: the gradient is missing\n"));
  EXPECT_THAT(times(-1.0), HasSubstr("\n  ratio           -1: the sign is wrong\n"));
  EXPECT_THAT(times(0.5), HasSubstr("\n  ratio           1/2: a factor of 2 is missing\n"));
  EXPECT_THAT(times(2.0), HasSubstr("\n  ratio           2: a factor of 2 too many\n"));
  EXPECT_THAT(times(0.3), HasSubstr("\n  ratio           0.3 at every wrong element\n"));
  EXPECT_THAT(ratio([](const BackwardCall& call) -> Gradients {
                return {reshape(transpose(call.gradient(), 0, 1), {2, 3})};
              }),
              HasSubstr("\n  ratio           the analytic gradient is the transpose of the numeric one\n"));
  EXPECT_THAT(ratio([](const BackwardCall& call) -> Gradients { return {call.gradient() * call.gradient()}; }),
              HasSubstr("; it differs between wrong elements\n"));
}

TEST(GradcheckReport, ShowsSmallJacobiansSideBySide) {
  const auto text = [](const Tensor& x) {
    return gradcheck([](const Tensor& in) { return cumsum(times_gradient(in, 2.0), 0); }, x).text;
  };
  EXPECT_THAT(text(leaf({1, 2})), HasSubstr("\n  Jacobian        analytic                numeric\n"
                                            "                  2           0           1           0\n"
                                            "                  2           2           1           1"));
  EXPECT_THAT(text(leaf({1, 2, 3, 4, 5, 6})), HasSubstr("Jacobian"));
  EXPECT_THAT(text(leaf({1, 2, 3, 4, 5, 6, 7})), Not(HasSubstr("Jacobian")));
}

TEST(GradcheckOverloads, TakeOptionsAfterTensors) {
  const Tensor x = full({2}, 0.5).set_requires_grad();
  const auto two = [](const Tensor& a, const Tensor& b) { return a * b; };
  const auto three = [](const Tensor& a, const Tensor& b, const Tensor& c) { return a * b + c; };
  EXPECT_TRUE(gradcheck(poolgrad::tanh, x, {.allow_low_precision = true}));
  EXPECT_TRUE(gradcheck(two, x, x, {.allow_low_precision = true}));
  EXPECT_TRUE(gradcheck(three, x, x, x, {.allow_low_precision = true}));
  EXPECT_TRUE(gradgradcheck(poolgrad::tanh, x, {.allow_low_precision = true}));
  EXPECT_TRUE(gradgradcheck(two, x, x, {.allow_low_precision = true}));
  EXPECT_TRUE(gradgradcheck(three, x, x, x, {.allow_low_precision = true}));
  const auto sum = [](const auto&... tensors) { return (tensors + ...); };
  const GradcheckOptions options{.allow_low_precision = true};
  EXPECT_THAT(gradcheck(sum, x, x, x, x, x, options).text, HasSubstr("10 elements of 5 inputs"));
  EXPECT_THAT(gradgradcheck(sum, x, x, x, x, options).text, HasSubstr("of 5 inputs"));
  using Sum = decltype(sum);
  static_assert(Checkable<Sum, Tensor, Tensor, GradcheckOptions> && !Checkable<Sum, GradcheckOptions, Tensor>);
  static_assert(Checkable<decltype(two), Tensor, Tensor> && !Checkable<decltype(two), Tensor>);
  EXPECT_THAT(gradcheck(two, leaf({1, 2}), leaf({3, 4}), {.names = {"left", "right"}}).text, HasSubstr(" of left"));
}

}  // namespace
}  // namespace poolgrad
