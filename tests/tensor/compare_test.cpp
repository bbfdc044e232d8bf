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
  EXPECT_TRUE(all_close(from_data({100.001}, {1}), from_data({100.0}, {1}), 1e-5, 1e-8));
  EXPECT_FALSE(all_close(from_data({100.1}, {1}), from_data({100.0}, {1}), 1e-5, 1e-8));
  EXPECT_TRUE(all_close(from_data({1e-9}, {1}), from_data({0.0}, {1}), 0, 1e-8));
  EXPECT_TRUE(all_close(zeros({0}), zeros({0})));
  EXPECT_FALSE(all_close(zeros({2, 1}), zeros({2}))) << "no broadcasting";
}

TEST(AllClose, TreatsInfinityAndNanExactly) {
  EXPECT_TRUE(all_close(from_data({infinity, -infinity}, {2}), from_data({infinity, -infinity}, {2})));
  EXPECT_FALSE(all_close(from_data({infinity}, {1}), from_data({-infinity}, {1})));
  EXPECT_FALSE(all_close(from_data({1e300}, {1}), from_data({infinity}, {1})));
  EXPECT_FALSE(all_close(from_data({not_a_number}, {1}), from_data({not_a_number}, {1})));
  EXPECT_TRUE(all_close(from_data({not_a_number}, {1}), from_data({not_a_number}, {1}), 0, 0, true));
  EXPECT_FALSE(all_close(from_data({not_a_number}, {1}), from_data({0.0}, {1}), 1, 1, true));
  EXPECT_FALSE(all_close(from_data({not_a_number, 0.0}, {2}), from_data({not_a_number, 1.0}, {2}), 0, 0, true));
}

TEST(AllClose, ComparesMixedDtypesAndLargeIntegersExactly) {
  EXPECT_TRUE(all_close(from_data({1.0f, 2.0f}, {2}), from_data({1, 2}, {2}), 0, 0));
  EXPECT_FALSE(all_close(from_data({0.1f}, {1}), from_data({0.1}, {1}), 0, 0));
  const std::int64_t big = std::int64_t{1} << 60;
  EXPECT_FALSE(all_close(from_data({big}, {1}), from_data({big + 1}, {1}), 0, 0.5));
  EXPECT_TRUE(all_close(from_data({true}, {1}), from_data<std::uint8_t>({1}, {1}), 0, 0));
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

TEST(MaxDifference, IsTheLargestAndNanWins) {
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
  EXPECT_DOUBLE_EQ(relative_error(from_data({2e300}, {1}), from_data({1e300}, {1})), 1.0);
  EXPECT_DOUBLE_EQ(relative_error(from_data({2e-300}, {1}), from_data({1e-300}, {1})), 1.0);
}

}  // namespace
}  // namespace poolgrad
