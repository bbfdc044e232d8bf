#include "tensor/creation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/parallel.h"
#include "tensor/compare.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing_support::all_dtypes;
using testing_support::error_of;

TEST(Creation, FillsWithOneValueInEveryDtype) {
  for (const DType dtype : all_dtypes) {
    EXPECT_THAT(zeros({2, 3}, {.dtype = dtype}).to_vector<double>(), Each(0.0));
    EXPECT_THAT(ones({2, 3}, {.dtype = dtype}).to_vector<double>(), Each(1.0));
    EXPECT_EQ(zeros_like(ones({2}, {.dtype = dtype})).dtype(), dtype);
    EXPECT_EQ(ones_like(zeros({3, 2}, {.dtype = dtype})).shape(), (Shape{3, 2}));
  }
  EXPECT_THAT(full({3}, -2.5).to_vector<float>(), ElementsAre(-2.5f, -2.5f, -2.5f));
  EXPECT_EQ(scalar(3).shape(), Shape{});
  EXPECT_EQ(zeros({0}).numel(), 0);
}

TEST(Linspace, EndsExactlyAtTheGivenEnd) {
  EXPECT_THAT(linspace(0, 1, 5).to_vector<float>(), ElementsAre(0, 0.25f, 0.5f, 0.75f, 1));
  EXPECT_THAT(linspace(2, -1, 4).to_vector<float>(), ElementsAre(2, 1, 0, -1));
  EXPECT_THAT(linspace(3, 9, 1).to_vector<float>(), ElementsAre(3));
  EXPECT_EQ(linspace(3, 9, 0).numel(), 0);
  EXPECT_EQ(linspace(0.0, 0.1, 1000, {.dtype = DType::f64}).to_vector<double>().back(), 0.1);
  EXPECT_EQ(error_of<ValueError>([] { linspace(0, 1, -1); }),
            "[linspace] no finite range: start 0, stop 1, elements -1");
  EXPECT_THROW(linspace(0, INFINITY, 3), ValueError);
  EXPECT_THAT(linspace(-1e308, 1e308, 3, {.dtype = DType::f64}).to_vector<double>(), ElementsAre(-1e308, 0, 1e308));
  EXPECT_EQ(error_of<ValueError>([] { linspace(0, 300, 4, {.dtype = DType::u8}); }),
            "[linspace] 300 does not fit into u8");
  EXPECT_THAT(linspace(0, 255.5, 3, {.dtype = DType::u8}).to_vector<std::uint8_t>(), ElementsAre(0, 127, 255));
}

TEST(Eye, HasOnesOnOneDiagonal) {
  EXPECT_THAT(eye(2).to_vector<float>(), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(eye(2, 3, 1, {.dtype = DType::i64}).to_vector<std::int64_t>(), ElementsAre(0, 1, 0, 0, 0, 1));
  EXPECT_THAT(eye(3, 2, -2).to_vector<float>(), ElementsAre(0, 0, 0, 0, 1, 0));
  EXPECT_THAT(eye(2, 2, 5).to_vector<float>(), Each(0.0f));
  EXPECT_EQ(eye(0).numel(), 0);
  EXPECT_THROW(eye(-1, 2), ShapeError);
  EXPECT_THROW(eye(2, -2), ShapeError);
}

TEST(Arange, IsExactForIntegersBeyond2To53) {
  constexpr std::int64_t big = std::int64_t{1} << 53, most = std::numeric_limits<std::int64_t>::max();
  const TensorOptions i64{.dtype = DType::i64};
  const auto integers = [](const Tensor& x) { return x.to_vector<std::int64_t>(); };
  EXPECT_THAT(integers(arange(0x1p53, 0x1p53 + 4, 1, i64)), ElementsAre(big, big + 1, big + 2, big + 3));
  EXPECT_THAT(integers(arange(big + 1, big + 4, 1, i64)), ElementsAre(big + 1, big + 2, big + 3));
  EXPECT_THAT(integers(arange(-big - 1, -big - 6, -2, i64)), ElementsAre(-big - 1, -big - 3, -big - 5));
  EXPECT_THAT(integers(arange(most - 1, most, 1, i64)), ElementsAre(most - 1));
  EXPECT_THAT(integers(arange(-most - 1, most, most, i64)), ElementsAre(-most - 1, -1, most - 1));
  EXPECT_THAT(integers(arange(most, -most - 1, -most, i64)), ElementsAre(most, 0, -most));
  EXPECT_THAT(integers(arange(0, 2.5, 1, i64)), ElementsAre(0, 1, 2));
  EXPECT_THAT(integers(arange(0, -2.5, -1, i64)), ElementsAre(0, -1, -2));
  EXPECT_EQ(arange(big, big, 1, i64).numel(), 0);
  EXPECT_EQ(arange(big, 0, 1, i64).numel(), 0);
  EXPECT_THROW(arange(-most, most, 1, i64), ValueError);
  EXPECT_THROW(arange(0, big, big - 1, {.dtype = DType::i32}), ValueError);
}

TEST(Linspace, IsExactForIntegersBeyond2To53) {
  constexpr std::int64_t big = std::int64_t{1} << 53, most = std::numeric_limits<std::int64_t>::max();
  const TensorOptions i64{.dtype = DType::i64};
  const auto integers = [](const Tensor& x) { return x.to_vector<std::int64_t>(); };
  EXPECT_THAT(integers(linspace(big + 1, big + 4, 4, i64)), ElementsAre(big + 1, big + 2, big + 3, big + 4));
  EXPECT_THAT(integers(linspace(-most, most, 3, i64)), ElementsAre(-most, 0, most));
  EXPECT_THAT(integers(linspace(most, most - 3, 3, i64)), ElementsAre(most, most - 2, most - 3)) << "cut towards 0";
  EXPECT_THAT(integers(linspace(-1, 1, 6, i64)), ElementsAre(-1, 0, 0, 0, 0, 1));
  EXPECT_THAT(integers(linspace(big + 1, 0, 1, i64)), ElementsAre(big + 1));
}

TEST(Creation, RoundsOnceToHalfTypes) {
  EXPECT_EQ(full({2}, 2049.0000001, {.dtype = DType::f16}).to_vector<double>()[1], 2050.0);
  EXPECT_EQ(scalar(1.003906251, {.dtype = DType::bf16}).item(), 1.0078125);
  EXPECT_EQ(zeros({1}, {.dtype = DType::bf16}).fill(1.003906251).item(), 1.0078125);
  EXPECT_EQ(arange(1.003906251, 2, 1, {.dtype = DType::bf16}).item(), 1.0078125);
  EXPECT_EQ(linspace(1.003906251, 2.0, 2, {.dtype = DType::bf16}).to_vector<double>()[0], 1.0078125);
}

TEST(Arange, StopsBelowItsBound) {
  EXPECT_THAT(arange(0, 4).to_vector<float>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(arange(1, 2, 0.25, {.dtype = DType::f64}).to_vector<double>(), ElementsAre(1, 1.25, 1.5, 1.75));
  EXPECT_THAT(arange(3, 0, -2, {.dtype = DType::i64}).to_vector<std::int64_t>(), ElementsAre(3, 1));
  EXPECT_EQ(arange(0, 1, 0.3).numel(), 4);
  EXPECT_EQ(arange(5, 5).numel(), 0);
  EXPECT_EQ(arange(5, 1).numel(), 0);
}

TEST(Arange, RejectsNumbersOutsideTheDtype) {
  EXPECT_THAT(arange(250, 256, 1, {.dtype = DType::u8}).to_vector<std::uint8_t>(), ::testing::SizeIs(6));
  EXPECT_EQ(error_of<ValueError>([] { arange(250, 257, 1, {.dtype = DType::u8}); }),
            "[arange] 256 does not fit into u8");
  EXPECT_EQ(error_of<ValueError>([] { arange(0, 2, 0.5, {.dtype = DType::i64}); }),
            "[arange] 0.5 does not fit into i64");
  EXPECT_EQ(error_of<ValueError>([] { arange(0, 1e9, 1e9 - 1, {.dtype = DType::u8}); }),
            "[arange] 999999999 does not fit into u8");
  EXPECT_EQ(arange(300, 300, 0.5, {.dtype = DType::u8}).numel(), 0);
}

TEST(Arange, RejectsInfiniteRanges) {
  EXPECT_EQ(error_of<ValueError>([] { arange(0, 1, 0); }), "[arange] no finite range: start 0, stop 1, step 0");
  EXPECT_THROW(arange(0, INFINITY), ValueError);
  EXPECT_THROW(arange(NAN, 1), ValueError);
  EXPECT_THROW(arange(0, 1, NAN), ValueError);
  EXPECT_THROW(arange(0, 1e300), ValueError);
}

TEST(FromData, CopiesValuesOfEveryType) {
  EXPECT_THAT(from_data({1.0, 2.0}, {2}).to_vector<double>(), ElementsAre(1, 2));
  EXPECT_EQ(from_data({1.0f}, {1}).dtype(), DType::f32);
  EXPECT_EQ(from_data({Half(1.5f)}, {1}).dtype(), DType::f16);
  EXPECT_EQ(from_data({BFloat16(1.5f)}, {1}).item(), 1.5);
  EXPECT_EQ(from_data<std::int64_t>({1, 2, 3, 4}, {2, 2}).dtype(), DType::i64);
  EXPECT_EQ(from_data<std::uint8_t>({255}, {}).item(), 255);
  EXPECT_THAT(from_data({true, false}, {2}).to_vector<bool>(), ElementsAre(true, false));
  EXPECT_EQ(from_data(std::vector<float>{}, {0, 3}).shape(), (Shape{0, 3}));
  EXPECT_EQ(error_of<ShapeError>([] { from_data({1, 2, 3}, {2, 2}); }), "[from_data] 3 values for shape (2, 2)");
}

TEST(Random, DependsOnSeedAndIndexAlone) {
  Generator one(42), two(42), other(43);
  const Tensor whole = randn({1000}, {}, one);
  const Tensor first = randn({10, 30}, {}, two), second = randn({700}, {}, two);
  EXPECT_TRUE(bit_equal(whole.alias({{10, 30}, {30, 1}, 0}), first));
  EXPECT_TRUE(bit_equal(whole.alias({{700}, {1}, 300}), second));
  EXPECT_FALSE(bit_equal(whole, randn({1000}, {}, other)));
  EXPECT_FALSE(bit_equal(whole, randn({1000}, {}, one))) << "the generator has moved on";
}

TEST(Random, DoesNotDependOnTheNumberOfThreads) {
  const int threads = kernels::num_threads();
  const auto draw = [](int count) {
    kernels::set_num_threads(count);
    Generator generator(7);
    return std::vector<Tensor>{randn({50000}, {}, generator), rand({50000}, -1, 1, {}, generator),
                               randint(0, 256, {50000}, {.dtype = DType::i64}, generator)};
  };
  const std::vector<Tensor> alone = draw(1), together = draw(3);
  kernels::set_num_threads(threads);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(bit_equal(alone[i], together[i])) << i;
}

TEST(Random, RoundsTheSameNumbersToOtherDtypes) {
  for (const auto draw : {+[](TensorOptions options, Generator&g) { return randn({500}, options, g); },
                          +[](TensorOptions options, Generator&g) { return rand({500}, -3, 5, options, g); }}) {
    Generator exact(3);
    const Tensor reference = draw({.dtype = DType::f64}, exact);
    for (const auto& [dtype, epsilon] : {std::pair{DType::f32, 1e-6}, {DType::f16, 1e-3}, {DType::bf16, 8e-3}}) {
      Generator again(3);
      EXPECT_TRUE(allclose(draw({.dtype = dtype}, again), reference, epsilon, epsilon)) << to_string(dtype);
    }
  }
}

TEST(Random, NormalAndUniformHaveTheirMoments) {
  constexpr std::int64_t n = 200000;
  Generator generator(1);
  const auto moments = [](const Tensor& x) {
    double mean = 0, square = 0;
    for (const double value : x.to_vector<double>()) mean += value / n, square += value * value / n;
    return std::pair(mean, square - mean * mean);
  };
  const auto [mean, variance] = moments(randn({n}, {}, generator));
  EXPECT_NEAR(mean, 0, 0.01);
  EXPECT_NEAR(variance, 1, 0.02);
  const Tensor x = rand({n}, 2, 4, {}, generator);
  const auto [middle, spread] = moments(x);
  EXPECT_NEAR(middle, 3, 0.01);
  EXPECT_NEAR(spread, 1.0 / 3, 0.01);
  EXPECT_THAT(x.to_vector<float>(), Each(testing::AllOf(testing::Ge(2.0f), testing::Lt(4.0f))));
}

TEST(Random, RandintCoversItsRangeEvenly) {
  Generator generator(5);
  const Tensor x = randint(-3, 4, {70000}, {.dtype = DType::i64}, generator);
  std::vector<int> seen(7);
  for (const std::int64_t value : x.to_vector<std::int64_t>()) {
    ASSERT_GE(value, -3);
    ASSERT_LT(value, 4);
    ++seen[static_cast<std::size_t>(value + 3)];
  }
  EXPECT_THAT(seen, Each(testing::AllOf(testing::Gt(9500), testing::Lt(10500))));
  EXPECT_THAT(randint(9, 10, {20}).to_vector<std::int64_t>(), Each(9));
  EXPECT_EQ(randint(0, 256, {4}, {.dtype = DType::u8}).dtype(), DType::u8);
}

TEST(Random, RandintStaysBelowTheLargestBounds) {
  constexpr std::int64_t limit = std::int64_t{1} << 52;
  Generator generator(6);
  for (const std::int64_t value :
       randint(-limit, limit, {1000}, {.dtype = DType::i64}, generator).to_vector<std::int64_t>()) {
    ASSERT_GE(value, -limit);
    ASSERT_LT(value, limit);
  }
  EXPECT_EQ(error_of<ValueError>([] { randint(3, 3, {1}); }),
            "[randint] needs low < high within +-2^52: low 3, high 3");
  EXPECT_THROW(randint(0, limit + 1, {1}), ValueError);
  EXPECT_EQ(error_of<ValueError>([] { randint(0, 300, {1}, {.dtype = DType::bf16}); }),
            "[randint] bf16 does not hold every whole number from 0 to 299");
  const auto holds = [](DType dtype, std::int64_t low, std::int64_t high) {
    try {
      return randint(low, high, {1}, {.dtype = dtype}).numel() == 1;
    } catch (const ValueError&) {
      return false;
    }
  };
  const auto expect_last = [&](DType dtype, std::int64_t least, std::int64_t most) {
    EXPECT_TRUE(holds(dtype, least, most + 1)) << to_string(dtype);
    EXPECT_FALSE(holds(dtype, least - 1, most + 1)) << to_string(dtype);
    EXPECT_FALSE(holds(dtype, least, most + 2)) << to_string(dtype);
  };
  expect_last(DType::bf16, -256, 256);
  expect_last(DType::f16, -2048, 2048);
  expect_last(DType::f32, -(1 << 24), 1 << 24);
  expect_last(DType::u8, 0, 255);
  expect_last(DType::boolean, 0, 1);
  expect_last(DType::i32, -(std::int64_t{1} << 31), (std::int64_t{1} << 31) - 1);
  EXPECT_THROW(randint(-limit - 1, 0, {1}), ValueError);
}

TEST(Uniform, RejectsInvalidBounds) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_of<ValueError>([] { rand({1}, 2, 1); }),
            "[rand] needs low <= high with a finite difference: low 2.000000, high 1.000000");
  for (const auto& [low, high] : {std::pair{-1e308, 1e308},
                                  {0.0, infinity},
                                  {-infinity, infinity},
                                  {infinity, infinity},
                                  {std::nan(""), 1.0},
                                  {0.0, std::nan("")}})
    EXPECT_THROW(rand({1}, low, high, {.dtype = DType::f64}), ValueError) << low << " " << high;
  EXPECT_EQ(rand({1}, 3, 3).item(), 3.0);
}

TEST(Random, NeedsAFloatingDtype) {
  EXPECT_EQ(error_of<DTypeError>([] { randn({2}, {.dtype = DType::i32}); }),
            "[randn] needs a floating dtype: (2,) i32 on cpu");
  EXPECT_THROW(rand({2}, 0, 1, {.dtype = DType::boolean}), DTypeError);
}

}  // namespace
}  // namespace poolgrad
