#include "tensor/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing_support::error_of;

const double infinity = INFINITY, not_a_number = NAN;

TEST(AllClose, BoundsTheDifferenceByBothTolerances) {
  EXPECT_TRUE(allclose(from_data({100.001}, {1}), from_data({100.0}, {1}), 1e-5, 1e-8));
  EXPECT_FALSE(allclose(from_data({100.1}, {1}), from_data({100.0}, {1}), 1e-5, 1e-8));
  EXPECT_TRUE(allclose(from_data({1e-9}, {1}), from_data({0.0}, {1}), 0, 1e-8));
  EXPECT_TRUE(allclose(zeros({0}), zeros({0})));
  EXPECT_FALSE(allclose(zeros({2, 1}), zeros({2}))) << "no broadcasting";
}

TEST(AllClose, TreatsInfinityAndNanExactly) {
  EXPECT_TRUE(allclose(from_data({infinity, -infinity}, {2}), from_data({infinity, -infinity}, {2})));
  EXPECT_FALSE(allclose(from_data({infinity}, {1}), from_data({-infinity}, {1})));
  EXPECT_FALSE(allclose(from_data({1e300}, {1}), from_data({infinity}, {1})));
  EXPECT_FALSE(allclose(from_data({not_a_number}, {1}), from_data({not_a_number}, {1})));
  EXPECT_TRUE(allclose(from_data({not_a_number}, {1}), from_data({not_a_number}, {1}), 0, 0, true));
  EXPECT_FALSE(allclose(from_data({not_a_number}, {1}), from_data({0.0}, {1}), 1, 1, true));
  EXPECT_FALSE(allclose(from_data({not_a_number, 0.0}, {2}), from_data({not_a_number, 1.0}, {2}), 0, 0, true));
}

TEST(AllClose, ComparesMixedDtypesAndLargeIntegersExactly) {
  EXPECT_TRUE(allclose(from_data({1.0f, 2.0f}, {2}), from_data({1, 2}, {2}), 0, 0));
  EXPECT_FALSE(allclose(from_data({0.1f}, {1}), from_data({0.1}, {1}), 0, 0));
  const std::int64_t big = std::int64_t{1} << 60;
  EXPECT_FALSE(allclose(from_data({big}, {1}), from_data({big + 1}, {1}), 0, 0.5));
  EXPECT_TRUE(allclose(from_data({true}, {1}), from_data<std::uint8_t>({1}, {1}), 0, 0));
}

TEST(BitEqual, LooksAtEveryBit) {
  EXPECT_TRUE(bit_equal(from_data({not_a_number}, {1}), from_data({not_a_number}, {1})));
  EXPECT_FALSE(bit_equal(from_data({0.0}, {1}), from_data({-0.0}, {1})));
  EXPECT_FALSE(bit_equal(zeros({2}), zeros({2}, {.dtype = DType::i32})));
  EXPECT_FALSE(bit_equal(zeros({2}), zeros({1, 2})));
  const Tensor x = arange(0, 4).alias({{2, 2}, {2, 1}, 0});
  EXPECT_FALSE(bit_equal(x, x.alias(transposed(x.geometry(), 0, 1))));
  const Tensor t = x.alias(transposed(x.geometry(), 0, 1));
  EXPECT_TRUE(bit_equal(t, t.copy()));
}

TEST(MaxDifference, IsTheLargestOrNan) {
  EXPECT_EQ(max_difference(from_data({1.0, 5.0, 2.0}, {3}), from_data({1.5, 2.0, 2.0}, {3})), 3.0);
  EXPECT_TRUE(std::isnan(max_difference(from_data({not_a_number, 5.0}, {2}), from_data({1.0, 2.0}, {2}))));
  EXPECT_TRUE(std::isnan(max_difference(from_data({5.0, not_a_number, 9.0}, {3}), from_data({1.0, 2.0, 3.0}, {3}))));
  EXPECT_EQ(max_difference(from_data({infinity}, {1}), from_data({infinity}, {1})), 0.0);
  EXPECT_EQ(max_difference(from_data({infinity}, {1}), from_data({0.0}, {1})), infinity);
  EXPECT_EQ(max_difference(zeros({0}), zeros({0})), 0.0);
  EXPECT_EQ(error_of<ShapeError>([] { max_difference(zeros({2}), zeros({3})); }),
            "[max_difference] shapes differ: lhs (2,) f32 on cpu, rhs (3,) f32 on cpu");
}

TEST(RelativeError, IsTheRatioOfNorms) {
  EXPECT_DOUBLE_EQ(relative_error(from_data({3.0, 4.0}, {2}), from_data({0.0, 5.0}, {2})), std::sqrt(10.0) / 5);
  EXPECT_EQ(relative_error(zeros({3}), zeros({3})), 0.0);
  EXPECT_EQ(relative_error(ones({3}), zeros({3})), infinity);
  EXPECT_TRUE(std::isnan(relative_error(from_data({not_a_number}, {1}), ones({1}))));
  EXPECT_EQ(relative_error(from_data({-infinity, 5.0}, {2}), from_data({-infinity, 1.0}, {2})), 4.0);
  EXPECT_EQ(relative_error(from_data({-infinity, 1.0}, {2}), from_data({-infinity, 1.0}, {2})), 0.0);
  EXPECT_EQ(relative_error(from_data({1.0, 1.0}, {2}), from_data({-infinity, 1.0}, {2})), infinity);
  EXPECT_DOUBLE_EQ(relative_error(from_data({2e300}, {1}), from_data({1e300}, {1})), 1.0);
  EXPECT_DOUBLE_EQ(relative_error(from_data({2e-300}, {1}), from_data({1e-300}, {1})), 1.0);
}

TEST(TensorsNear, NamesTheWorstElementAndItsLimit) {
  const Tensor a = from_data({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, {2, 3});
  const Tensor b = from_data({1.0f, 2.0f, 3.5f, 4.0f, 5.25f, 6.0f}, {2, 3});
  const Verdict verdict = tensors_near(a, b);
  EXPECT_FALSE(verdict);
  EXPECT_EQ(verdict.text,
            "tensors differ in 2 of 6 elements, most at (0, 2)\n"
            "  lhs         3  of (2, 3) f64 on cpu\n"
            "  rhs         3.5  of (2, 3) f32 on cpu\n"
            "  difference  0.5  (allowed: 1e-05 + 1.3e-06 |rhs|)");
  EXPECT_EQ(tensors_near(a, a.copy()).text, "tensors are near: 6 elements, largest difference 0 at (0, 0)");
  EXPECT_EQ(tensors_near(zeros({0, 3}), zeros({0, 3})).text, "tensors are near: they are empty");
}

TEST(TensorsNear, AllowsTheRoundingOfTheCoarserDtype) {
  const struct {
    DType dtype;
    double allowed;  // at 1: absolute + relative
  } types[] = {{DType::f64, 2e-7}, {DType::f32, 1.13e-5}, {DType::f16, 1.01e-3}, {DType::bf16, 1.601e-2}};
  for (const auto& [dtype, allowed] : types) {
    const Tensor one = ones({1}, {.dtype = dtype});
    EXPECT_TRUE(tensors_near(from_data({1.0 + 0.99 * allowed}, {1}), one)) << to_string(dtype);
    EXPECT_FALSE(tensors_near(from_data({1.0 + 1.01 * allowed}, {1}), one)) << to_string(dtype);
    EXPECT_TRUE(tensors_near(one, from_data({1.0 + 0.98 * allowed}, {1}))) << to_string(dtype);
  }
  const Tensor x = from_data({100.0}, {1}), y = from_data({100.5}, {1});
  EXPECT_TRUE(tensors_near(x, y, 0.5));
  EXPECT_FALSE(tensors_near(x, y, 0.49));
  EXPECT_TRUE(tensors_near(x, y, {.relative = 0.005}));
  EXPECT_FALSE(tensors_near(x, y, {.relative = 0.0049}));
}

TEST(TensorsNear, RejectAnInvalidTolerance) {
  const Tensor x = ones({1}), y = from_data({9.0}, {1});
  for (const double none : {-1.0, not_a_number}) {
    EXPECT_FALSE(tensors_near(x, y, none));
    EXPECT_FALSE(tensors_near(x, y, {.relative = none}));
  }
  EXPECT_EQ(tensors_near(x, y, -1.0).text, "tensors cannot be compared: tolerances are numbers from 0 on: -1 and 0");
}

TEST(TensorsNear, DistinguishesIntegersBeyondF64) {
  const std::int64_t big = (std::int64_t{1} << 60) + 1;
  EXPECT_EQ(tensors_near(from_data({big}, {1}), from_data({big - 1}, {1})).text,
            "tensors differ in 1 of 1 elements, most at (0,)\n"
            "  lhs         1152921504606846977  of (1,) i64 on cpu\n"
            "  rhs         1152921504606846976  of (1,) i64 on cpu\n"
            "  difference  1  (allowed: 0 + 0 |rhs|)");
}

TEST(TensorsNear, MatchesNonFiniteValuesExactly) {
  const Tensor x = from_data({infinity, -infinity, 1.0}, {3});
  EXPECT_TRUE(tensors_near(x, x.copy()));
  EXPECT_FALSE(tensors_near(from_data({infinity}, {1}), from_data({-infinity}, {1}), 1.0));
  EXPECT_FALSE(tensors_near(from_data({1e300}, {1}), from_data({infinity}, {1}), {.relative = 1.0}));
  const Tensor nan = from_data({9.0, not_a_number}, {2}), other = from_data({8.0, not_a_number}, {2});
  EXPECT_NE(tensors_near(nan, other).text.find("in 2 of 2 elements, most at (1,)\n  lhs         nan"),
            std::string::npos);
  EXPECT_TRUE(tensors_near(nan, nan.copy(), {.equal_nan = true}));
  EXPECT_FALSE(tensors_near(nan, other, {.equal_nan = true}));
  EXPECT_FALSE(tensors_near(nan, from_data({9.0, 1.0}, {2}), {.equal_nan = true}));
}

TEST(TensorsNear, ExplainsIncomparableTensors) {
  EXPECT_EQ(tensors_near(zeros({2, 3}), zeros({3, 2})).text,
            "tensors differ in shape: lhs (2, 3) f32 on cpu, rhs (3, 2) f32 on cpu");
  EXPECT_FALSE(tensors_near(zeros({2, 1}), zeros({2}))) << "no broadcasting";
  EXPECT_EQ(tensors_near(zeros({2}), Tensor()).text, "tensors cannot be compared: rhs is undefined");
  EXPECT_EQ(tensors_near(zeros({2}, {.device = {DeviceType::sim, 0}}), zeros({2})).text,
            "tensors cannot be compared: lhs (2,) f32 on sim:0 has no numbers");
}

}  // namespace
}  // namespace poolgrad
