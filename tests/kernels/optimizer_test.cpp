#include "kernels/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
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

/// Lookup in a vector of expected values.
auto at(const std::vector<double>& x) {
  return [&x](std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
}

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
        adamw({}, options, std::array{UpdateOperands{parameter, gradient, {first, second}}});
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
          TestArray parameter(dtype, {n}), gradient(dtype, {n}), buffer(exact, {n});  // the buffer starts as NaN
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
            sgd({}, options, std::array{UpdateOperands{parameter, gradient, {momentum == 0 ? View{} : buffer.view()}}});
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

TEST(AdamW, MatchesPyTorchAdamWithCoupledDecayAndAmsgrad) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const bool amsgrad : {false, true})
      for (const std::int64_t n : sizes) {
        const DType exact = compute_dtype(dtype);
        TestArray parameter(dtype, {n}), gradient(dtype, {n}), first(exact, {n}), second(exact, {n}), most(exact, {n});
        parameter.random(random);
        first.zero(), second.zero(), most.zero();
        for (std::int64_t step = 1; step <= 3; ++step) {
          gradient.random(random, -2.0 / static_cast<double>(step), 2.0 / static_cast<double>(step));
          const AdamW options{.learning_rate = 0.01,
                              .beta2 = 0.5,
                              .weight_decay = 0.25,
                              .step = step,
                              .gradient_scale = 0.5,
                              .coupled = true,
                              .amsgrad = amsgrad};
          std::vector<double> p, m, v, largest;
          for (std::int64_t i = 0; i < n; ++i) {
            const double g = gradient[i] * 0.5 + 0.25 * parameter[i];
            m.push_back(0.9 * first[i] + 0.1 * g);
            v.push_back(0.5 * second[i] + 0.5 * g * g);
            largest.push_back(std::max(most[i], v.back()));
            const double size = std::sqrt((amsgrad ? largest.back() : v.back()) / (1 - std::pow(0.5, step))) + 1e-8;
            p.push_back(parameter[i] - 0.01 / (1 - std::pow(0.9, step)) * m.back() / size);
          }
          adamw({}, options, std::array{UpdateOperands{parameter, gradient, {first, second, most}}});
          expect_elements(parameter, at(p), tolerance(dtype), 4 * tolerance(exact));
          expect_elements(first, at(m), 4 * tolerance(exact), 4 * tolerance(exact));
          expect_elements(second, at(v), 4 * tolerance(exact), 4 * tolerance(exact));
          if (amsgrad) expect_elements(most, at(largest), 4 * tolerance(exact), 4 * tolerance(exact));
        }
      }
}

TEST(RmsProp, FollowsItsRuleCenteredAndWithMomentum) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const bool centered : {false, true})
      for (const double momentum : {0.0, 0.9})
        for (const std::int64_t n : sizes) {
          const DType exact = compute_dtype(dtype);
          TestArray parameter(dtype, {n}), gradient(dtype, {n}), square(exact, {n}), mean(exact, {n}),
              buffer(exact, {n});
          parameter.random(random);
          square.zero(), mean.zero(), buffer.zero();
          for (int step = 0; step < 3; ++step) {
            gradient.random(random, 1, 3);
            const RmsProp options{.learning_rate = 0.01,
                                  .alpha = 0.75,
                                  .epsilon = 0.5,
                                  .weight_decay = 0.25,
                                  .momentum = momentum,
                                  .centered = centered,
                                  .gradient_scale = 2.0};
            std::vector<double> p, s, m, b;
            for (std::int64_t i = 0; i < n; ++i) {
              const double g = 2.0 * gradient[i] + 0.25 * parameter[i];
              s.push_back(0.75 * square[i] + 0.25 * g * g);
              m.push_back(0.75 * mean[i] + 0.25 * g);
              const double size = centered ? s.back() - m.back() * m.back() : s.back();
              b.push_back((momentum == 0 ? 0 : momentum * buffer[i]) + g / (std::sqrt(size) + 0.5));
              p.push_back(parameter[i] - 0.01 * b.back());
            }
            UpdateOperands one{parameter, gradient, {square}};
            std::size_t k = 1;
            if (centered) one.state[k++] = mean;
            if (momentum != 0) one.state[k] = buffer;
            rmsprop({}, options, std::array{one});
            expect_elements(parameter, at(p), tolerance(dtype), 8 * tolerance(exact));
            expect_elements(square, at(s), 4 * tolerance(exact));
            if (centered) expect_elements(mean, at(m), 4 * tolerance(exact));
            if (momentum != 0) expect_elements(buffer, at(b), 32 * tolerance(exact));
          }
        }
}

TEST(AddGradient, KeepsEveryAddendOfAHalfType) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::int64_t n : sizes) {
      TestArray sum(dtype, {n}), gradient(dtype, {n}), exact(DType::f32, {n});  // the state starts as NaN
      sum.fill([](std::int64_t) { return 1.0; });
      gradient.fill([](std::int64_t i) { return 1.0 / static_cast<double>(1 << (i % 4)); });
      for (int step = 0; step < 599; ++step)
        add_gradient({}, {.first = step == 0}, std::array{UpdateOperands{sum, gradient, {exact}}});
      const auto expected = [](std::int64_t i) { return 1 + 599.0 / static_cast<double>(1 << (i % 4)); };
      expect_elements(exact, expected, 0);
      expect_elements(sum, expected, tolerance(dtype));
    }
}

TEST(AddGradient, ContinuesFromAWrittenElement) {
  TestArray sum(DType::bf16, {3}), gradient(DType::bf16, {3}), exact(DType::f32, {3});
  sum.fill([](std::int64_t) { return 256.0; });
  gradient.fill([](std::int64_t) { return 1.0; });
  const auto add = [&](bool first) {
    add_gradient({}, {.first = first}, std::array{UpdateOperands{sum, gradient, {exact}}});
  };
  add(true);
  expect_elements(
      sum, [](std::int64_t) { return 256.0; }, 0);
  expect_elements(
      exact, [](std::int64_t) { return 257.0; }, 0);
  sum.fill([](std::int64_t i) { return i == 0 ? 256.0 : i == 1 ? 0.0 : nan; });
  add(false);
  expect_elements(
      exact, [](std::int64_t i) { return i == 0   ? 258.0
                                         : i == 1 ? 1.0
                                                  : nan; }, 0);
}

TEST(AdamW, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray parameter(DType::f32, {70001}), gradient(DType::f32, {70001}), first(DType::f32, {70001}),
      second(DType::f32, {70001});
  gradient.random(random);
  expect_same_bits_for_any_thread_count(parameter, [&] {
    parameter.fill([](std::int64_t) { return 1.0; });
    adamw({}, {}, std::array{UpdateOperands{parameter, gradient, {first.zero(), second.zero()}}});
  });
}

/// Calls each kernel that takes a gradient scale, with the number or with the scale at `there`.
std::vector<std::vector<std::uint8_t>> stepped(double number, const double* there) {
  std::mt19937_64 random(1);
  std::deque<TestArray> x;
  for (int i = 0; i < 13; ++i) x.emplace_back(DType::f32, Shape{33}).random(random, 0, 2);
  adamw({}, {.gradient_scale = number, .device_scale = there}, std::array{UpdateOperands{x[0], x[1], {x[2], x[3]}}});
  sgd({}, {.momentum = 0.9, .gradient_scale = number, .device_scale = there},
      std::array{UpdateOperands{x[4], x[5], {x[6]}}});
  sgd({}, {.gradient_scale = number, .device_scale = there}, std::array{UpdateOperands{x[7], x[5]}});
  rmsprop({}, {.gradient_scale = number, .device_scale = there}, std::array{UpdateOperands{x[10], x[11], {x[12]}}});
  if (there != nullptr)
    weighted_sum({}, x[8], {.a = 0.75, .b = 0.3, .of_gradient = true, .device_scale = there}, x[8], x[9]);
  else
    axpby({}, x[8], 0.75, x[8], 0.3 * number, x[9]);
  std::vector<std::vector<std::uint8_t>> result;
  for (const TestArray& one : x) result.push_back(one.bytes());
  return result;
}

TEST(GradientScale, GivesTheSameResultFromMemory) {
  const double scale = 0.37;
  EXPECT_EQ(stepped(-1, &scale), stepped(scale, nullptr));
}

TEST(GradientScale, ChangesNothingIfNaN) {
  const double nothing = std::nan("");
  std::mt19937_64 random(1);
  const auto after = stepped(1, &nothing);
  for (const auto& bytes : after) EXPECT_EQ(bytes, TestArray(DType::f32, {33}).random(random, 0, 2).bytes());
}

TEST(WeightedSum, EqualsAxpbyForHostNumbers) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f64, {33}), y(DType::f64, {33}), one(DType::f64, {33}), other(DType::f64, {33});
  x.random(random), y.random(random);
  const double scale = 3;
  weighted_sum({}, one, {.a = 0.25, .b = -0.7, .device_scale = &scale}, x, y);  // y is not a gradient
  axpby({}, other, 0.25, x, -0.7, y);
  EXPECT_EQ(one.bytes(), other.bytes());
}

}  // namespace
}  // namespace poolgrad::kernels
