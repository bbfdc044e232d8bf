// gradcheck passes right gradients, and locates and describes wrong ones.
#include "autograd/gradcheck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <stdexcept>

#include "autograd/operators.h"
#include "tensor/print.h"
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

/// |x| with the right derivative at 0.
Tensor absolute(const Tensor& x) {
  Tensor out = Tensor::empty_like(x);
  kernels::unary({}, kernels::UnaryOp::abs, out.view(), x.view());
  if (wants_gradient({x}))
    record("absolute", {x}, {out}, [x](const BackwardCall& call) -> Gradients {
      Tensor dx = call.gradient().copy();
      for (std::int64_t i = 0; i < x.numel(); ++i)
        if (x.data<double>()[i] < 0) dx.data<double>()[i] *= -1;
      return {dx};
    });
  return out;
}

/// Casts x to f64.
Tensor to_f64(const Tensor& x) {
  Tensor out = Tensor::empty(x.shape(), {.dtype = DType::f64}).copy_from(x.detach());
  if (wants_gradient({x}))
    record("to_f64", {x}, {out}, [options = x.options()](const BackwardCall& call) -> Gradients {
      return {Tensor::empty(call.gradient().shape(), options).copy_from(call.gradient())};
    });
  return out;
}

TEST(Gradcheck, AcceptsACorrectGradient) {
  const GradcheckReport report =
      gradcheck([](const Tensors& inputs) { return Tensors{times(exponential(inputs[0]), inputs[1])}; },
                {random({3, 4}, 1), random({3, 4}, 2)});
  EXPECT_TRUE(report);
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

TEST(Gradcheck, NamesTheInputWithTheWrongGradient) {
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

TEST(Gradcheck, ReportsANearbyKink) {
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{absolute(inputs[0])}; };
  EXPECT_TRUE(gradcheck(function, {leaf({1, -2})}));
  const GradcheckReport report = gradcheck(function, {leaf({1, 0})});
  EXPECT_FALSE(report);
  EXPECT_EQ(report.index, (Shape{1}));
  EXPECT_THAT(report.text, HasSubstr("they disagree, a kink or jump is near"));
}

TEST(Gradcheck, RejectsInvalidStepsAndTolerances) {
  const Tensor x = full({2}, 0.5, {.dtype = DType::f64}).set_requires_grad();
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{scaled(inputs[0], 2)}; };
  const auto refusal = [&](const GradcheckOptions& options) {
    return message_of<ValueError>([&] { gradcheck(function, {x}, options); });
  };
  EXPECT_EQ(refusal({.epsilon = 0}), "[gradcheck] epsilon must be positive, but is 0");
  EXPECT_EQ(refusal({.relative = -1}), "[gradcheck] a tolerance must not be negative, but is -1");
  EXPECT_EQ(refusal({.absolute = NAN}), "[gradcheck] a tolerance must not be negative, but is nan");
}

/// Checks f(x[0], ...) with the gradient of x[0] times `factor`.
GradcheckReport check_times(double factor, const TensorFunction& function, const Tensors& points,
                            const GradcheckOptions& options = {}) {
  return gradcheck(
      [&](const Tensors& inputs) {
        Tensors all = inputs;
        all[0] = with_backward(
            inputs[0], [factor](const BackwardCall& call) -> Gradients { return {scaled(call.gradient(), factor)}; });
        return function(all);
      },
      points, options);
}

TEST(Gradcheck, FindsAStepBetweenRoundingAndCurvature) {
  const Tensor rows = random({5000, 64}, 31).detach(), targets = (random({5000, 4}, 32) * 10.0).detach();
  struct Hard {
    const char* name;
    Tensors points;
    TensorFunction run;
  };
  const std::vector<Hard> all = {
      {"small beside large",
       {leaf({0.5, 0.25}), leaf({3e4, 3e4})},
       [](const Tensors& x) { return Tensors{x[0] + square(x[1])}; }},
      {"far from zero", {leaf({1e4, 3e4})}, [](const Tensors& x) { return Tensors{sin(x[0])}; }},
      {"bent within the step", {leaf({3e4, 3e4, 3e4})}, [](const Tensors& x) { return Tensors{layer_norm(x[0])}; }},
      {"offset", {leaf({0.3, -0.7})}, [](const Tensors& x) { return Tensors{sum(sin(x[0])) * 0.01 + 1e6}; }},
      {"many rows", {random({64, 4}, 33)}, [&](const Tensors& x) {
         return Tensors{sum(square(matmul(rows, x[0]) - targets))};
       }}};
  for (const Hard& hard : all) {
    EXPECT_TRUE(check_times(1.0, hard.run, hard.points)) << hard.name;
    for (const double factor : {0.0, 0.99, 1.01, -1.0})
      EXPECT_FALSE(check_times(factor, hard.run, hard.points)) << hard.name << " times " << factor;
  }
}

TEST(Gradcheck, DoesNotMistakeAStaircaseForASlope) {
  const TensorFunction stairs = [](const Tensors& x) {
    Tensor out = from_data<double>({std::floor(x[0].item() * 1000.0) / 1000.0}, {1});
    if (wants_gradient(x))
      record("stairs", x, {out}, [](const BackwardCall& call) -> Gradients { return {call.gradient()}; });
    return Tensors{out};
  };
  EXPECT_FALSE(gradcheck(stairs, {leaf({0.3005})}));
}

TEST(Gradcheck, RejectsLowPrecisionUnlessAllowed) {
  Tensor x = full({2}, 0.5).set_requires_grad();
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{scaled(inputs[0], 2)}; };
  EXPECT_EQ(
      message_of<DTypeError>([&] { gradcheck(function, {x}); }),
      "[gradcheck] differences are unreliable below f64; pass f64 or allow_low_precision: input 0 (2,) f32 on cpu");
  EXPECT_TRUE(
      gradcheck(function, {x}, {.epsilon = 1e-2, .relative = 1e-2, .absolute = 1e-3, .allow_low_precision = true}));
  const Tensor exact = leaf({0.5, 0.5});
  const TensorFunction narrowed = [](const Tensors& inputs) { return Tensors{tanh(to(inputs[0], DType::f32))}; };
  EXPECT_EQ(message_of<DTypeError>([&] { gradcheck(narrowed, {exact}); }),
            "[gradcheck] differences are unreliable below f64; pass f64 or allow_low_precision: floating output 0 (2,) "
            "f32 on cpu");
  EXPECT_TRUE(check_times(1.0, narrowed, {exact}, {.allow_low_precision = true}));
  for (const double factor : {0.9, 1.1, 1.5})
    EXPECT_FALSE(check_times(factor, narrowed, {exact}, {.allow_low_precision = true})) << factor;
  EXPECT_EQ(message_of<ValueError>([&] { gradcheck(function, {x.detach()}); }),
            "[gradcheck] no input requires a gradient; call set_requires_grad() on the inputs to check");
}

/// Maps x with a weight of its own, as modules do; the weight's gradient is `factor` times the right one.
struct Layer {
  Tensor weight = random({3}, 21);
  double factor = 1.0;

  Tensor operator()(const Tensor& x) const {
    Tensor out = run_binary(kernels::BinaryOp::mul, x, weight);
    if (wants_gradient({x, weight}))
      record("layer", {x, weight}, {out},
             [x = SavedTensor(x), w = SavedTensor(weight), factor = factor](const BackwardCall& call) -> Gradients {
               const Tensor &g = call.gradient(), point = x.unpack();
               return {times(g, w.unpack()), times(scaled(g, factor), point)};
             });
    return out;
  }
};

TEST(Gradcheck, PerturbsCapturedParametersInPlace) {
  Layer layer;
  const Tensor x = random({3}, 22);
  const TensorFunction function = [&](const Tensors& inputs) { return Tensors{layer(inputs[0])}; };
  const Tensor before = layer.weight.detach().copy();
  for (const bool twice : {false, true}) {
    const auto check = [&] {
      return twice ? gradgradcheck(function, {x, layer.weight}) : gradcheck(function, {x, layer.weight});
    };
    layer.factor = 1.0;
    const GradcheckReport right = check();
    EXPECT_TRUE(right);
    layer.factor = 100.0;
    const GradcheckReport wrong = check();
    EXPECT_EQ(wrong.passed, twice) << "a wrong gradient may well have the derivatives that differences of it give";
    EXPECT_TRUE(bit_equal(layer.weight, before));
    EXPECT_FALSE(layer.weight.grad().defined());
  }
}

TEST(Gradcheck, PerturbsInterleavedParameters) {
  const Tensor both = random({3, 4}, 26);
  const Tensor left = slice(both, 1, 0, 2).detach().set_requires_grad();
  const Tensor right = slice(both, 1, 2, 4).detach().set_requires_grad();
  const TensorFunction function = [&](const Tensors&) { return Tensors{left * exp(right)}; };
  const GradcheckReport report = gradcheck(function, {left, right});
  EXPECT_TRUE(report) << report.text;
}

TEST(Gradcheck, RejectsAFunctionWithoutOutputElements) {
  const Tensor x = random({3}, 27);
  const GradcheckReport report = gradcheck([](const Tensors& in) { return Tensors{slice(in[0], 0, 0, 0)}; }, {x});
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, HasSubstr("no output depends on input 0 (3,) f64 on cpu: there is nothing to compare"));
  EXPECT_TRUE(gradcheck([](const Tensors& in) { return Tensors{in[0] * 2.0}; }, {random({0}, 28)}));
}

TEST(Gradcheck, AcceptsAnEmptyInput) {
  const Tensors operands{random({0, 3}, 27), random({3, 2}, 28)};
  const TensorFunction product = [](const Tensors& in) { return Tensors{matmul(in[0], in[1])}; };
  EXPECT_TRUE(gradcheck(product, operands));
  EXPECT_TRUE(gradgradcheck(product, operands));
}

TEST(Gradcheck, RejectsAnInputWithOnlyEmptyOutputs) {
  const Tensor x = random({3}, 29), y = random({2}, 30);
  const TensorFunction function = [](const Tensors& in) { return Tensors{slice(in[0], 0, 0, 0), exp(in[1])}; };
  using Check = GradcheckReport (*)(const TensorFunction&, const Tensors&, GradcheckOptions);
  for (const Check check : {Check(gradcheck), Check(gradgradcheck)}) {
    const GradcheckReport report = check(function, {x, y}, {});
    EXPECT_FALSE(report);
    EXPECT_THAT(report.text, HasSubstr("no output depends on input 0 (3,) f64 on cpu: there is nothing to compare"));
    EXPECT_TRUE(check(function, {x, y}, {.allow_unused = true}));
  }
}

TEST(Gradcheck, RestoresAnElementWhenTheFunctionThrows) {
  const Tensor x = random({3}, 23), before = x.detach().copy();
  int calls = 0;
  const TensorFunction function = [&](const Tensors& inputs) -> Tensors {
    if (++calls == 4) throw std::runtime_error("on purpose");
    return {scaled(inputs[0], 2)};
  };
  EXPECT_THROW(gradcheck(function, {x}), std::runtime_error);
  EXPECT_TRUE(bit_equal(x, before));
}

TEST(Gradcheck, AcceptsRepeatedAndOverlappingInputs) {
  const TensorFunction product = [](const Tensors& inputs) { return Tensors{times(inputs[0], inputs[1])}; };
  const Tensor x = random({4}, 24), line = random({5}, 25).detach();
  Tensor front = line.alias({{4}, {1}, 0}), back = line.alias({{4}, {1}, 1});
  const Tensor made = scaled(x, 3);  // not a leaf
  for (const Tensors& inputs : {Tensors{x, x}, Tensors{x, x.detach()}, Tensors{made, made}, Tensors{x, made},
                                Tensors{front.set_requires_grad(), back.set_requires_grad()}}) {
    const GradcheckReport first = gradcheck(product, inputs), second = gradgradcheck(product, inputs);
    EXPECT_TRUE(first);
    EXPECT_TRUE(second);
  }
}

TEST(Gradcheck, RejectsAnEmptyComparison) {
  const Tensor x = random({3}, 26), y = random({2}, 27);
  const Tensor on_sim = zeros({3}, {.dtype = DType::f64, .device = {DeviceType::sim, 0}}).set_requires_grad();
  const TensorFunction first_only = [](const Tensors& inputs) { return Tensors{scaled(inputs[0], 2)}; };
  const TensorFunction nothing = [](const Tensors&) { return Tensors{}; };
  const TensorFunction integers = [](const Tensors&) { return Tensors{from_data<std::int64_t>({1}, {1})}; };
  using Check = GradcheckReport (*)(const TensorFunction&, const Tensors&, GradcheckOptions);
  for (const Check check : {Check(gradcheck), Check(gradgradcheck)}) {
    EXPECT_THAT(check(nothing, {x}, {}).text, HasSubstr("failed: the function returned no floating tensor"));
    EXPECT_THAT(check(integers, {x}, {}).text, HasSubstr("failed: the function returned no floating tensor"));
    EXPECT_THAT(check(first_only, {on_sim}, {}).text, HasSubstr("failed: sim:0 computes no numbers"));
    const GradcheckReport unused = check(first_only, {x, y}, {});
    EXPECT_FALSE(unused);
    EXPECT_THAT(unused.text, HasSubstr("failed: no output depends on input 1 (2,) f64 on cpu"));
    EXPECT_TRUE(check(first_only, {x, y}, {.allow_unused = true}));
  }
}

/// tanh(a) b with a backward of `factor` times the right one.
Tensors scaled_backward(const Tensors& inputs, double factor) {
  const Tensor &a = inputs[0], &b = inputs[1];
  Tensor t = Tensor::empty_like(a);
  kernels::unary({}, kernels::UnaryOp::tanh, t.view(), a.view());
  Tensor out = run_binary(kernels::BinaryOp::mul, t, b);
  if (wants_gradient({a, b}))
    record("factor", {a, b}, {out}, [factor, t, b = SavedTensor(b)](const BackwardCall& call) -> Gradients {
      const Tensor g = scaled(call.gradient(), factor), flat = scaled(times(t, t), -1);
      return {times(times(g, b.unpack()), plus(flat, full(t.shape(), 1.0, t.options()))), times(g, t)};
    });
  return {out};
}

TEST(Gradcheck, LowPrecisionUsesAStepOfTheType) {
  Generator generator(28);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int round = 0; round < 5; ++round) {
      const Tensor a = rand({3, 4}, -1.5, 1.5, {.dtype = dtype}, generator).set_requires_grad();
      const Tensor b = rand({3, 4}, 1, 30, {.dtype = dtype}, generator).set_requires_grad();
      const auto check = [&](double factor) {
        return gradcheck([=](const Tensors& inputs) { return scaled_backward(inputs, factor); }, {a, b},
                         {.allow_low_precision = true});
      };
      const GradcheckReport right = check(1.0);
      EXPECT_TRUE(right);
      for (const double factor : {0.0, 0.5, 2.0, -1.0}) {
        const GradcheckReport wrong = check(factor);
        EXPECT_FALSE(wrong) << factor << " " << wrong.text;
        EXPECT_THAT(wrong.text, HasSubstr("no kink is near"));
      }
    }
}

Tensor scaled_mean(const Tensor& x, double factor) {
  Tensor out = Tensor::empty({1}, x.options());
  kernels::reduce({}, kernels::ReduceOp::mean, out.view(), x.view());
  if (wants_gradient({x}))
    record("scaled_mean", {x}, {out}, [factor, like = x.detach()](const BackwardCall& call) -> Gradients {
      const double each = factor * call.gradient().item() / static_cast<double>(like.numel());
      return {full(like.shape(), each, like.options())};
    });
  return out;
}

TEST(Gradcheck, LowPrecisionTellsASmallGradientFromZero) {
  Generator generator(29);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = rand({100}, -1, 1, {.dtype = dtype}, generator).set_requires_grad();
    const auto check = [&](double factor) {
      return gradcheck([=](const Tensors& inputs) { return Tensors{scaled_mean(inputs[0], factor)}; }, {x},
                       {.allow_low_precision = true});
    };
    EXPECT_TRUE(check(1.0)) << to_string(dtype);
    for (const double factor : {0.0, 2.0, -1.0}) EXPECT_FALSE(check(factor)) << to_string(dtype) << " " << factor;
  }
}

TEST(Gradcheck, LowPrecisionTellsRightFromWrongUnderRounding) {
  struct Operator {
    const char* name;
    std::size_t inputs;
    double wide;  // distance from zero: wide differences need functions of small curvature
    TensorFunction run;
  };
  const std::vector<Operator> operators = {
      {"tanh", 1, 2, [](const Tensors& x) { return Tensors{tanh(x[0])}; }},
      {"exp", 1, 1.5, [](const Tensors& x) { return Tensors{exp(x[0])}; }},
      {"square", 1, 4, [](const Tensors& x) { return Tensors{square(x[0])}; }},
      {"sigmoid", 1, 4, [](const Tensors& x) { return Tensors{sigmoid(x[0])}; }},
      {"gelu", 1, 2, [](const Tensors& x) { return Tensors{gelu(x[0])}; }},
      {"quotient", 1, 2, [](const Tensors& x) { return Tensors{x[0] / (square(x[0]) + 1.0)}; }},
      {"logarithm", 1, 2, [](const Tensors& x) { return Tensors{log(square(x[0]) + 3.0)}; }},
      {"product", 2, 4, [](const Tensors& x) { return Tensors{x[0] * x[1]}; }},
      {"sum", 1, 2, [](const Tensors& x) { return Tensors{sum(x[0])}; }},
      {"mean", 1, 2, [](const Tensors& x) { return Tensors{mean(x[0])}; }},
      {"norm", 1, 4, [](const Tensors& x) { return Tensors{norm(x[0])}; }},
      {"matmul", 1, 2, [](const Tensors& x) { return Tensors{matmul(x[0], transpose(x[0], 0, 1))}; }},
      {"linear", 2, 4, [](const Tensors& x) { return Tensors{linear(x[0], x[1])}; }},
      {"softmax", 1, 2, [](const Tensors& x) { return Tensors{softmax(x[0])}; }},
      {"log_softmax", 1, 4, [](const Tensors& x) { return Tensors{log_softmax(x[0], -1)}; }},
      {"layer_norm", 2, 4, [](const Tensors& x) { return Tensors{layer_norm(x[0], x[1][0])}; }}};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (std::uint64_t seed = 1; seed <= 5; ++seed)
      for (const Operator& op : operators) {
        Generator generator(seed);
        Tensors points{rand({4, 5}, -op.wide, op.wide, {.dtype = dtype}, generator).set_requires_grad(),
                       randn({4, 5}, {.dtype = dtype}, generator).set_requires_grad()};
        points.resize(op.inputs);
        const auto check = [&](double factor) {
          const TensorFunction function = [&](const Tensors& inputs) {
            Tensors all = inputs;
            all[0] = with_backward(inputs[0], [factor](const BackwardCall& call) -> Gradients {
              return {scaled(call.gradient(), factor)};
            });
            return op.run(all);
          };
          return gradcheck(function, points, {.allow_low_precision = true, .seed = seed});
        };
        SCOPED_TRACE(std::string(op.name) + " in " + std::string(to_string(dtype)) + ", seed " + std::to_string(seed));
        const GradcheckReport right = check(1.0);
        EXPECT_TRUE(right);
        for (const double factor : {0.0, 0.5, 2.0}) EXPECT_FALSE(check(factor)) << "times " << factor;
      }
}

// The functions round intermediate results far more coarsely than their outputs show, and are nonlinear.
TEST(Gradcheck, LowPrecisionTellsRightFromWrongUnderManyRoundings) {
  struct Composite {
    const char* name;
    std::vector<Shape> inputs;
    TensorFunction run;
  };
  const auto perceptron = [](const Tensor& x, const Tensor& in, const Tensor& out) {
    return matmul(gelu(matmul(x, in)), out);
  };
  const std::vector<Composite> composites = {
      {"perceptron", {{3, 8}, {8, 6}, {6, 4}}, [=](const Tensors& x) { return Tensors{perceptron(x[0], x[1], x[2])}; }},
      {"normed perceptron",
       {{3, 8}, {8}, {8, 6}, {6, 4}},
       [=](const Tensors& x) { return Tensors{perceptron(layer_norm(x[0], x[1]), x[2], x[3])}; }},
      {"attention",
       {{3, 8}, {3, 8}},
       [](const Tensors& x) { return Tensors{matmul(softmax(matmul(x[0], transpose(x[1], 0, 1)), -1), x[1])}; }},
      {"deviation", {{3, 8}}, [](const Tensors& x) { return Tensors{sqrt(mean(square(x[0] - mean(x[0]))))}; }},
      {"bent product", {{3, 8}, {3, 8}}, [](const Tensors& x) { return Tensors{tanh(x[0] * x[1]) + x[0]}; }}};
  for (const Composite& composite : composites)
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE(std::string(composite.name) + ", seed " + std::to_string(seed));
      Generator generator(seed);
      Tensors points;
      for (const Shape& shape : composite.inputs)
        points.push_back(randn(shape, {.dtype = DType::f32}, generator).set_requires_grad());
      const auto check = [&](double factor) {
        const TensorFunction function = [&](const Tensors& inputs) {
          Tensors all = inputs;
          all[0] = with_backward(
              inputs[0], [factor](const BackwardCall& call) -> Gradients { return {scaled(call.gradient(), factor)}; });
          return composite.run(all);
        };
        return gradcheck(function, points, {.allow_low_precision = true, .seed = seed});
      };
      const GradcheckReport right = check(1.0);
      EXPECT_TRUE(right);
      for (const double factor : {0.0, 0.99, 1.01}) EXPECT_FALSE(check(factor)) << "times " << factor;
    }
}

TEST(Gradcheck, LowPrecisionReportsAnUnresolvableGradient) {
  // One of 3000 elements moves the mean of bf16 numbers near 1 by less than their spacing.
  const Tensor x = full({3000}, 1.0, {.dtype = DType::bf16}).set_requires_grad();
  const auto check = [&](double factor, bool allow_unused) {
    return gradcheck([=](const Tensors& inputs) { return Tensors{scaled_mean(inputs[0], factor)}; }, {x},
                     {.allow_low_precision = true, .allow_unused = allow_unused});
  };
  for (const double factor : {0.0, 1.0})
    EXPECT_THAT(check(factor, false).text,
                HasSubstr("input 0 (3000,) bf16 on cpu is too coarse to tell its gradient from zero"));
  EXPECT_TRUE(check(0.0, true)) << "a step function's is zero, and the user says that it is meant";
  EXPECT_FALSE(check(1.0, true));
}

TEST(Gradcheck, DividesByTheRoundedStep) {
  // Near 1000, bf16 numbers are 4 apart: a step of 5 becomes 4.
  const Tensor x = full({2}, 1000, {.dtype = DType::bf16}).set_requires_grad();
  const GradcheckReport report = gradcheck([](const Tensors& inputs) { return Tensors{to_f64(inputs[0])}; }, {x},
                                           {.epsilon = 0.005, .relative = 1e-12, .allow_low_precision = true});
  EXPECT_TRUE(report);
}

TEST(Gradcheck, AcceptsStridedExpandedAndEmptyInputs) {
  const TensorFunction function = [](const Tensors& inputs) { return Tensors{times(inputs[0], inputs[0])}; };
  const Tensor base = random({4, 6}, 3).detach();
  const Tensor strided = base.alias(transposed(sliced(base.geometry(), 1, 1, 6, 2), 0, 1));
  ASSERT_FALSE(strided.is_contiguous());
  const Tensor row = random({1, 4}, 4).detach();
  for (Tensor x : {strided.detach(), row.alias(expanded(row.geometry(), {3, 4})), zeros({0, 3}, base.options()),
                   scalar(1.5, base.options())}) {
    const std::vector<double> before = values(x);
    const GradcheckReport report = gradcheck(function, {x.set_requires_grad()});
    EXPECT_TRUE(report);
    EXPECT_EQ(values(x), before);
    EXPECT_FALSE(x.grad().defined());
  }
}

TEST(Gradcheck, SkipsInputsAndOutputsWithoutGradients) {
  const Tensor mask = from_data<std::int64_t>({1, 0}, {2});
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        return Tensors{inputs[0].copy(), scaled(inputs[1], 2), exponential(inputs[1])};
      },
      {mask, leaf({1, 2})});
  EXPECT_TRUE(report);
}

TEST(Gradcheck, DetectsAChangedNumberOfOutputs) {
  std::size_t outputs = 0;
  EXPECT_THAT(
      gradcheck([&](const Tensors& inputs) { return Tensors(++outputs, scaled(inputs[0], 2)); }, {leaf({2})}).text,
      HasSubstr("returned 1 floating tensors, and 2 in a second run"));
}

TEST(Gradcheck, DetectsNondeterminism) {
  double factor = 1.0;
  EXPECT_THAT(
      gradcheck([&](const Tensors& inputs) { return Tensors{scaled(inputs[0], factor += 1)}; }, {leaf({1})}).text,
      HasSubstr("two runs of the function give different bits"));
  const GradcheckReport report = gradcheck(
      [&](const Tensors& inputs) {
        return Tensors{with_backward(inputs[0], [&](const BackwardCall& call) -> Gradients {
          return {scaled(call.gradient(), factor += 1e-15)};
        })};
      },
      {leaf({1})});
  EXPECT_THAT(report.text, HasSubstr("give different bits"));
}

TEST(Gradcheck, DetectsABackwardThatIgnoresStrides) {
  const GradcheckReport report = gradcheck(
      [](const Tensors& inputs) {
        return Tensors{with_backward(inputs[0], [](const BackwardCall& call) -> Gradients {
          Tensor dx = Tensor::empty_like(call.gradient());
          std::copy_n(call.gradient().data<double>(), dx.numel(), dx.data<double>());  // ignores the strides
          return {dx};
        })};
      },
      {leaf({1, 2, 3, 4})});
  EXPECT_FALSE(report);
  EXPECT_THAT(report.text, HasSubstr("strided output gradient"));
}

TEST(Gradgradcheck, AcceptsDifferentiableOperators) {
  const GradcheckReport report = gradgradcheck(
      [](const Tensors& inputs) {
        return Tensors{times(exponential(inputs[0]), inputs[1]), total(inputs[0])};
      },
      {random({2, 3}, 5), random({2, 3}, 6)});
  EXPECT_TRUE(report);
}

TEST(Gradgradcheck, AcceptsALinearFunction) {
  const GradcheckReport report =
      gradgradcheck([](const Tensors& inputs) { return Tensors{scaled(inputs[0], 3)}; }, {random({4}, 7)});
  EXPECT_TRUE(report);
}

TEST(Gradgradcheck, DetectsABackwardWithADetachedGraph) {
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

TEST(Gradgradcheck, DetectsADifferentGradientUnderCreateGraph) {
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
