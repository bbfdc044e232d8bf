#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "kernels/functors/elementwise.h"
#include "tests/kernels/elementwise_reference.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<Shape> binary_shapes = {{}, {0}, {1}, {33}, {1025}, {3, 0}, {31, 33}, {4, 1, 5, 7}, {67, 131}};
constexpr DType integers[] = {DType::i64, DType::i32, DType::u8};

class Binary : public ::testing::TestWithParam<BinaryDefinition> {};
INSTANTIATE_TEST_SUITE_P(Every, Binary, ::testing::ValuesIn(binary_definitions()),
                         [](const auto& parameter) { return std::string(to_string(parameter.param.op)); });

TEST_P(Binary, AgreesWithItsDefinition) {
  const BinaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  const double low = definition.op == BinaryOp::pow ? 0.1 : -2;
  for (const DType dtype : floats)
    for (const Shape& shape : binary_shapes) {
      TestArray x(dtype, shape), y(dtype, shape), out(definition.truth ? DType::boolean : dtype, shape);
      x.random(random, low);
      y.random(random);
      for (std::int64_t i = 0; i < x.count(); i += 3) y.set(i, x[i]);  // makes equality frequent
      binary({}, definition.op, out, x, y);
      expect_elements(
          out, [&](std::int64_t i) { return static_cast<double>(definition.value(x[i], y[i])); }, tolerance(dtype),
          tolerance(dtype));
    }
}

TEST_P(Binary, IntegersAreExact) {
  const BinaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  for (const DType dtype : integers) {
    const bool sign = dtype != DType::u8;
    TestArray x(dtype, {1025}), y(dtype, {1025}), out(definition.truth ? DType::boolean : dtype, {1025});
    x.random(random, sign ? -5 : 0, 6);
    y.random(random, sign && definition.op != BinaryOp::pow ? -5 : 0, 6);
    if (!definition.on_integers) {
      EXPECT_THROW(binary({}, definition.op, out, x, y), DTypeError);
      continue;
    }
    if (definition.op == BinaryOp::div || definition.op == BinaryOp::fmod || definition.op == BinaryOp::remainder)
      y.fill([&](std::int64_t i) { return y[i] == 0 ? 2 : y[i]; });
    binary({}, definition.op, out, x, y);
    expect_elements(out, [&](std::int64_t i) {
      const auto wanted = static_cast<std::int64_t>(definition.value(x[i], y[i]));
      return sign ? static_cast<double>(wanted) : static_cast<double>(static_cast<std::uint8_t>(wanted));
    });
  }
}

TEST_P(Binary, AnyLayoutAndBroadcastGivesTheSameBits) {
  const BinaryDefinition& definition = GetParam();
  std::mt19937_64 random(test_seed());
  const Shape shape = {13, 5, 43};
  for (const Layout left : input_layouts)
    for (const Layout right : input_layouts) {
      const Layout to = left == Layout::repeated ? Layout::spread : left;
      TestArray x(DType::f32, shape, left), y(DType::f32, shape, right), out(DType::f32, shape, to);
      TestArray dense_x(DType::f32, shape), dense_y(DType::f32, shape), expected(DType::f32, shape);
      x.random(random, 0.1);
      y.random(random);
      dense_x.fill([&](std::int64_t i) { return x[i]; });
      dense_y.fill([&](std::int64_t i) { return y[i]; });
      binary({}, definition.op, out, x, y);
      binary({}, definition.op, expected, dense_x, dense_y);
      expect_elements(
          out, [&](std::int64_t i) { return expected[i]; }, 0);
    }
}

TEST_P(Binary, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {70001}), y(DType::f32, {70001}), out(DType::f32, {70001});
  x.random(random, 0.1);
  y.random(random);
  expect_same_bits_for_any_thread_count(out, [&] { binary({}, GetParam().op, out, x, y); });
}

TEST(BinarySpecialValues, ExtremesPropagateNaNFromEitherSide) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : floats)
    for (const BinaryOp op : {BinaryOp::maximum, BinaryOp::minimum}) {
      TestArray x(dtype, {3}), y(dtype, {3}), out(dtype, {3});
      x.fill([&](std::int64_t i) { return i == 0 ? nan : 1.0; });
      y.fill([&](std::int64_t i) { return i == 1 ? nan : 2.0; });
      binary({}, op, out.zero(), x, y);
      EXPECT_TRUE(std::isnan(out[0]));
      EXPECT_TRUE(std::isnan(out[1]));
      EXPECT_EQ(out[2], op == BinaryOp::maximum ? 2 : 1);
    }
}

TEST(BinarySpecialValues, MulNoNanIsZeroForAWeightOfZero) {
  for (const DType dtype : floats) {
    TestArray x(dtype, {7}), y(dtype, {7}), out(dtype, {7});
    const double weights[] = {0, -0.0, 0, 0, 2, infinity, nan}, values[] = {nan, infinity, -infinity, -3, nan, 0, 0};
    x.fill([&](std::int64_t i) { return weights[i]; });
    y.fill([&](std::int64_t i) { return values[i]; });
    binary({}, BinaryOp::mul_no_nan, out, x, y);
    const double expected[] = {0, 0, 0, 0, nan, nan, nan};
    expect_elements(
        out, [&](std::int64_t i) { return expected[i]; }, 0);
    EXPECT_TRUE(std::signbit(out[3])) << "0 times -3 is -0, as in mul";
  }
}

TEST(BinarySpecialValues, TheGradientOfAnExtremeGoesToTheWinningOperand) {
  for (const DType dtype : floats)
    for (const BinaryOp op : {BinaryOp::maximum_share, BinaryOp::minimum_share}) {
      TestArray x(dtype, {6}), y(dtype, {6}), out(dtype, {6});
      const double left[] = {nan, 1, nan, infinity, -infinity, -0.0}, right[] = {1, nan, nan, infinity, -infinity, 0};
      x.fill([&](std::int64_t i) { return left[i]; });
      y.fill([&](std::int64_t i) { return right[i]; });
      binary({}, op, out, x, y);
      const double expected[] = {1, 0, 0.5, 0.5, 0.5, 0.5};
      expect_elements(
          out, [&](std::int64_t i) { return expected[i]; }, 0);
    }
}

TEST(BinarySpecialValues, LogicTreatsNaNAsTrue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  TestArray x(DType::f32, {2}), y(DType::f32, {2}), out(DType::boolean, {2});
  x.fill([&](std::int64_t) { return nan; });
  y.fill([](std::int64_t i) { return static_cast<double>(i); });
  binary({}, BinaryOp::logical_or, out, x, y);
  EXPECT_EQ(out[0], 1);
  binary({}, BinaryOp::logical_and, out, x, y);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 1);
}

TEST(BinarySpecialValues, IntegerDivisionByZeroIsZeroAndTruncatesOtherwise) {
  TestArray x(DType::i64, {4}), y(DType::i64, {4}), out(DType::i64, {4});
  const double numerator[] = {7, -7, 5, -9223372036854775808.0}, denominator[] = {2, 2, 0, -1};
  x.fill([&](std::int64_t i) { return numerator[i]; });
  y.fill([&](std::int64_t i) { return denominator[i]; });
  binary({}, BinaryOp::div, out, x, y);
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[1], -3);
  EXPECT_EQ(out[2], 0);
  EXPECT_EQ(out[3], -9223372036854775808.0);  // wraps around
}

TEST(BinarySpecialValues, RemaindersKeepTheSignOfOneOperand) {
  const double infinity = std::numeric_limits<double>::infinity(), lowest = -9223372036854775808.0;
  const auto rests = [](DType dtype, BinaryOp op, std::initializer_list<double> a, std::initializer_list<double> b) {
    const auto count = static_cast<std::int64_t>(a.size());
    TestArray x(dtype, {count}), y(dtype, {count}), out(dtype, {count});
    x.fill([&](std::int64_t i) { return a.begin()[i]; });
    y.fill([&](std::int64_t i) { return b.begin()[i]; });
    binary({}, op, out, x, y);
    std::vector<double> result;
    for (std::int64_t i = 0; i < count; ++i) result.push_back(out[i]);
    return result;
  };
  using Values = std::vector<double>;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
    EXPECT_EQ(rests(dtype, BinaryOp::fmod, {5, -5, 5, -5, 4}, {3, 3, -3, -3, 2}), (Values{2, -2, 2, -2, 0}));
    EXPECT_EQ(rests(dtype, BinaryOp::remainder, {5, -5, 5, -5, 4}, {3, 3, -3, -3, 2}), (Values{2, 1, -1, -2, 0}));
  }
  for (const BinaryOp op : {BinaryOp::fmod, BinaryOp::remainder}) {
    EXPECT_EQ(rests(DType::i64, op, {7, -7, lowest}, {0, 0, -1}), (Values{7, -7, 0})) << to_string(op);
    EXPECT_EQ(rests(DType::u8, op, {7, 250}, {0, 100}), (Values{7, 50})) << to_string(op);
    EXPECT_TRUE(std::isnan(rests(DType::f32, op, {1}, {0})[0])) << to_string(op);
    EXPECT_EQ(rests(DType::f64, op, {1e300, 1}, {3, infinity}), (Values{std::fmod(1e300, 3), 1})) << to_string(op);
  }
  EXPECT_EQ(rests(DType::f64, BinaryOp::fmod, {-1}, {infinity}), (Values{-1}));
  EXPECT_EQ(rests(DType::f64, BinaryOp::remainder, {-1}, {infinity}), (Values{infinity}));
}

TEST(Axpby, BlendsAndMayOverwriteAnOperand) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : binary_shapes) {
      TestArray x(dtype, shape), y(dtype, shape, Layout::transposed), out(dtype, shape);
      x.random(random);
      y.random(random);
      axpby({}, out, 0.75, x, -1.5, y);
      expect_elements(
          out, [&](std::int64_t i) { return 0.75 * x[i] - 1.5 * y[i]; }, tolerance(dtype), 4 * tolerance(dtype));
      axpby({}, y, 0.75, x, -1.5, y);
      expect_elements(
          y, [&](std::int64_t i) { return out[i]; }, 0);
    }
}

TEST(Where, ChoosesByElementAndDropsTheOtherBranch) {
  std::mt19937_64 random(test_seed());
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const Layout layout : input_layouts) {
      TestArray condition(DType::boolean, {17, 71}, layout), x(dtype, {17, 71}), y(dtype, {17, 71}, Layout::spread);
      TestArray out(dtype, {17, 71});
      condition.random(random, 0, 2);
      x.random(random, 0, 100);
      y.random(random, 0, 100);
      if (is_floating(dtype)) x.fill([&](std::int64_t i) { return condition[i] != 0 ? x[i] : infinity; });
      where({}, out, condition, x, y);
      expect_elements(
          out, [&](std::int64_t i) { return condition[i] != 0 ? x[i] : y[i]; }, 0);
    }
}

TEST(SiluMul, ForwardAndBothGradientsAgreeWithTheDefinition) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : binary_shapes) {
      TestArray gate(dtype, shape), up(dtype, shape), grad(dtype, shape), out(dtype, shape);
      TestArray dgate(dtype, shape), dup(dtype, shape, Layout::transposed);
      gate.random(random, -5, 5);
      up.random(random);
      grad.random(random);
      silu_mul({}, out, gate, up);
      silu_mul_backward({}, dgate, dup, grad, gate, up);
      const auto sigmoid = [&](std::int64_t i) { return 1 / (1 + std::exp(-gate[i])); };
      const double slack = 4 * tolerance(dtype);
      expect_elements(
          out, [&](std::int64_t i) { return gate[i] * sigmoid(i) * up[i]; }, tolerance(dtype), slack);
      expect_elements(
          dup, [&](std::int64_t i) { return grad[i] * gate[i] * sigmoid(i); }, tolerance(dtype), slack);
      expect_elements(
          dgate,
          [&](std::int64_t i) {
            const double s = sigmoid(i);
            return grad[i] * up[i] * (s + gate[i] * s * (1 - s));
          },
          tolerance(dtype), slack);
    }
}

TEST(BinaryFunctors, ScalarsAgreeWithVectors) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {1025}), y(DType::f32, {1025}), out(DType::f32, {1025});
  x.random(random, 0.1);
  y.random(random);
  const auto check = [&]<class F>(F, BinaryOp op) {
    binary({}, op, out, x, y);
    expect_elements(out, [&](std::int64_t i) {
      return static_cast<double>(F::template on<float>::value(static_cast<float>(x[i]), static_cast<float>(y[i])));
    });
  };
  check(Functor<functors::Add>{}, BinaryOp::add);
  check(Functor<functors::Sub>{}, BinaryOp::sub);
  check(Functor<functors::Mul>{}, BinaryOp::mul);
  check(Functor<functors::Div>{}, BinaryOp::div);
  check(Functor<functors::Fmod>{}, BinaryOp::fmod);
  check(Functor<functors::Remainder>{}, BinaryOp::remainder);
  check(Functor<functors::Atan2>{}, BinaryOp::atan2);
  check(Functor<functors::Pow>{}, BinaryOp::pow);
  check(Functor<functors::Maximum>{}, BinaryOp::maximum);
  check(Functor<functors::Minimum>{}, BinaryOp::minimum);
  check(Functor<functors::Equal>{}, BinaryOp::eq);
  check(Functor<functors::NotEqual>{}, BinaryOp::ne);
  check(Functor<functors::Less>{}, BinaryOp::lt);
  check(Functor<functors::LessEqual>{}, BinaryOp::le);
  check(Functor<functors::Greater>{}, BinaryOp::gt);
  check(Functor<functors::GreaterEqual>{}, BinaryOp::ge);
  check(Functor<functors::LogicalAnd>{}, BinaryOp::logical_and);
  check(Functor<functors::LogicalOr>{}, BinaryOp::logical_or);
  check(Functor<functors::MulNoNan>{}, BinaryOp::mul_no_nan);
  check(Functor<functors::MaximumShare>{}, BinaryOp::maximum_share);
  check(Functor<functors::MinimumShare>{}, BinaryOp::minimum_share);
}

}  // namespace
}  // namespace poolgrad::kernels
