#include <gtest/gtest.h>

#include <cmath>

#include "kernels/rows.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<Shape> norm_shapes = {{0, 5},   {1, 1},    {1, 33},    {33, 1},    {33, 7},
                                        {31, 33}, {5, 1025}, {1030, 48}, {4, 9, 130}};
constexpr double epsilon = 1e-5;

/// A norm with its operands and its f64 definition. `centered`: LayerNorm, otherwise RMSNorm.
struct Norm {
  bool centered, affine;
  std::int64_t rows = 1, n;
  TestArray x, weight, bias, out, mean, rstd, grad, dx, dweight, dbias;
  std::vector<double> mean_of, rstd_of;
  double u = 0, uh = 0;  // sums over a row, for expected_dx()

  Norm(bool is_centered, bool is_affine, DType dtype, const Shape& shape, std::mt19937_64& random)
      : centered(is_centered),
        affine(is_affine),
        n(shape.back()),
        x(dtype, shape),
        weight(dtype, {n}),
        bias(dtype, {n}),
        out(dtype, shape),
        mean(compute_dtype(dtype), rows_of(shape)),
        rstd(compute_dtype(dtype), rows_of(shape)),
        grad(dtype, shape),
        dx(dtype, shape),
        dweight(dtype, {n}),
        dbias(dtype, {n}) {
    for (std::size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
    x.random(random, -1, 3);
    weight.random(random);
    bias.random(random);
    grad.random(random);
    for (std::int64_t row = 0; row < rows; ++row) {
      double sum = 0, squares = 0;
      for (std::int64_t j = 0; j < n; ++j) sum += x[row * n + j];
      const double center = centered ? sum / static_cast<double>(n) : 0;
      for (std::int64_t j = 0; j < n; ++j) squares += (x[row * n + j] - center) * (x[row * n + j] - center);
      mean_of.push_back(center);
      rstd_of.push_back(1 / std::sqrt(squares / static_cast<double>(n) + epsilon));
    }
  }
  static Shape rows_of(Shape shape) {
    shape.pop_back();
    return shape;
  }
  View optional(const TestArray& array) const { return affine ? array.view() : View{}; }
  void forward() {
    if (centered)
      layer_norm({}, out, mean, rstd, x, optional(weight), optional(bias), epsilon);
    else
      rms_norm({}, out, rstd, x, optional(weight), epsilon);
  }
  void backward() {
    if (centered)
      layer_norm_backward({}, dx, optional(dweight), optional(dbias), grad, x, mean, rstd, optional(weight));
    else
      rms_norm_backward({}, dx, optional(dweight), grad, x, rstd, optional(weight));
  }
  double w(std::int64_t i) const { return affine ? weight[i % n] : 1; }
  double h(std::int64_t i) const {
    const auto row = static_cast<std::size_t>(i / n);
    return (x[i] - mean_of[row]) * rstd_of[row];
  }
  double expected_out(std::int64_t i) const { return h(i) * w(i) + (affine && centered ? bias[i % n] : 0); }
  double expected_dx(std::int64_t i) {
    if (i % n == 0) {  // elements are visited in order
      u = uh = 0;
      for (std::int64_t j = i; j < i + n; ++j) {
        u += grad[j] * w(j);
        uh += grad[j] * w(j) * h(j);
      }
    }
    const double inverse = 1 / static_cast<double>(n);
    return rstd_of[static_cast<std::size_t>(i / n)] *
           (grad[i] * w(i) - (centered ? u * inverse : 0) - h(i) * uh * inverse);
  }
  double column_sum(std::int64_t column, bool times_h) const {
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += grad[row * n + column] * (times_h ? h(row * n + column) : 1);
    return sum;
  }
};

class Norms : public ::testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(Every, Norms, ::testing::Combine(::testing::Bool(), ::testing::Bool()), [](const auto& p) {
  return std::string(std::get<0>(p.param) ? "Layer" : "Rms") + (std::get<1>(p.param) ? "WithWeight" : "Plain");
});

TEST_P(Norms, ForwardAgreesWithTheDefinition) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : norm_shapes) {
      Norm norm(std::get<0>(GetParam()), std::get<1>(GetParam()), dtype, shape, random);
      norm.forward();
      expect_elements(
          norm.out, [&](std::int64_t i) { return norm.expected_out(i); }, 2 * tolerance(dtype), 4 * tolerance(dtype));
      const double error = 4 * tolerance(compute_dtype(dtype));
      expect_elements(
          norm.rstd, [&](std::int64_t row) { return norm.rstd_of[static_cast<std::size_t>(row)]; }, error);
      if (norm.centered)
        expect_elements(
            norm.mean, [&](std::int64_t row) { return norm.mean_of[static_cast<std::size_t>(row)]; }, error, error);
    }
}

TEST_P(Norms, GradientsAgreeWithTheDefinition) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : norm_shapes) {
      Norm norm(std::get<0>(GetParam()), std::get<1>(GetParam()), dtype, shape, random);
      norm.forward();
      norm.backward();
      // With one column and a mean, the gradient is 0 but for epsilon: there is no relative error.
      const double error = 6 * tolerance(dtype), absolute = shape.back() == 1 ? 400 * error : 20 * error;
      expect_elements(
          norm.dx, [&](std::int64_t i) { return norm.expected_dx(i); }, error, absolute);
      if (!norm.affine || norm.rows == 0) continue;
      const double sums = std::max(4e-6, 2 * tolerance(dtype)) * std::sqrt(static_cast<double>(norm.rows));
      expect_elements(
          norm.dweight, [&](std::int64_t c) { return norm.column_sum(c, true); }, tolerance(dtype), sums);
      if (norm.centered)
        expect_elements(
            norm.dbias, [&](std::int64_t c) { return norm.column_sum(c, false); }, tolerance(dtype), sums);
    }
}

TEST_P(Norms, GradientOfNoRowsIsZero) {
  std::mt19937_64 random(test_seed());
  Norm norm(std::get<0>(GetParam()), true, DType::f32, {0, 5}, random);
  norm.backward();
  expect_elements(norm.dweight, [](std::int64_t) { return 0.0; });
  if (norm.centered) expect_elements(norm.dbias, [](std::int64_t) { return 0.0; });
}

TEST_P(Norms, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  Norm norm(std::get<0>(GetParam()), true, DType::f32, {1030, 96}, random);
  const auto run = [&] {
    norm.forward();
    norm.backward();
  };
  for (const TestArray* result : {&norm.out, &norm.dx, &norm.dweight})
    expect_same_bits_for_any_thread_count(*result, run);
}

/// Expected values: the definition on the row divided by its scale.
TEST(Norms, SurviveSquaresBeyondTheDtype) {
  std::mt19937_64 random(test_seed());
  const auto check = [&](DType dtype, int exponent, bool centered, std::int64_t n) {
    const double scale = std::ldexp(1.0, exponent);
    const bool has_square = std::abs(exponent) <= (dtype == DType::f64 ? 500 : 60);
    const double relative_epsilon = has_square ? 1e-3 : 0;
    TestArray x(dtype, {2, n}), out(dtype, {2, n}), mean(compute_dtype(dtype), {2}), rstd(compute_dtype(dtype), {2});
    x.random(random, -1, 3);
    x.fill([&](std::int64_t i) { return x[i] * scale; });
    const double absolute_epsilon = relative_epsilon * scale * scale;
    if (centered)
      layer_norm({}, out, mean, rstd, x, View{}, View{}, absolute_epsilon);
    else
      rms_norm({}, out, rstd, x, View{}, absolute_epsilon);
    const auto mean_of = [&](std::int64_t row, const auto& value) {
      double sum = 0;
      for (std::int64_t i = row * n; i < (row + 1) * n; ++i) sum += value(x[i] / scale);
      return sum / static_cast<double>(n);
    };
    expect_elements(
        out,
        [&](std::int64_t i) {
          const double center = centered ? mean_of(i / n, [](double v) { return v; }) : 0;
          const double variance = mean_of(i / n, [&](double v) { return (v - center) * (v - center); });
          return (x[i] / scale - center) / std::sqrt(variance + relative_epsilon);
        },
        8 * tolerance(dtype), 8 * tolerance(dtype));
  };
  for (const bool centered : {false, true})
    for (const std::int64_t n : {3, 40, 513}) {
      for (const int exponent : {900, 600, -450, -900}) check(DType::f64, exponent, centered, n);
      for (const int exponent : {120, 70, -55, -110}) check(DType::f32, exponent, centered, n);
      for (const int exponent : {120, 70, -110}) check(DType::bf16, exponent, centered, n);
    }
}

TEST(LayerNorm, SurvivesLargeMeans) {
  TestArray x(DType::f32, {1, 256}), out(DType::f32, {1, 256}), mean(DType::f32, {1}), rstd(DType::f32, {1});
  x.fill([](std::int64_t i) { return 10000.0 + (i % 2 ? 1 : -1); });
  layer_norm({}, out, mean, rstd, x, View{}, View{}, 0);
  expect_elements(out, [](std::int64_t i) { return i % 2 ? 1.0 : -1.0; });
}

TEST(Rope, RotatesPairsByTheirAngle) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape :
         {Shape{0, 3, 1, 4}, Shape{1, 1, 1, 2}, Shape{2, 7, 3, 10}, Shape{2, 33, 2, 64}, Shape{1, 5, 2, 140}})
      for (const std::int64_t position : {0, 1000, 100000}) {
        TestArray x(dtype, shape), out(dtype, shape), back(dtype, shape);
        x.random(random);
        rope({}, out, x, position, 10000, false);
        rope({}, back, out, position, 10000, true);
        const std::int64_t d = shape[3], half = d / 2;
        const auto expected = [&](std::int64_t i) {
          const std::int64_t pair = i % half, t = i / d / shape[2] % shape[1];
          const long double angle =
              static_cast<long double>(position + t) *
              std::pow(10000.0L, -2.0L * static_cast<long double>(pair) / static_cast<long double>(d));
          const double c = static_cast<double>(std::cos(angle)), s = static_cast<double>(std::sin(angle));
          return i % d < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
        };
        // An f64 angle of 1e5 radians has an error of 1e-11.
        const double error = tolerance(dtype) + 1e-15 * static_cast<double>(position);
        expect_elements(out, expected, error, 4 * error);
        expect_elements(
            back, [&](std::int64_t i) { return x[i]; }, 2 * error, 4 * error);
      }
}

TEST(Rope, RotatesHeadsOfAPackedProjectionInPlace) {
  std::mt19937_64 random(test_seed());
  TestArray packed(DType::f32, {2, 9, 3, 2, 16}), expected(DType::f32, {2, 9, 2, 16});
  packed.random(random);
  View keys = packed;  // packed[:, :, 1]
  keys.rank = 4;
  keys.data = packed.view().as<float>() + packed.view().strides[2];
  keys.shape[2] = 2, keys.strides[2] = packed.view().strides[3];
  keys.shape[3] = 16, keys.strides[3] = 1;
  rope({}, expected, keys, 5, 10000, false);
  rope({}, keys, keys, 5, 10000, false);
  for (std::int64_t i = 0; i < keys.count(); ++i)
    EXPECT_EQ(keys.as<float>()[keys.offset(i)], static_cast<float>(expected[i]));
}

TEST(Rope, ScalesSlowFrequenciesAndTheMagnitude) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32}) {
    TestArray x(dtype, {1, 6, 2, 140}), out(dtype, {1, 6, 2, 140});
    x.random(random);
    RotaryFrequencies frequencies(100.0);
    frequencies.stretch = 0.25, frequencies.kept = 14, frequencies.stretched = 45.5, frequencies.magnitude = 1.5;
    rope({}, out, x, 7, frequencies, false);
    const auto expected = [&](std::int64_t i) {
      const std::int64_t half = 70, pair = i % half, t = i / 280;
      const double plain = std::pow(100.0, -static_cast<double>(pair) / 70.0);
      const double kept = 1 - std::clamp((static_cast<double>(pair) - 14) / 31.5, 0.0, 1.0);
      const double angle = static_cast<double>(7 + t) * plain * (kept + (1 - kept) / 4);
      const double c = 1.5 * std::cos(angle), s = 1.5 * std::sin(angle);
      return i % 140 < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s;
    };
    expect_elements(out, expected, tolerance(dtype), 4 * tolerance(dtype));
  }
}

TEST(Rope, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {2, 300, 4, 32}), out(DType::f32, {2, 300, 4, 32});
  x.random(random);
  expect_same_bits_for_any_thread_count(out, [&] { rope({}, out, x, 0, 10000, false); });
}

}  // namespace
}  // namespace poolgrad::kernels
