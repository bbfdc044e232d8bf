#include "kernels/cpu/simd/simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace poolgrad::kernels::simd {
namespace {

/// Applies a vector function to one value; the other lanes hold other values.
template <class T, class F>
T one(F f, T x) {
  Vec<T> v = broadcast(T(0.5));
  const int lane = lanes<T> - 1;
  v[lane] = x;
  return f(v)[lane];
}

/// Largest relative error of f against `truth` in long double, at random points of [low, high].
template <class T, class F, class G>
double worst_error(F f, G truth, double low, double high) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(low, high);
  long double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    Vec<T> x{};
    for (int j = 0; j < lanes<T>; ++j) x[j] = static_cast<T>(uniform(random));
    const Vec<T> y = f(x);
    for (int j = 0; j < lanes<T>; ++j) {
      const long double exact = truth(static_cast<long double>(x[j]));
      if (exact == 0.0L) continue;
      worst = std::max(worst, std::abs((static_cast<long double>(y[j]) - exact) / exact));
    }
  }
  return static_cast<double>(worst);
}

const auto exp_of = [](auto x) { return simd::exp(x); };
const auto tanh_of = [](auto x) { return simd::tanh(x); };
const auto erf_of = [](auto x) { return simd::erf(x); };
const auto sigmoid_of = [](auto x) { return simd::sigmoid(x); };

TEST(Simd, ExpIsAccurateOverTheNormalRange) {
  const auto truth = [](long double x) { return std::exp(x); };
  EXPECT_LT(worst_error<float>(exp_of, truth, -87.0, 88.7), 2e-7);
  EXPECT_LT(worst_error<float>(exp_of, truth, -1.0, 1.0), 2e-7);
  EXPECT_LT(worst_error<double>(exp_of, truth, -708.0, 709.7), 4e-16);
  EXPECT_LT(worst_error<double>(exp_of, truth, -1.0, 1.0), 4e-16);
}

template <class T>
void exp_keeps_special_values() {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(one<T>(exp_of, T(0)), T(1));
  EXPECT_EQ(one<T>(exp_of, T(-0.0)), T(1));
  EXPECT_EQ(one<T>(exp_of, -infinity), T(0));
  EXPECT_EQ(one<T>(exp_of, infinity), infinity);
  EXPECT_EQ(one<T>(exp_of, std::numeric_limits<T>::lowest()), T(0));
  EXPECT_EQ(one<T>(exp_of, std::numeric_limits<T>::max()), infinity);
  EXPECT_TRUE(std::isnan(one<T>(exp_of, std::numeric_limits<T>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(one<T>(exp_of, -std::numeric_limits<T>::quiet_NaN())));
}
TEST(Simd, ExpKeepsSpecialValues) {
  exp_keeps_special_values<float>();
  exp_keeps_special_values<double>();
}

TEST(Simd, ExpUnderflowsGradually) {
  for (float x : {-88.0f, -95.0f, -103.0f, -103.9f}) {
    EXPECT_NEAR(one<float>(exp_of, x), std::exp(x), std::numeric_limits<float>::denorm_min()) << x;
  }
  for (double x : {-709.0, -730.0, -745.0, -745.2}) {
    EXPECT_NEAR(one<double>(exp_of, x), std::exp(x), std::numeric_limits<double>::denorm_min()) << x;
  }
}

TEST(Simd, TanhIsAccurateNearZeroAndInTheTails) {
  const auto truth = [](long double x) { return std::tanh(x); };
  for (double range : {1e-6, 1e-2, 0.4, 2.0, 12.0}) {
    EXPECT_LT(worst_error<float>(tanh_of, truth, -range, range), 4e-7) << range;
    EXPECT_LT(worst_error<double>(tanh_of, truth, -range, range), 8e-16) << range;
  }
  EXPECT_EQ(one<float>(tanh_of, std::numeric_limits<float>::infinity()), 1.0f);
  EXPECT_EQ(one<double>(tanh_of, -std::numeric_limits<double>::infinity()), -1.0);
  EXPECT_TRUE(std::signbit(one<float>(tanh_of, -0.0f)));
  EXPECT_TRUE(std::isnan(one<float>(tanh_of, std::numeric_limits<float>::quiet_NaN())));
}

TEST(Simd, ErfIsAccurateNearZeroAndInTheTails) {
  const auto truth = [](long double x) { return std::erf(x); };
  for (double range : {1e-6, 1e-2, 0.99, 2.0, 6.0}) {
    EXPECT_LT(worst_error<float>(erf_of, truth, -range, range), 4e-7) << range;
    EXPECT_LT(worst_error<double>(erf_of, truth, -range, range), 4e-16) << range;
  }
  EXPECT_EQ(one<float>(erf_of, std::numeric_limits<float>::infinity()), 1.0f);
  EXPECT_EQ(one<float>(erf_of, -std::numeric_limits<float>::infinity()), -1.0f);
  EXPECT_TRUE(std::isnan(one<float>(erf_of, std::numeric_limits<float>::quiet_NaN())));
}

TEST(Simd, SigmoidReachesItsLimits) {
  const auto truth = [](long double x) { return 1.0L / (1.0L + std::exp(-x)); };
  EXPECT_LT(worst_error<float>(sigmoid_of, truth, -80.0, 80.0), 4e-7);
  EXPECT_LT(worst_error<double>(sigmoid_of, truth, -700.0, 700.0), 8e-16);
  EXPECT_EQ(one<float>(sigmoid_of, -std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(one<float>(sigmoid_of, std::numeric_limits<float>::infinity()), 1.0f);
}

template <class S>
void converts_every_bit_pattern_like_the_scalar_type() {
  for (std::uint32_t word = 0; word < 0x10000; word += lanes<float>) {
    S source[lanes<float>];
    for (int i = 0; i < lanes<float>; ++i) source[i].bits = static_cast<std::uint16_t>(word + static_cast<unsigned>(i));
    const Vec<float> wide = load<float>(source);
    S back[lanes<float>];
    store(back, wide);
    for (int i = 0; i < lanes<float>; ++i) {
      const auto scalar = static_cast<float>(source[i]);
      if (std::isnan(scalar)) {
        EXPECT_TRUE(std::isnan(wide[i]) && std::isnan(static_cast<float>(back[i])));
      } else {
        ASSERT_EQ(wide[i], scalar);
        ASSERT_EQ(back[i].bits, source[i].bits);
      }
    }
  }
}
TEST(Simd, HalfTypesConvertEveryBitPatternLikeTheScalarTypes) {
  converts_every_bit_pattern_like_the_scalar_type<Half>();
  converts_every_bit_pattern_like_the_scalar_type<BFloat16>();
}

template <class S>
void rounds_like_the_scalar_type() {
  std::mt19937 random(11);
  for (int i = 0; i < 20000; ++i) {
    Vec<float> x{};
    for (int j = 0; j < lanes<float>; ++j) {
      const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      x[j] = std::isnan(value) ? 0.0f : value;
    }
    S out[lanes<float>];
    store(out, x);
    for (int j = 0; j < lanes<float>; ++j) ASSERT_EQ(out[j].bits, S(x[j]).bits) << x[j];
  }
}
TEST(Simd, HalfTypesRoundLikeTheScalarTypes) {
  rounds_like_the_scalar_type<Half>();
  rounds_like_the_scalar_type<BFloat16>();
}

TEST(Simd, PartialLoadsAndStoresTouchOnlyTheirElements) {
  for (int count = 0; count <= lanes<float>; ++count) {
    float memory[lanes<float>], out[lanes<float>];
    for (int i = 0; i < lanes<float>; ++i) memory[i] = static_cast<float>(i + 1), out[i] = -5.0f;
    const Vec<float> x = load_partial<float>(memory, count, -1.0f);
    store_partial(out, x, count);
    for (int i = 0; i < lanes<float>; ++i) {
      EXPECT_EQ(x[i], i < count ? memory[i] : -1.0f);
      EXPECT_EQ(out[i], i < count ? memory[i] : -5.0f);
    }
  }
}

TEST(Simd, SumAndMaxSeeEveryLane) {
  for (int hot = 0; hot < lanes<float>; ++hot) {
    Vec<float> x = broadcast(1.0f);
    x[hot] = 8.0f;
    EXPECT_EQ(sum<float>(x), static_cast<float>(lanes<float> - 1) + 8.0f);
    EXPECT_EQ(max_lane<float>(x), 8.0f);
  }
}

template <class T>
void transposes_a_register_block() {
  Vec<T> rows[lanes<T>];
  for (int i = 0; i < lanes<T>; ++i)
    for (int j = 0; j < lanes<T>; ++j) rows[i][j] = static_cast<T>(i * lanes<T> + j);
  transpose<T>(rows);
  for (int i = 0; i < lanes<T>; ++i)
    for (int j = 0; j < lanes<T>; ++j) EXPECT_EQ(rows[i][j], static_cast<T>(j * lanes<T> + i));
}
TEST(Simd, TransposesARegisterBlock) {
  transposes_a_register_block<float>();
  transposes_a_register_block<double>();
}

}  // namespace
}  // namespace poolgrad::kernels::simd
