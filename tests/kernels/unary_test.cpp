#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "kernels/functors/elementwise.h"
#include "tests/kernels/elementwise_reference.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<Shape> unary_shapes = {{}, {0}, {1}, {7}, {33}, {1025}, {3, 0, 2}, {31, 33}, {4, 1, 5, 7}, {67, 131}};
constexpr double a = 2.5, b = 3.25;

bool gives_truth(UnaryOp op) { return op == UnaryOp::logical_not || op == UnaryOp::isnan || op == UnaryOp::isfinite; }

class Unary : public ::testing::TestWithParam<UnaryDefinition> {};
INSTANTIATE_TEST_SUITE_P(Every, Unary, ::testing::ValuesIn(unary_definitions()),
                         [](const auto& parameter) { return std::string(to_string(parameter.param.op)); });

TEST_P(Unary, AgreesWithItsDefinition) {
  const UnaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const Shape& shape : unary_shapes) {
      TestArray x(dtype, shape), out(gives_truth(definition.op) ? DType::boolean : dtype, shape);
      x.random(random, definition.low, definition.high);
      unary({}, definition.op, out, x, a, b);
      expect_elements(
          out, [&](std::int64_t i) { return static_cast<double>(definition.value(x[i], a, b)); }, tolerance(dtype),
          tolerance(dtype));
    }
}

TEST_P(Unary, GradientIsTheDerivativeTimesTheGradientOfTheResult) {
  const UnaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const Shape& shape : unary_shapes) {
      TestArray x(dtype, shape), y(dtype, shape), grad(dtype, shape), dx(dtype, shape);
      x.random(random, definition.low, definition.high);
      y.fill([&](std::int64_t i) { return static_cast<double>(definition.value(x[i], a, b)); });
      grad.random(random);
      View x_view = x, y_view = y;
      if (!needs_input(definition.op)) x_view.data = nullptr;
      if (!needs_output(definition.op)) y_view.data = nullptr;
      unary_backward({}, definition.op, dx, grad, x_view, y_view, a, b);
      // A derivative in terms of y includes the rounding of y.
      const double looser = needs_output(definition.op) ? 8 : 2;
      expect_elements(
          dx, [&](std::int64_t i) { return static_cast<double>(Real(grad[i]) * definition.derivative(x[i], a, b)); },
          looser * tolerance(dtype), looser * tolerance(dtype));
    }
}

TEST_P(Unary, AnyLayoutGivesTheSameBits) {
  const UnaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Layout in : input_layouts)
      for (const Layout to : output_layouts) {
        TestArray x(dtype, {11, 5, 41}, in), out(dtype, {11, 5, 41}, to);
        TestArray dense(dtype, {11, 5, 41}), expected(dtype, {11, 5, 41});
        x.random(random, definition.low, definition.high);
        dense.fill([&](std::int64_t i) { return x[i]; });
        unary({}, definition.op, out, x, a, b);
        unary({}, definition.op, expected, dense, a, b);
        expect_elements(
            out, [&](std::int64_t i) { return expected[i]; }, 0);
      }
}

TEST_P(Unary, IntegersAreExactOrRejected) {
  const UnaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    TestArray x(dtype, {1025}), out(gives_truth(definition.op) ? DType::boolean : dtype, {1025});
    x.random(random, dtype == DType::u8 || definition.low > 0 ? 0 : -5, 6);
    if (!definition.on_integers) {
      EXPECT_THROW(unary({}, definition.op, out, x), DTypeError);
      continue;
    }
    unary({}, definition.op, out, x, 3, 4);
    expect_elements(out, [&](std::int64_t i) {
      const auto wanted = static_cast<std::int64_t>(definition.value(x[i], 3, 4));
      return dtype == DType::u8 ? static_cast<double>(static_cast<std::uint8_t>(wanted)) : static_cast<double>(wanted);
    });
  }
}

TEST_P(Unary, MayOverwriteItsInput) {
  const UnaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  for (const Layout layout : output_layouts) {
    TestArray x(DType::f32, {51, 77}, layout), out(DType::f32, {51, 77});
    x.random(random, definition.low, definition.high);
    unary({}, definition.op, out, x, a, b);
    unary({}, definition.op, x, x, a, b);
    expect_elements(
        x, [&](std::int64_t i) { return out[i]; }, 0);
  }
}

TEST_P(Unary, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {5, 12345}), out(DType::f32, {5, 12345});
  x.random(random, GetParam().low, GetParam().high);
  expect_same_bits_for_any_thread_count(out, [&] { unary({}, GetParam().op, out, x, a, b); });
}

/// Compares the scalar functor, which CUDA runs, with the vector functions.
TEST_P(Unary, TheScalarFunctorAgreesWithTheVectors) {
  const UnaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  with_functor(definition.op, [&]<class F>(F) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      TestArray x(dtype, {1025}), y(dtype, {1025}), grad(dtype, {1025}), dx(dtype, {1025});
      x.random(random, definition.low, definition.high);
      grad.random(random);
      unary({}, definition.op, y, x, a, b);
      unary_backward({}, definition.op, dx, grad, x, y, a, b);
      const auto check = [&]<class T>(T) {
        const auto at = [](const TestArray& array, std::int64_t i) { return static_cast<T>(array[i]); };
        expect_elements(
            y, [&](std::int64_t i) { return F::template on<T>::value(at(x, i), T(a), T(b)); }, tolerance(dtype),
            tolerance(dtype));
        expect_elements(
            dx,
            [&](std::int64_t i) { return F::template on<T>::gradient(at(grad, i), at(x, i), at(y, i), T(a), T(b)); },
            2 * tolerance(dtype), 2 * tolerance(dtype));
      };
      if (dtype == DType::f64)
        check(double{});
      else
        check(float{});
    }
  });
}

TEST(UnarySpecialValues, NaNPropagatesExceptThroughPredicatesAndScales) {
  for (const UnaryDefinition& definition : unary_definitions()) {
    if (gives_truth(definition.op) || definition.op == UnaryOp::power_of_two) continue;
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      TestArray x(dtype, {19}), out(dtype, {19});
      x.fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
      unary({}, definition.op, out.zero(), x, a, b);
      for (std::int64_t i = 0; i < 19; ++i) EXPECT_TRUE(std::isnan(out[i])) << to_string(definition.op);
    }
  }
}

TEST(UnarySpecialValues, PowerOfTwoScalesEveryNumber) {
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  TestArray x(DType::f64, {9}), out(DType::f64, {9});
  const double points[] = {0, -0.0, nan, infinity, -infinity, -3, 0x1p-1074, 0x1p1023, 0x1.fp-1022};
  x.fill([&](std::int64_t i) { return points[i]; });
  unary({}, UnaryOp::power_of_two, out, x);
  const double expected[] = {1, 1, 1, 1, 1, 2, 0x1p-1022, 0x1p1023, 0x1p-1022};
  expect_elements(
      out, [&](std::int64_t i) { return expected[i]; }, 0);
}

TEST(UnarySpecialValues, MatchTheStandardLibrary) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double points[] = {0.0,   -0.0,   1.0, -1.0, infinity, -infinity, 1e-30, -1e-30,
                           200.0, -200.0, 0.5, -0.5, 1.5,      2.5,       1e9};
  for (const DType dtype : {DType::f64, DType::f32})
    for (const UnaryOp op :
         {UnaryOp::neg,      UnaryOp::abs,   UnaryOp::square, UnaryOp::sqrt,    UnaryOp::exp,      UnaryOp::expm1,
          UnaryOp::log,      UnaryOp::log1p, UnaryOp::tanh,   UnaryOp::sigmoid, UnaryOp::erf,      UnaryOp::relu,
          UnaryOp::floor,    UnaryOp::ceil,  UnaryOp::round,  UnaryOp::isnan,   UnaryOp::isfinite, UnaryOp::reciprocal,
          UnaryOp::softplus, UnaryOp::sin,   UnaryOp::cos,    UnaryOp::log2,    UnaryOp::tan,      UnaryOp::asin,
          UnaryOp::acos,     UnaryOp::atan,  UnaryOp::sinh,   UnaryOp::cosh,    UnaryOp::log10,    UnaryOp::exp2,
          UnaryOp::elu}) {
      const auto& definitions = unary_definitions();
      const auto definition =
          std::find_if(definitions.begin(), definitions.end(), [op](const auto& d) { return d.op == op; });
      TestArray x(dtype, {15}), out(dtype, {15});
      x.fill([&](std::int64_t i) { return points[i]; });
      unary({}, op, out, x);
      for (std::int64_t i = 0; i < 15; ++i) {
        double wanted = static_cast<double>(definition->value(x[i], 0, 0));
        if (dtype == DType::f32) wanted = static_cast<float>(wanted);
        EXPECT_TRUE(close(out[i], wanted, tolerance(dtype), dtype == DType::f32 ? 1e-37 : 1e-300))
            << to_string(op) << " " << to_string(dtype) << " of " << x[i] << ": " << out[i] << ", expected " << wanted;
      }
    }
}

// Sanitizers check that signed integers do not overflow in between.
TEST(Unary, IntegersWrapAroundAtTheEndsOfTheirRange) {
  using Whole = std::int64_t;
  constexpr Whole first = std::numeric_limits<Whole>::min(), last = std::numeric_limits<Whole>::max();
  EXPECT_EQ(functors::Neg<Whole>::value(first, 0, 0), first);
  EXPECT_EQ(functors::Abs<Whole>::value(first, 0, 0), first);
  EXPECT_EQ(functors::Square<Whole>::value(last, 0, 0), 1);
  EXPECT_EQ(functors::Affine<Whole>::value(last, 2, 3), 1);
}

TEST(Unary, TheGpuFunctorSupportsAnyLayout) {
  std::mt19937_64 random(test_seed());
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{31, 33}, Shape{5, 7, 1025}})
    for (const Layout in : input_layouts)
      for (const Layout to : output_layouts) {
        TestArray x(DType::f32, shape, in), out(DType::f32, shape, to), expected(DType::f32, shape);
        x.random(random);
        const PointwiseUnary<functors::Gelu, float> body{out, x};
        for (std::int64_t i = 0; i < out.count(); ++i) body(i);
        unary({}, UnaryOp::gelu, expected, x);
        expect_elements(
            out, [&](std::int64_t i) { return expected[i]; }, tolerance(DType::f32), tolerance(DType::f32));
      }
}

}  // namespace
}  // namespace poolgrad::kernels
