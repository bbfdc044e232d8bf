#include "kernels/cpu/simd/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

/// Largest error of f at random points of [low, high]: relative to the truth or, below 1, absolute.
template <class T, class F, class Truth>
double worst_error(const F& f, const Truth& truth, double low, double high, bool relative = true) {
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<double> uniform(low, high);
  long double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    simd::Vec<T> x{};
    for (int lane = 0; lane < simd::lanes<T>; ++lane) x[lane] = static_cast<T>(uniform(random));
    const simd::Vec<T> y = f(x);
    for (int lane = 0; lane < simd::lanes<T>; ++lane) {
      const long double exact = truth(static_cast<long double>(x[lane]));
      const long double error = std::abs(static_cast<long double>(y[lane]) - exact);
      worst = std::max(worst, relative ? error / std::abs(exact) : error);
    }
  }
  return static_cast<double>(worst);
}

template <class T>
struct VectorMath : public ::testing::Test {
  static constexpr double ulp = std::numeric_limits<T>::epsilon();
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(VectorMath, Types);

TYPED_TEST(VectorMath, LogarithmIsWithinTwoUlps) {
  using M = Math<simd::Vec<TypeParam>>;
  const auto f = [](auto x) { return M::log(x); };
  const auto truth = [](long double x) { return std::log(x); };
  EXPECT_LT(worst_error<TypeParam>(f, truth, 1e-30, 1e-28), 2 * this->ulp);
  EXPECT_LT(worst_error<TypeParam>(f, truth, 1e-3, 3), 2 * this->ulp);
  EXPECT_LT(worst_error<TypeParam>(f, truth, 0.99, 1.01), 2 * this->ulp);
  EXPECT_LT(worst_error<TypeParam>(f, truth, 1e3, 1e30), 2 * this->ulp);
}

TYPED_TEST(VectorMath, LogarithmSupportsSubnormals) {
  using T = TypeParam;
  const T smallest = std::numeric_limits<T>::denorm_min();
  const T result = Math<simd::Vec<T>>::log(simd::broadcast(smallest))[0];
  EXPECT_NEAR(result, std::log(smallest), std::abs(result) * 2 * this->ulp);
}

TYPED_TEST(VectorMath, Log1pAndExpm1KeepTheirAccuracyNearZero) {
  using M = Math<simd::Vec<TypeParam>>;
  for (const double reach : {1e-10, 1e-3, 0.5}) {
    EXPECT_LT(worst_error<TypeParam>([](auto x) { return M::log1p(x); }, [](long double x) { return std::log1p(x); },
                                     -reach, reach),
              4 * this->ulp);
    EXPECT_LT(worst_error<TypeParam>([](auto x) { return M::expm1(x); }, [](long double x) { return std::expm1(x); },
                                     -reach, reach),
              4 * this->ulp);
  }
  EXPECT_LT(
      worst_error<TypeParam>([](auto x) { return M::expm1(x); }, [](long double x) { return std::expm1(x); }, -60, 80),
      4 * this->ulp);
}

TYPED_TEST(VectorMath, SineAndCosineAreAccurateFarFromZero) {
  using M = Math<simd::Vec<TypeParam>>;
  for (const double reach : {1.0, 10.0, 1e4, 1e6, 1e8}) {
    EXPECT_LT(worst_error<TypeParam>([](auto x) { return M::sin(x); }, [](long double x) { return std::sin(x); },
                                     -reach, reach, false),
              this->ulp);
    EXPECT_LT(worst_error<TypeParam>([](auto x) { return M::cos(x); }, [](long double x) { return std::cos(x); },
                                     -reach, reach, false),
              this->ulp);
  }
}

TYPED_TEST(VectorMath, PowerAgreesWithTheStandardLibraryAtAllSpecialPoints) {
  using T = TypeParam;
  const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const T points[] = {0,      -T(0),   1,  -1,  T(0.5),   T(-0.5),   2,   -2,        3,          -3,
                      T(2.5), T(-2.5), 40, -41, infinity, -infinity, nan, T(0x1p30), T(-0x1p24), T(0x1p24) - 1};
  for (const T x : points)
    for (const T y : points) {
      const T actual = Math<simd::Vec<T>>::pow(simd::broadcast(x), simd::broadcast(y))[1], wanted = std::pow(x, y);
      if (std::isnan(wanted)) {
        EXPECT_TRUE(std::isnan(actual)) << x << "^" << y;
      } else {
        EXPECT_TRUE(testing::close(actual, wanted, 2 * this->ulp)) << x << "^" << y << ": " << actual << " " << wanted;
        EXPECT_EQ(std::signbit(actual), std::signbit(wanted)) << x << "^" << y;
      }
    }
}

TYPED_TEST(VectorMath, RoundingGoesToTheEvenNeighbourAndKeepsTheSignOfZero) {
  using T = TypeParam;
  using M = Math<simd::Vec<TypeParam>>;
  const T large = T(1) / std::numeric_limits<T>::epsilon();
  for (const T x : {T(0), T(-0.0), T(0.5), T(-0.5), T(1.5), T(2.5), T(-2.5), T(0.3), T(-0.3), T(-0.7), large + 1,
                    large / 2 + T(0.5), -large * 8, std::numeric_limits<T>::infinity()}) {
    const auto check = [&](T actual, T wanted) {
      EXPECT_EQ(actual, wanted) << x;
      EXPECT_EQ(std::signbit(actual), std::signbit(wanted)) << x;
    };
    check(M::round(simd::broadcast(x))[0], std::nearbyint(x));
    check(M::floor(simd::broadcast(x))[0], std::floor(x));
    check(M::ceil(simd::broadcast(x))[0], std::ceil(x));
    if (x >= 0) check(M::sqrt(simd::broadcast(x))[0], std::sqrt(x));
  }
}

}  // namespace
}  // namespace poolgrad::kernels
