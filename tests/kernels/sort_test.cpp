// argsort() gives the order of a stable sort of the numbers, NaN last.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/reduce.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

/// Indices of the first `kept` elements of each row of x in order.
std::vector<double> expected_order(const TestArray& x, std::int64_t columns, std::int64_t kept, bool descending) {
  std::vector<double> all;
  for (std::int64_t row = 0; row < x.count() / columns; ++row) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(columns));
    std::vector<double> values;
    for (std::int64_t i = 0; i < columns; ++i) values.push_back(x[row * columns + i]);
    std::iota(places.begin(), places.end(), 0);
    std::stable_sort(places.begin(), places.end(), [&](std::int64_t a, std::int64_t b) {
      const double left = values[static_cast<std::size_t>(a)], right = values[static_cast<std::size_t>(b)];
      if (std::isnan(left) || std::isnan(right)) return !std::isnan(left);
      return descending ? left > right : left < right;
    });
    all.insert(all.end(), places.begin(), places.begin() + kept);
  }
  return all;
}

TEST(Argsort, IsTheStableOrderOfEveryDtypeAndLayout) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Shape& shape : {Shape{1}, Shape{33}, Shape{1100}, Shape{31, 7}, Shape{2, 3, 70}, Shape{4, 0, 5}})
      for (const bool descending : {false, true})
        for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::reversed}) {
          const std::int64_t n = shape.back();
          for (const std::int64_t kept : {n, (n + 1) / 2, std::int64_t{1}}) {
            Shape result = shape;
            result.back() = kept;
            TestArray x(dtype, shape, layout), out(DType::i64, result, layout);
            x.random(random, dtype == DType::u8 || dtype == DType::boolean ? 0 : -20, 20);
            for (std::int64_t i = 0; i < x.count(); i += 2) x.set(i, std::floor(x[i]));  // ties
            argsort({}, out, x, descending);
            const std::vector<double> expected = expected_order(x, n, kept, descending);
            expect_elements(
                out, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 0);
          }
        }
}

TEST(Argsort, PutsNaNLastAndTreatsZerosAsEqual) {
  for (const DType dtype : floats)
    for (const bool descending : {false, true}) {
      TestArray x(dtype, {9}), out(DType::i64, {9});
      const double values[] = {nan, 0.0, infinity, -nan, -0.0, -infinity, 1.0, 0.0, nan};
      x.fill([&](std::int64_t i) { return values[i]; });
      argsort({}, out, x, descending);
      const double up[] = {5, 1, 4, 7, 6, 2, 0, 3, 8}, down[] = {2, 6, 1, 4, 7, 5, 0, 3, 8};
      expect_elements(
          out, [&](std::int64_t i) { return (descending ? down : up)[i]; }, 0);
    }
}

TEST(Argsort, DistinguishesIntegersBeyondF64) {
  std::vector<std::int64_t> values = {std::numeric_limits<std::int64_t>::max(), (std::int64_t{1} << 60) + 1,
                                      std::int64_t{1} << 60, -1, std::numeric_limits<std::int64_t>::min()};
  std::vector<std::int64_t> order(5);
  argsort({}, View{order.data(), DType::i64, 1, {5}, {1}}, View{values.data(), DType::i64, 1, {5}, {1}}, false);
  EXPECT_EQ(order, (std::vector<std::int64_t>{4, 3, 2, 1, 0}));
  argsort({}, View{order.data(), DType::i64, 1, {5}, {1}}, View{values.data(), DType::i64, 1, {5}, {1}}, true);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(Argsort, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {200, 333}), out(DType::i64, {200, 333});
  x.random(random);
  expect_same_bits_for_any_thread_count(out, [&] { argsort({}, out, x, false); });
}

}  // namespace
}  // namespace poolgrad::kernels
