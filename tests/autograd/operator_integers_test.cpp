// Integer and bool results of operators: dtypes of sums, bounds, exactness.
#include <gtest/gtest.h>

#include <limits>

#include "autograd/operators.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

TEST(Integers, AddMultiplyAndReduceExactly) {
  const Tensor a = from_data<std::int64_t>({7, -7, (std::int64_t{1} << 60) + 1}, {3});
  const Tensor b = from_data<std::int64_t>({2, 2, 1}, {3});
  using Integers = std::vector<std::int64_t>;
  EXPECT_EQ((a + b).to_vector<std::int64_t>(), (Integers{9, -5, (std::int64_t{1} << 60) + 2}));
  EXPECT_EQ((a / b).to_vector<std::int64_t>(), (Integers{3, -3, (std::int64_t{1} << 60) + 1}));
  EXPECT_EQ((a / 2.0).to_vector<std::int64_t>(), (Integers{3, -3, std::int64_t{1} << 59}));
  EXPECT_EQ(maximum(a, b).to_vector<std::int64_t>(), (Integers{7, 2, (std::int64_t{1} << 60) + 1}));
  EXPECT_EQ(sum(slice(a, 0, 0, 2)).to_vector<std::int64_t>(), (Integers{0}));
  EXPECT_EQ(sum(less(a, b)).to_vector<std::int64_t>(), (Integers{1}));
  EXPECT_EQ(sum(less(a, b)).dtype(), DType::i64);
  EXPECT_EQ(argmax(a).to_vector<std::int64_t>(), (Integers{2}));
  EXPECT_EQ(argmin(a, 0, true).shape(), (Shape{1}));
}

TEST(Integers, SumToI64WithAndWithoutBroadcasting) {
  for (const DType dtype : {DType::u8, DType::i32, DType::boolean, DType::i64})
    for (const Shape& shape : {Shape{2, 3}, Shape{3}})
      EXPECT_EQ(sum_to(ones({2, 3}, {.dtype = dtype}), shape).dtype(), DType::i64) << to_string(dtype);
}

TEST(Integers, RunningSumsAreI64ForEveryIntegerDtype) {
  using Integers = std::vector<std::int64_t>;
  const Tensor flags = less(arange(0, 5), full({}, 3));
  EXPECT_EQ(cumsum(flags, 0).dtype(), DType::i64);
  EXPECT_EQ(cumsum(flags, 0).to_vector<std::int64_t>(), (Integers{1, 2, 3, 3, 3}));
  const Tensor bytes = full({2, 3}, 200, {.dtype = DType::u8});
  EXPECT_EQ(cumsum(bytes, 1).to_vector<std::int64_t>(), (Integers{200, 400, 600, 200, 400, 600}));
  EXPECT_EQ(cumsum(bytes, 0).to_vector<std::int64_t>(), (Integers{200, 200, 200, 400, 400, 400}));
  const Tensor large = full({2}, 2e9, {.dtype = DType::i32});
  EXPECT_EQ(cumsum(large, 0).to_vector<std::int64_t>(), (Integers{2'000'000'000, 4'000'000'000}));
}

TEST(Clamp, AcceptsInfiniteBoundsForIntegers) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  using Integers = std::vector<std::int64_t>;
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    const Tensor x = arange(0, 6, 1, {.dtype = dtype});
    const auto clamped = [&](double low, double high) { return clamp(x, low, high).to_vector<std::int64_t>(); };
    EXPECT_EQ(clamped(2, infinity), (Integers{2, 2, 2, 3, 4, 5})) << to_string(dtype);
    EXPECT_EQ(clamped(-infinity, 3), (Integers{0, 1, 2, 3, 3, 3})) << to_string(dtype);
    EXPECT_EQ(clamped(-infinity, infinity), (Integers{0, 1, 2, 3, 4, 5})) << to_string(dtype);
    EXPECT_EQ(clamped(-1000, 1000), (Integers{0, 1, 2, 3, 4, 5})) << to_string(dtype);
  }
  for (const DType dtype : {DType::u8, DType::i32}) {  // bounds beyond the range
    const std::int64_t first = dtype == DType::u8 ? 0 : -2147483648, last = dtype == DType::u8 ? 255 : 2147483647;
    const Tensor x = to(from_data<std::int64_t>({first, 5, last}, {3}), dtype);
    EXPECT_EQ(clamp(x, 3e9, 4e9).to_vector<std::int64_t>(), (Integers{last, last, last})) << to_string(dtype);
    EXPECT_EQ(clamp(x, -4e9, -3e9).to_vector<std::int64_t>(), (Integers{first, first, first})) << to_string(dtype);
    EXPECT_EQ(clamp(x, 4, infinity).to_vector<std::int64_t>(), (Integers{4, 5, last})) << to_string(dtype);
  }
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();  // no double has this value
  Tensor x = zeros({1}, {.dtype = DType::i64});
  *x.data<std::int64_t>() = largest;
  EXPECT_EQ(clamp(x, 0, infinity).to_vector<std::int64_t>(), Integers{largest});
  EXPECT_EQ(clamp(x, 0, 9e18).to_vector<std::int64_t>(), Integers{9'000'000'000'000'000'000});
}

}  // namespace
}  // namespace poolgrad
