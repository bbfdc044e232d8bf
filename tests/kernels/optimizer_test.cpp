#include "kernels/optimizer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/elementwise.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

constexpr std::int64_t sizes[] = {0, 1, 33, 1025, 50001};

TEST(AdamW, FollowsLoshchilovAndHutterForSeveralSteps) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const std::int64_t n : sizes) {
      const DType exact = compute_dtype(dtype);
      TestArray parameter(dtype, {n}), gradient(dtype, {n}), first(exact, {n}), second(exact, {n});
      parameter.random(random);
      first.zero();
      second.zero();
      for (std::int64_t step = 1; step <= 3; ++step) {
        gradient.random(random);
        const AdamW options{0.01, 0.9, 0.99, 1e-8, 0.1, step, 0.5};
        std::vector<double> p, m, v;
        for (std::int64_t i = 0; i < n; ++i) {
          const double g = gradient[i] * 0.5;
          m.push_back(0.9 * first[i] + 0.1 * g);
          v.push_back(0.99 * second[i] + 0.01 * g * g);
          const double rate = 0.01 / (1 - std::pow(0.9, step)), root = std::sqrt(v.back() / (1 - std::pow(0.99, step)));
          p.push_back(parameter[i] * (1 - 0.01 * 0.1) - rate * m.back() / (root + 1e-8));
        }
        adamw({}, options, std::array{AdamWOperands{parameter, gradient, first, second}});
        const auto at = [](const std::vector<double>& x) {
          return [&x](std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
        };
        expect_elements(parameter, at(p), tolerance(dtype), tolerance(exact));
        expect_elements(first, at(m), tolerance(exact), tolerance(exact));
        expect_elements(second, at(v), tolerance(exact), tolerance(exact));
      }
    }
}

TEST(Sgd, FollowsItsRuleWithAndWithoutMomentum) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const std::int64_t n : sizes) {
          const DType exact = compute_dtype(dtype);
          TestArray parameter(dtype, {n}), gradient(dtype, {n}), buffer(exact, {n});  // the buffer begins as NaN
          parameter.random(random);
          for (int step = 0; step < 3; ++step) {
            gradient.random(random);
            const Sgd options{0.1, momentum, 0.01, 0.25, nesterov, step == 0, 2.0};
            std::vector<double> p, b;
            for (std::int64_t i = 0; i < n; ++i) {
              double g = 2.0 * gradient[i] + 0.01 * parameter[i];
              if (momentum != 0) {
                b.push_back(step == 0 ? g : momentum * buffer[i] + (1 - 0.25) * g);
                g = nesterov ? g + momentum * b.back() : b.back();
              }
              p.push_back(parameter[i] - 0.1 * g);
            }
            sgd({}, options, std::array{SgdOperands{parameter, gradient, momentum == 0 ? View{} : buffer.view()}});
            expect_elements(
                parameter, [&](std::int64_t i) { return p[static_cast<std::size_t>(i)]; }, tolerance(dtype),
                4 * tolerance(exact));
            if (momentum != 0)
              expect_elements(
                  buffer, [&](std::int64_t i) { return b[static_cast<std::size_t>(i)]; }, tolerance(exact),
                  8 * tolerance(exact));
          }
        }
}

TEST(AdamW, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray parameter(DType::f32, {70001}), gradient(DType::f32, {70001}), first(DType::f32, {70001}),
      second(DType::f32, {70001});
  gradient.random(random);
  expect_same_bits_for_any_thread_count(parameter, [&] {
    parameter.fill([](std::int64_t) { return 1.0; });
    adamw({}, {}, std::array{AdamWOperands{parameter, gradient, first.zero(), second.zero()}});
  });
}

/// One call of each kernel that takes a gradient scale, of the number or of what `there` points at.
std::vector<std::vector<std::uint8_t>> stepped(double number, const double* there) {
  std::mt19937_64 random(1);
  std::deque<TestArray> x;
  for (int i = 0; i < 10; ++i) x.emplace_back(DType::f32, Shape{33}).random(random, 0, 2);
  adamw({}, {.gradient_scale = number, .device_scale = there}, std::array{AdamWOperands{x[0], x[1], x[2], x[3]}});
  sgd({}, {.momentum = 0.9, .gradient_scale = number, .device_scale = there},
      std::array{SgdOperands{x[4], x[5], x[6]}});
  sgd({}, {.gradient_scale = number, .device_scale = there}, std::array{SgdOperands{x[7], x[5], View{}}});
  if (there != nullptr)
    weighted_sum({}, x[8], {.a = 0.75, .b = 0.3, .of_gradient = true, .device_scale = there}, x[8], x[9]);
  else
    axpby({}, x[8], 0.75, x[8], 0.3 * number, x[9]);
  std::vector<std::vector<std::uint8_t>> result;
  for (const TestArray& one : x) result.push_back(one.bytes());
  return result;
}

TEST(GradientScale, IsTheSameNumberFromMemory) {
  const double scale = 0.37;
  EXPECT_EQ(stepped(-1, &scale), stepped(scale, nullptr));
}

TEST(GradientScale, ThatIsNotANumberChangesNothing) {
  const double nothing = std::nan("");
  std::mt19937_64 random(1);
  const auto after = stepped(1, &nothing);
  for (const auto& bytes : after) EXPECT_EQ(bytes, TestArray(DType::f32, {33}).random(random, 0, 2).bytes());
}

TEST(WeightedSum, OfNumbersOfTheHostIsAxpby) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f64, {33}), y(DType::f64, {33}), one(DType::f64, {33}), other(DType::f64, {33});
  x.random(random), y.random(random);
  const double scale = 3;
  weighted_sum({}, one, {.a = 0.25, .b = -0.7, .device_scale = &scale}, x, y);  // y is no gradient
  axpby({}, other, 0.25, x, -0.7, y);
  EXPECT_EQ(one.bytes(), other.bytes());
}

}  // namespace
}  // namespace poolgrad::kernels
