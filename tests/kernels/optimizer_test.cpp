#include "kernels/optimizer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

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

}  // namespace
}  // namespace poolgrad::kernels
