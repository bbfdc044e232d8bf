#include "kernels/functors/trigonometry.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/simd/vector_math.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels {
namespace {

constexpr double ulp = std::numeric_limits<double>::epsilon();

void expect_close(double found, long double exact, double ulps, double x) {
  EXPECT_LE(std::abs(static_cast<long double>(found) - exact), ulps * ulp * std::abs(exact)) << x;
}

void expect_true_of(double x) {
  const auto [sine, cosine] = sine_cosine(x);
  const long double exact = x;
  expect_close(sine, std::sin(exact), 2.5, x);
  expect_close(cosine, std::cos(exact), 2.5, x);
  expect_close(Math<double>::tan(x), std::tan(exact), 4, x);
}

/// Doubles of every magnitude.
std::vector<double> numbers() {
  std::mt19937_64 random(test_seed());
  std::vector<double> all;
  while (all.size() < 100'000)
    if (const auto x = std::bit_cast<double>(random()); std::isfinite(x) && std::abs(x) > 1e-300) all.push_back(x);
  return all;
}

TEST(Trigonometry, IsAccurateForNumbersOfEverySize) {
  for (const double x : numbers()) expect_true_of(x);
  expect_true_of(std::numeric_limits<double>::max());
}

TEST(Trigonometry, IsAccurateNearMultiplesOfAQuarterTurn) {
  for (int quarters = 1; quarters < 3'000'000; quarters += 7) expect_true_of(quarters * 1.5707963267948966);
  expect_true_of(0x1.6ac5b262ca1ffp+849);  // the double nearest to a multiple of pi / 2 (Muller 2006)
}

TEST(Trigonometry, AngleAndItsNegativeDifferInTheSignOfTheSineOnly) {
  for (const double x : numbers()) {
    const auto [sine, cosine] = sine_cosine(x);
    const auto [other_sine, other_cosine] = sine_cosine(-x);
    EXPECT_EQ(sine, -other_sine) << x;
    EXPECT_EQ(cosine, other_cosine) << x;
  }
}

TEST(Trigonometry, IgnoresANaNInAnotherLane) {
  using V = simd::Vec<double>;
  for (int far = 0; far < simd::lanes<double>; ++far)
    for (int nan = 0; nan < simd::lanes<double>; ++nan) {
      if (nan == far) continue;
      V x{};
      x[far] = 1e22;
      x[nan] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_EQ(Math<V>::sin(x)[far], Math<double>::sin(1e22)) << far << " " << nan;
    }
}

TEST(Trigonometry, LanesOfVectorsHaveTheBitsOfNumbers) {
  using V = simd::Vec<double>;
  const std::vector<double> all = numbers();
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<double> near(-1e6, 1e6);
  for (std::size_t i = 0; i + simd::lanes<double> <= all.size(); i += simd::lanes<double>)
    for (const bool far : {false, true}) {
      V x{};
      for (int lane = 0; lane < simd::lanes<double>; ++lane)
        x[lane] = far ? all[i + static_cast<std::size_t>(lane)] : near(random);
      const V sines = Math<V>::sin(x), cosines = Math<V>::cos(x), tangents = Math<V>::tan(x);
      for (int lane = 0; lane < simd::lanes<double>; ++lane) {
        EXPECT_EQ(sines[lane], Math<double>::sin(x[lane])) << x[lane];
        EXPECT_EQ(cosines[lane], Math<double>::cos(x[lane])) << x[lane];
        EXPECT_EQ(tangents[lane], Math<double>::tan(x[lane])) << x[lane];
      }
    }
}

TEST(Trigonometry, ZeroKeepsItsSign) {
  using V = simd::Vec<double>;
  for (const double zero : {0.0, -0.0}) {
    const V x = simd::broadcast(zero);
    for (const double found :
         {Math<double>::sin(zero), Math<double>::tan(zero), Math<V>::sin(x)[0], Math<V>::tan(x)[0]}) {
      EXPECT_EQ(found, 0.0);
      EXPECT_EQ(std::signbit(found), std::signbit(zero));
    }
  }
}

TEST(Trigonometry, GivesNaNForInfinityAndNaN) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double x : {infinity, -infinity, nan}) {
    EXPECT_TRUE(std::isnan(sine_cosine(x).sine)) << x;
    EXPECT_TRUE(std::isnan(sine_cosine(x).cosine)) << x;
  }
}

}  // namespace
}  // namespace poolgrad::kernels
