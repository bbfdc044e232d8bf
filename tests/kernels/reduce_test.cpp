#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "kernels/rows.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

constexpr ReduceOp all_ops[] = {ReduceOp::sum,     ReduceOp::mean, ReduceOp::maximum, ReduceOp::minimum,
                                ReduceOp::product, ReduceOp::any,  ReduceOp::all};
const std::vector<Shape> reduced_shapes = {
    {},           {0},         {1},          {33},           {1025},      {70001},   {3, 0},
    {0, 3},       {31, 33},    {1025, 3},    {3, 1025},      {2, 9000},   {9000, 2}, {1025, 17},
    {4, 1, 5, 7}, {9, 33, 20}, {2, 3, 0, 4}, {3, 33, 2, 20}, {90, 1, 129}};

/// Index of the output element that element `i` of `x` contributes to.
std::int64_t target(const View& x, const View& out, std::int64_t i) {
  std::int64_t result = 0, step = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    if (out.shape[d] != 1) result += i % x.shape[d] * step;
    i /= x.shape[d];
    step *= out.shape[d];
  }
  return result;
}

struct Expected {
  std::vector<double> value, magnitude;  // magnitude: sum of |x|, the scale of rounding errors of a sum
};

Expected reduce_naively(ReduceOp op, const TestArray& x, const View& out) {
  const auto n = static_cast<std::size_t>(out.count());
  const double start = op == ReduceOp::product || op == ReduceOp::all ? 1
                       : op == ReduceOp::maximum                      ? -infinity
                       : op == ReduceOp::minimum                      ? infinity
                                                                      : 0;
  std::vector<long double> value(n, start);
  Expected expected{std::vector<double>(n), std::vector<double>(n)};
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const auto t = static_cast<std::size_t>(target(x, out, i));
    const double v = x[i];
    expected.magnitude[t] += std::abs(v);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::mean: value[t] += v; break;
      case ReduceOp::product: value[t] *= v; break;
      case ReduceOp::maximum: value[t] = std::max(value[t], static_cast<long double>(v)); break;
      case ReduceOp::minimum: value[t] = std::min(value[t], static_cast<long double>(v)); break;
      case ReduceOp::any: value[t] = value[t] != 0 || v != 0; break;
      default: value[t] = value[t] != 0 && v != 0; break;
    }
  }
  const double per_result = n ? static_cast<double>(x.count()) / static_cast<double>(n) : 0;
  for (std::size_t t = 0; t < n; ++t) {
    expected.value[t] =
        static_cast<double>(op == ReduceOp::mean ? value[t] / static_cast<long double>(per_result) : value[t]);
    if (op == ReduceOp::mean) expected.magnitude[t] /= per_result;
  }
  return expected;
}

/// Reduces every subset of the dimensions of `shape`.
template <class Body>
void for_each_reduction(const Shape& shape, const Body& body) {
  for (unsigned subset = 0; subset < 1u << shape.size(); ++subset) {
    Shape reduced = shape;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (subset >> d & 1) reduced[d] = 1;
    body(reduced);
  }
}

double rounding(DType dtype) { return dtype == DType::f64 ? 1e-15 : 3e-7; }

/// Near 1 for products; few zeros for logic.
void fill_for(ReduceOp op, TestArray& x, std::mt19937_64& random) {
  if (op == ReduceOp::product) x.random(random, 0.9, 1.1);
  if (op == ReduceOp::sum) x.random(random);
  if (op == ReduceOp::any) x.fill([&](std::int64_t i) { return i % 7 == 1 ? 1.0 : 0.0; });
  if (op == ReduceOp::all) x.fill([&](std::int64_t i) { return i % 7 == 0 ? 0.0 : 1.0; });
}

TEST(Reduce, AgreesWithTheDefinitionOverEverySubsetOfDimensions) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : reduced_shapes) {
      if (shape.size() == 4 && dtype == DType::bf16) continue;
      TestArray x(dtype, shape);
      for (const ReduceOp op : all_ops) {
        fill_for(op, x, random);
        const bool truth = op == ReduceOp::any || op == ReduceOp::all;
        for_each_reduction(shape, [&](const Shape& reduced) {
          TestArray out(truth ? DType::boolean : dtype, reduced);
          reduce({}, op, out, x);
          const Expected expected = reduce_naively(op, x, out);
          const double extra = op == ReduceOp::product ? 1e-4 : 0;
          for (std::int64_t i = 0; i < out.count(); ++i) {
            const auto t = static_cast<std::size_t>(i);
            const bool overflows = dtype == DType::f16 && std::abs(expected.value[t]) > 65000;
            ASSERT_TRUE(overflows || close(out[i], expected.value[t], tolerance(dtype) + extra,
                                           rounding(dtype) * expected.magnitude[t]))
                << to_string(op) << " " << to_string(dtype) << " element " << i << ": " << out[i] << ", expected "
                << expected.value[t] << "; seed " << test_seed();
          }
        });
      }
    }
}

TEST(Reduce, IntegersAreExact) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean})
    for (const Shape& shape : {Shape{0}, Shape{1025}, Shape{31, 33}, Shape{9, 33, 20}})
      for_each_reduction(shape, [&](const Shape& reduced) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::maximum, ReduceOp::minimum, ReduceOp::any, ReduceOp::all}) {
          TestArray x(dtype, shape),
              out(op == ReduceOp::any || op == ReduceOp::all ? DType::boolean : DType::i64, reduced);
          x.random(random, dtype == DType::u8 || dtype == DType::boolean ? 0 : -9, dtype == DType::boolean ? 2 : 10);
          if (x.count() == 0 && (op == ReduceOp::maximum || op == ReduceOp::minimum)) continue;  // no infinity
          reduce({}, op, out, x);
          const Expected expected = reduce_naively(op, x, out);
          expect_elements(out, [&](std::int64_t i) { return expected.value[static_cast<std::size_t>(i)]; });
        }
      });
}

TEST(Reduce, SupportsAnyLayout) {
  std::mt19937_64 random(test_seed());
  for (const Layout from : input_layouts)
    for (const Layout to : output_layouts)
      for_each_reduction({7, 33, 40}, [&](const Shape& reduced) {
        TestArray x(DType::f32, {7, 33, 40}, from), out(DType::f32, reduced, to);
        x.random(random);
        reduce({}, ReduceOp::sum, out, x);
        const Expected expected = reduce_naively(ReduceOp::sum, x, out);
        for (std::size_t i = 0; i < expected.value.size(); ++i)
          ASSERT_NEAR(out[static_cast<std::int64_t>(i)], expected.value[i], 3e-7 * expected.magnitude[i])
              << test_seed();
      });
}

TEST(Reduce, GivesTheNeutralElementForEmptyInput) {
  const double expected[] = {0, nan, -infinity, infinity, 1, 0, 1};  // in the order of all_ops
  for (const DType dtype : floats)
    for (std::size_t k = 0; k < std::size(all_ops); ++k) {
      const ReduceOp op = all_ops[k];
      const bool truth = op == ReduceOp::any || op == ReduceOp::all;
      TestArray x(dtype, {3, 0}), out(truth ? DType::boolean : dtype, {3, 1});
      reduce({}, op, out, x);
      expect_elements(out, [&](std::int64_t) { return expected[k]; });
    }
}

TEST(Reduce, PropagatesNaNFromAnyPosition) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::product, ReduceOp::maximum, ReduceOp::minimum})
    for (const std::int64_t place : {0, 15, 16, 1000, 40000, 69999}) {
      TestArray x(DType::f32, {70000}), out(DType::f32, {1}), columns(DType::f32, {1, 100});
      x.fill([&](std::int64_t i) { return i == place ? nan : 0.5; });
      reduce({}, op, out, x);
      EXPECT_TRUE(std::isnan(out[0])) << to_string(op) << place;
      View matrix = x;
      matrix.rank = 2;
      matrix.shape[0] = 700, matrix.shape[1] = 100;
      matrix.strides[0] = 100, matrix.strides[1] = 1;
      reduce({}, op, columns, matrix);
      for (std::int64_t c = 0; c < 100; ++c) EXPECT_EQ(std::isnan(columns[c]), c == place % 100) << to_string(op);
    }
}

TEST(Reduce, IntegersWrapAroundWithoutUndefinedBehaviour) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t count : {2, 40, 40000}) {  // one piece, several lanes, several threads
    std::vector<std::int64_t> values(static_cast<std::size_t>(count), 0), out(1);
    const View x{values.data(), DType::i64, 1, {count}, {1}}, result{out.data(), DType::i64, 1, {1}, {1}};
    values.front() = largest;
    values.back() = 1;
    reduce({}, ReduceOp::sum, result, x);
    EXPECT_EQ(out[0], std::numeric_limits<std::int64_t>::min()) << count;
    std::fill(values.begin(), values.end(), 1);
    values.front() = values.back() = std::int64_t{3} << 61;
    reduce({}, ReduceOp::product, result, x);
    EXPECT_EQ(out[0], 0) << count;
    values.back() = 3;
    reduce({}, ReduceOp::product, result, x);
    EXPECT_EQ(out[0], std::int64_t{1} << 61) << count << ": 9 * 2^61 is 2^61 and a whole 2^64";
  }
}

TEST(Reduce, SumOfTenMillionFloatsIsExactToSevenDigits) {
  std::mt19937 random(static_cast<std::uint32_t>(test_seed()));
  std::vector<float> values(10000000);
  double exact = 0;
  for (float& v : values) exact += v = static_cast<float>(random() >> 8) * 0x1p-24f;
  TestArray out(DType::f32, {1, 1});
  View x{values.data(), DType::f32, 2, {1000000, 10}, {10, 1}};
  reduce({}, ReduceOp::sum, out, x);
  // Sums of segments are added as a tree, and each level rounds. Uniform errors add up to a deviation of 0.41 units in
  // the last place, which is 0.5 at 5e6. 3e-7 is seven deviations.
  EXPECT_NEAR(out[0], exact, 3e-7 * exact);
  View columns{values.data(), DType::f32, 2, {100000, 100}, {100, 1}};
  TestArray sums(DType::f32, {1, 100});
  reduce({}, ReduceOp::sum, sums, columns);
  std::vector<double> expected(100);
  for (std::size_t i = 0; i < values.size(); ++i) expected[i % 100] += values[i];
  expect_elements(
      sums, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 2e-6);
  expect_norm(
      sums, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 1e-6);
}

TEST(Reduce, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  for (const Shape& reduced : {Shape{1, 1}, Shape{1000, 1}, Shape{1, 333}}) {
    TestArray x(DType::f32, {1000, 333}), out(DType::f32, reduced);
    x.random(random);
    expect_same_bits_for_any_thread_count(out, [&] { reduce({}, ReduceOp::sum, out, x); });
  }
}

TEST(SumRows, AddsUpAllLeadingDimensions) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : {Shape{33}, Shape{0, 7}, Shape{1, 9}, Shape{1025, 33}, Shape{12, 64, 130}}) {
      TestArray x(dtype, shape), out(dtype, {shape.back()});
      x.random(random);
      sum_rows({}, out, x);
      std::vector<double> expected(static_cast<std::size_t>(shape.back()));
      for (std::int64_t i = 0; i < x.count(); ++i) expected[static_cast<std::size_t>(i % shape.back())] += x[i];
      expect_norm(
          out, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, std::max(2e-6, tolerance(dtype)));
    }
}

TEST(ArgMax, IsTheFirstOfTheLargest) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const Shape& shape : {Shape{1}, Shape{33}, Shape{5000}, Shape{0, 4}, Shape{31, 33}, Shape{3, 2, 2500}})
      for (const Layout layout : input_layouts) {
        TestArray x(dtype, shape, layout);
        Shape rows(shape.begin(), shape.end() - 1);
        TestArray largest(DType::i64, rows), smallest(DType::i64, rows);
        x.random(random, 0, 40);
        for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, std::floor(x[i]));  // ties
        argmax({}, largest, x);
        argmin({}, smallest, x);
        const std::int64_t n = shape.back();
        const auto find = [&](std::int64_t row, double sign) {
          std::int64_t best = 0;
          for (std::int64_t i = 1; i < n; ++i)
            if (sign * x[row * n + i] > sign * x[row * n + best]) best = i;
          return static_cast<double>(best);
        };
        expect_elements(
            largest, [&](std::int64_t row) { return find(row, 1); }, 0);
        expect_elements(
            smallest, [&](std::int64_t row) { return find(row, -1); }, 0);
      }
}

TEST(ArgMax, IsTheFirstNaN) {
  for (const std::int64_t place : {0, 1, 700, 1023, 1024, 1999}) {
    TestArray x(DType::f32, {2000}), index(DType::i64, {});
    x.fill([&](std::int64_t i) { return i == place || i == 1999 ? nan : (i == 0 ? infinity : 1.0); });
    argmax({}, index, x);
    EXPECT_EQ(index[0], place);
    argmin({}, index, x);
    EXPECT_EQ(index[0], place);
  }
}

TEST(CumulativeSum, RunsInBothDirections) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32})
    for (const Shape& shape : {Shape{0}, Shape{1}, Shape{33}, Shape{2500}, Shape{31, 33}, Shape{3, 1030}})
      for (const bool reverse : {false, true}) {
        TestArray x(dtype, shape, Layout::spread), out(dtype, shape, Layout::transposed);
        x.random(random, 0, 3);
        cumulative_sum({}, out, x, reverse);
        const std::int64_t n = shape.back();
        const auto prefix = [&](std::int64_t i) {
          long double sum = 0;
          for (std::int64_t j = i; reverse ? j < (i / n + 1) * n : j >= i / n * n; j += reverse ? 1 : -1) sum += x[j];
          return static_cast<double>(sum);
        };
        // Each addition rounds once: the error grows with the number of terms and with the sum.
        const double absolute = is_floating(dtype) ? 3.0 * static_cast<double>(n) * tolerance(compute_dtype(dtype)) : 0;
        expect_elements(out, prefix, tolerance(dtype), absolute);
      }
}

TEST(SumOfSquares, IsAddedInDoublePrecision) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const std::int64_t n : {0, 1, 33, 1025, 100003}) {
      TestArray x(dtype, {n}), sum(DType::f64, {1});
      x.random(random);
      sum.set(0, 10);
      add_sum_of_squares({}, sum, x);
      long double expected = 10;
      for (std::int64_t i = 0; i < n; ++i) expected += static_cast<long double>(x[i]) * x[i];
      EXPECT_NEAR(sum[0], static_cast<double>(expected), 1e-14 * static_cast<double>(expected));
    }
}

TEST(SumOfSquares, AddsManyTensorsInSequence) {
  std::mt19937_64 random(test_seed());
  std::deque<TestArray> arrays;
  std::vector<View> all;
  TestArray together(DType::f64, {1}), one_by_one(DType::f64, {1});
  one_by_one.set(0, 3);
  together.set(0, 3);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t n = i % 9 == 0 ? 0 : i % 11 == 0 ? 40000 : i * 5;
    all.push_back(arrays.emplace_back(floats[i % 4], Shape{n, 2}, i % 7 == 0 ? Layout::spread : Layout::contiguous)
                      .random(random));
    add_sum_of_squares({}, one_by_one, all.back());
  }
  add_sums_of_squares({}, together, all);
  EXPECT_EQ(together.bytes(), one_by_one.bytes());
}

TEST(SumOfSquares, SurvivesSquaresBeyondF32) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const double value : {1e20, 1e-30}) {
      TestArray x(dtype, {1037}), sum(DType::f64, {1});
      for (std::int64_t i = 0; i < 1037; ++i) x.set(i, value);
      sum.set(0, 0);
      add_sum_of_squares({}, sum, x);
      EXPECT_NEAR(sum[0] / (1037 * x[0] * x[0]), 1.0, 1e-14) << value;
    }
}

}  // namespace
}  // namespace poolgrad::kernels
