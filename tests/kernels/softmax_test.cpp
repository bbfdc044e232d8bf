#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/rows.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<Shape> softmax_shapes = {{1},      {7},      {0, 5},    {3, 0},    {1, 1},
                                           {33, 31}, {31, 33}, {5, 1025}, {1025, 5}, {2, 3, 4, 257}};

Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

/// The sum of f(i) over every row of n elements.
template <class F>
std::vector<double> row_sums(std::int64_t count, std::int64_t n, const F& f) {
  std::vector<double> sums(static_cast<std::size_t>(n ? count / n : 0));
  for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i / n)] += f(i);
  return sums;
}

/// log(sum(exp(x))) of every row of n elements.
std::vector<double> log_sums(const TestArray& x, std::int64_t n) {
  std::vector<double> largest(static_cast<std::size_t>(n ? x.count() / n : 0), -infinity);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    double& of_row = largest[static_cast<std::size_t>(i / n)];
    of_row = std::max(of_row, x[i]);
  }
  std::vector<double> sums = row_sums(x.count(), n, [&](std::int64_t i) {
    const double shift = largest[static_cast<std::size_t>(i / n)];
    return shift == -infinity ? 0 : std::exp(x[i] - shift);
  });
  for (std::size_t row = 0; row < sums.size(); ++row) sums[row] = largest[row] + std::log(sums[row]);
  return sums;
}

TEST(Softmax, AgreesWithTheDefinition) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : softmax_shapes) {
      const std::int64_t n = shape.back();
      TestArray x(dtype, shape), out(dtype, shape), log_out(dtype, shape), lse(dtype, without_last(shape));
      x.random(random, -9, 9);
      softmax({}, out, x);
      log_softmax({}, log_out, x);
      logsumexp({}, lse, x);
      const std::vector<double> expected_lse = log_sums(x, n);
      const auto lse_at = [&](std::int64_t i) { return expected_lse[static_cast<std::size_t>(i / n)]; };
      const double subnormal = dtype == DType::f16 ? 3e-8 : 0;
      expect_elements(
          out, [&](std::int64_t i) { return std::exp(x[i] - lse_at(i)); }, 4 * tolerance(dtype), subnormal);
      expect_elements(
          log_out, [&](std::int64_t i) { return x[i] - lse_at(i); }, tolerance(dtype), 4 * tolerance(dtype));
      expect_elements(
          lse, [&](std::int64_t row) { return n ? lse_at(row * n) : -infinity; }, tolerance(dtype), tolerance(dtype));
      softmax({}, x, x);  // in place
      expect_elements(
          x, [&](std::int64_t i) { return out[i]; }, 0);
    }
}

TEST(Softmax, GradientsAgreeWithTheDefinition) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : softmax_shapes) {
      const std::int64_t n = shape.back();
      TestArray x(dtype, shape), out(dtype, shape), grad(dtype, shape), dx(dtype, shape);
      x.random(random);
      grad.random(random);
      softmax({}, out, x);
      softmax_backward({}, dx, grad, out);
      std::vector<double> sums = row_sums(x.count(), n, [&](std::int64_t i) { return out[i] * grad[i]; });
      expect_elements(
          dx, [&](std::int64_t i) { return out[i] * (grad[i] - sums[static_cast<std::size_t>(i / n)]); },
          2 * tolerance(dtype), 4 * tolerance(dtype));
      log_softmax({}, out, x);
      log_softmax_backward({}, dx, grad, out);
      sums = row_sums(x.count(), n, [&](std::int64_t i) { return grad[i]; });
      expect_elements(
          dx, [&](std::int64_t i) { return grad[i] - std::exp(out[i]) * sums[static_cast<std::size_t>(i / n)]; },
          tolerance(dtype), 40 * tolerance(dtype));
    }
}

TEST(Softmax, GivesFullyMaskedRowsZeros) {
  for (const DType dtype : floats) {
    TestArray x(dtype, {3, 33}), out(dtype, {3, 33}), log_out(dtype, {3, 33}), lse(dtype, {3}), grad(dtype, {3, 33}),
        dx(dtype, {3, 33});
    x.fill([](std::int64_t i) { return i / 33 == 1 || i % 2 ? -infinity : 1.0; });
    softmax({}, out, x);
    log_softmax({}, log_out, x);
    logsumexp({}, lse, x);
    expect_elements(
        out, [](std::int64_t i) { return i / 33 == 1 || i % 2 ? 0.0 : 1.0 / 17; }, tolerance(dtype));
    for (std::int64_t i = 0; i < 33; ++i) EXPECT_EQ(log_out[33 + i], -infinity);
    EXPECT_EQ(lse[1], -infinity);
    grad.fill([](std::int64_t) { return 1.0; });
    softmax_backward({}, dx, grad, out);
    for (std::int64_t i = 33; i < 66; ++i) EXPECT_EQ(dx[i], 0);
    log_softmax_backward({}, dx, grad, log_out);
    for (std::int64_t i = 33; i < 66; ++i) EXPECT_EQ(dx[i], 1);
  }
}

TEST(Softmax, KeepsNaNWithinItsRow) {
  for (const DType dtype : floats) {
    TestArray x(dtype, {2, 40}), out(dtype, {2, 40}), lse(dtype, {2});
    x.fill([](std::int64_t i) { return i == 57 ? nan : -infinity; });
    x.set(0, 1);
    softmax({}, out, x);
    logsumexp({}, lse, x);
    for (std::int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(out[i], i == 0);
      EXPECT_TRUE(std::isnan(out[40 + i]));
    }
    EXPECT_TRUE(std::isnan(lse[1]));
  }
}

TEST(Softmax, HugeLogitsDoNotOverflow) {
  TestArray x(DType::f32, {1, 20}), out(DType::f32, {1, 20}), lse(DType::f32, {1});
  x.fill([](std::int64_t i) { return i % 2 ? 1e30 : -1e30; });
  softmax({}, out, x);
  logsumexp({}, lse, x);
  expect_elements(out, [](std::int64_t i) { return i % 2 ? 0.1 : 0.0; });
  EXPECT_NEAR(lse[0], 1e30, 1e24);
}

TEST(Softmax, FindsTheLargestElementAtAnyPosition) {
  for (const DType dtype : floats)
    for (std::int64_t n = 1; n <= 131; ++n)
      for (const std::int64_t at : {n - 1, std::int64_t{0}, n / 2}) {
        // e^100 overflows in f32 and e^800 in f64 unless the row's maximum is subtracted first.
        const double largest = dtype == DType::f64 ? 800 : 100;
        TestArray x(dtype, {2, n}), out(dtype, {2, n}), lse(dtype, {2});
        x.fill([&](std::int64_t i) { return i % n == at ? largest : 0.0; });
        softmax({}, out, x);
        expect_elements(
            out, [&](std::int64_t i) { return i % n == at ? 1.0 : 0.0; }, 0, 1e-40);
        log_softmax({}, out, x);
        expect_elements(out, [&](std::int64_t i) { return i % n == at ? 0.0 : -largest; });
        logsumexp({}, lse, x);
        expect_elements(lse, [&](std::int64_t) { return largest; });
      }
}

TEST(Softmax, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {600, 130}), out(DType::f32, {600, 130});
  x.random(random);
  expect_same_bits_for_any_thread_count(out, [&] { softmax({}, out, x); });
}

class CrossEntropy : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Smoothing, CrossEntropy, ::testing::Values(0.0, 0.1));

TEST_P(CrossEntropy, LossAndGradientAgreeWithTheDefinition) {
  const double s = GetParam();
  constexpr std::int64_t ignored = -100;
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : {Shape{0, 5}, Shape{1, 1}, Shape{31, 33}, Shape{5, 1025}, Shape{1025, 65}}) {
      const std::int64_t rows = shape[0], n = shape[1];
      const DType exact = compute_dtype(dtype);
      TestArray logits(dtype, shape), targets(DType::i64, {rows}), loss(exact, {rows}), lse(exact, {rows});
      TestArray grad(exact, {rows}), dlogits(dtype, shape);
      logits.random(random, -9, 9);
      targets.random(random, 0, static_cast<double>(n));
      grad.random(random);
      if (rows > 3) targets.set(3, ignored);
      cross_entropy({}, loss, lse, logits, targets, ignored, s);
      cross_entropy_backward({}, dlogits, grad, logits, lse, targets, ignored, s);
      const double error = tolerance(exact);
      const std::vector<double> lse_of = log_sums(logits, n);
      const std::vector<double> sum_of = row_sums(logits.count(), n, [&](std::int64_t i) { return logits[i]; });
      expect_elements(
          lse, [&](std::int64_t row) { return lse_of[static_cast<std::size_t>(row)]; }, error, error);
      const auto expected_loss = [&](std::int64_t row) {
        if (targets[row] == ignored) return 0.0;
        const double l = lse_of[static_cast<std::size_t>(row)];
        const double mean = l - sum_of[static_cast<std::size_t>(row)] / static_cast<double>(n);
        return (1 - s) * (l - logits[row * n + static_cast<std::int64_t>(targets[row])]) + s * mean;
      };
      expect_elements(loss, expected_loss, error, 8 * error);
      const auto expected_gradient = [&](std::int64_t i) {
        const std::int64_t row = i / n;
        if (targets[row] == ignored) return 0.0;
        const double hot = i % n == static_cast<std::int64_t>(targets[row]) ? 1 - s : 0.0;
        const double probability = std::exp(logits[i] - lse_of[static_cast<std::size_t>(row)]);
        return grad[row] * (probability - hot - s / static_cast<double>(n));
      };
      expect_elements(dlogits, expected_gradient, tolerance(dtype) + 8 * error,
                      8 * error + (dtype == DType::f16 ? 3e-8 : 0));
    }
}

TEST(CrossEntropyBackward, MayOverwriteTheLogitsAndBroadcastOneGradient) {
  std::mt19937_64 random(test_seed());
  TestArray logits(DType::f32, {50, 65}), targets(DType::i64, {50}), loss(DType::f32, {50}), lse(DType::f32, {50});
  TestArray grad(DType::f32, {50}, Layout::repeated), dense(DType::f32, {50}), dlogits(DType::f32, {50, 65});
  logits.random(random);
  targets.random(random, 0, 65);
  grad.random(random);
  dense.fill([&](std::int64_t i) { return grad[i]; });
  cross_entropy({}, loss, lse, logits, targets, -1, 0);
  cross_entropy_backward({}, dlogits, dense, logits, lse, targets, -1, 0);
  cross_entropy_backward({}, logits, grad, logits, lse, targets, -1, 0);
  expect_elements(
      logits, [&](std::int64_t i) { return dlogits[i]; }, 0);
}

}  // namespace
}  // namespace poolgrad::kernels
