#include "kernels/indexing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

/// Row-major coordinates of element i.
std::vector<std::int64_t> coordinates(const View& view, std::int64_t i) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(view.rank));
  for (int d = view.rank - 1; d >= 0; --d) {
    result[static_cast<std::size_t>(d)] = i % view.shape[d];
    i /= view.shape[d];
  }
  return result;
}
std::int64_t row_major(const View& view, const std::vector<std::int64_t>& at) {
  std::int64_t i = 0;
  for (int d = 0; d < view.rank; ++d) i = i * view.shape[d] + at[static_cast<std::size_t>(d)];
  return i;
}
/// Row-major index into `into` of element i of `of`, with its coordinate along `dim` replaced.
std::int64_t moved(const View& of, std::int64_t i, int dim, std::int64_t to, const View& into) {
  std::vector<std::int64_t> at = coordinates(of, i);
  at[static_cast<std::size_t>(dim)] = to < 0 ? to + into.shape[dim] : to;
  return row_major(into, at);
}
std::int64_t whole(double x) { return static_cast<std::int64_t>(x); }

struct Case {
  Shape shape;
  int dim;
  std::int64_t picks;
};
const std::vector<Case> cases = {{{5}, 0, 9},          {{1}, 0, 0},           {{7, 33}, 0, 1025}, {{7, 33}, 1, 20},
                                 {{3, 5, 41}, 1, 8},   {{3, 5, 41}, 2, 100},  {{3, 5, 41}, 0, 2}, {{4, 0}, 0, 3},
                                 {{300, 130}, 0, 257}, {{2, 6, 1, 700}, 1, 9}};

TEST(CheckIndices, AllowsNegativeIndicesOnRequest) {
  TestArray index(DType::i64, {3});
  index.fill([](std::int64_t i) { return static_cast<double>(-i - 2); });
  EXPECT_NO_THROW(check_indices({}, "op", "index", index, 4, -4));
  EXPECT_THROW(check_indices({}, "op", "index", index, 4, -3), IndexError);
  EXPECT_THROW(check_indices({}, "op", "index", index, 4), IndexError);
}

TEST(CheckIndices, NamesTheFirstBadIndex) {
  const auto error_of = [](const View& index, std::int64_t limit) -> std::string {
    try {
      check_indices({}, "op", "index", index, limit);
    } catch (const IndexError& error) {
      return error.what();
    }
    return "no error";
  };
  TestArray index(DType::i64, {50, 60}, Layout::transposed);
  index.fill([](std::int64_t i) { return static_cast<double>(i % 10); });
  EXPECT_EQ(error_of(index, 10), "no error");
  index.set(2000, 10);
  EXPECT_EQ(error_of(index, 10), "[op] index 10 at position (33, 20) is outside [0, 10)");
  index.set(1500, -1);
  EXPECT_EQ(error_of(index, 10), "[op] index -1 at position (25, 0) is outside [0, 10)");
  TestArray nothing(DType::i64, {0}), line(DType::i64, {3}), one(DType::i64, {});
  EXPECT_EQ(error_of(nothing, 0), "no error");
  EXPECT_EQ(error_of(line.zero(), 0), "[op] index 0 at position (0,) is outside [0, 0)");
  EXPECT_EQ(error_of(one.zero(), 0), "[op] index 0 at position () is outside [0, 0)");
}

TEST(IndexSelect, PicksSlicesAlongAnyDimension) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Case& c : cases)
      for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::reversed}) {
        Shape picked = c.shape;
        picked[static_cast<std::size_t>(c.dim)] = c.picks;
        TestArray x(dtype, c.shape, layout), index(DType::i64, {c.picks}, Layout::spread), out(dtype, picked, layout);
        x.random(random, 0, 100);
        const auto limit = static_cast<double>(c.shape[static_cast<std::size_t>(c.dim)]);
        index.random(random, -limit, limit);
        index_select({}, out, x, c.dim, index);
        expect_elements(
            out,
            [&](std::int64_t i) {
              const std::int64_t pick = coordinates(out, i)[static_cast<std::size_t>(c.dim)];
              return x[moved(out, i, c.dim, whole(index[pick]), x)];
            },
            0);
      }
}

TEST(IndexAdd, AddsSlicesInOrder) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32})
    for (const Case& c : cases)
      for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::reversed}) {
        Shape picked = c.shape;
        picked[static_cast<std::size_t>(c.dim)] = c.picks;
        TestArray out(dtype, c.shape, layout), index(DType::i64, {c.picks}), x(dtype, picked, layout);
        out.random(random);
        x.random(random);
        const auto limit = static_cast<double>(c.shape[static_cast<std::size_t>(c.dim)]);
        index.random(random, -limit, limit);
        std::vector<double> expected, magnitude;
        for (std::int64_t i = 0; i < out.count(); ++i)
          expected.push_back(out[i]), magnitude.push_back(std::abs(out[i]));
        for (std::int64_t i = 0; i < x.count(); ++i) {
          const std::int64_t pick = coordinates(x, i)[static_cast<std::size_t>(c.dim)];
          const auto to = static_cast<std::size_t>(moved(x, i, c.dim, whole(index[pick]), out));
          expected[to] += x[i];
          magnitude[to] += std::abs(x[i]);
        }
        index_add({}, out, c.dim, index, x);
        for (std::size_t i = 0; i < expected.size(); ++i)
          ASSERT_TRUE(close(out[static_cast<std::int64_t>(i)], expected[i], tolerance(dtype),
                            tolerance(compute_dtype(dtype)) * magnitude[i]))
              << to_string(dtype) << " " << i << ": " << out[static_cast<std::int64_t>(i)] << ", expected "
              << expected[i];
      }
}

/// The index shape of gather and scatter: x's shape, but `picks` along dim and shorter elsewhere where possible.
Shape index_shape(const Case& c) {
  Shape shape = c.shape;
  for (std::int64_t& size : shape) size = std::max<std::int64_t>(std::min<std::int64_t>(size, 1), size - 1);
  shape[static_cast<std::size_t>(c.dim)] = c.picks;
  return shape;
}

TEST(Gather, PicksElementsAlongAnyDimension) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Case& c : cases)
      for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::spread}) {
        TestArray x(dtype, c.shape, layout), index(DType::i64, index_shape(c), Layout::transposed);
        TestArray out(dtype, index_shape(c), layout);
        x.random(random, 0, 100);
        const auto limit = static_cast<double>(c.shape[static_cast<std::size_t>(c.dim)]);
        index.random(random, -limit, limit);
        gather({}, out, x, c.dim, index);
        expect_elements(
            out, [&](std::int64_t i) { return x[moved(index, i, c.dim, whole(index[i]), x)]; }, 0);
      }
}

TEST(Scatter, WritesElementsAndTheLastWins) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Case& c : cases)
      for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::spread}) {
        TestArray out(dtype, c.shape, layout), index(DType::i64, index_shape(c)), x(dtype, index_shape(c), layout);
        out.random(random, 0, 100);
        x.random(random, 0, 100);
        const auto limit = static_cast<double>(c.shape[static_cast<std::size_t>(c.dim)]);
        index.random(random, -limit, limit);
        std::vector<double> expected;
        for (std::int64_t i = 0; i < out.count(); ++i) expected.push_back(out[i]);
        for (std::int64_t i = 0; i < x.count(); ++i)
          expected[static_cast<std::size_t>(moved(index, i, c.dim, whole(index[i]), out))] = x[i];
        scatter({}, out, c.dim, index, x);
        expect_elements(
            out, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 0);
      }
}

TEST(ScatterAdd, AddsElements) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const Case& c : cases) {
      TestArray out(dtype, c.shape, Layout::spread), index(DType::i64, index_shape(c)), x(dtype, index_shape(c));
      // Small whole numbers: sums are exact in every dtype.
      out.random(random, 0, 2);
      x.random(random, 0, 2);
      for (std::int64_t i = 0; i < out.count(); ++i) out.set(i, std::floor(out[i]));
      for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, std::floor(x[i]));
      const auto limit = static_cast<double>(c.shape[static_cast<std::size_t>(c.dim)]);
      index.random(random, -limit, limit);
      std::vector<double> expected;
      for (std::int64_t i = 0; i < out.count(); ++i) expected.push_back(out[i]);
      for (std::int64_t i = 0; i < x.count(); ++i)
        expected[static_cast<std::size_t>(moved(index, i, c.dim, whole(index[i]), out))] += x[i];
      scatter_reduce({}, BinaryOp::add, out, c.dim, index, x);
      expect_elements(
          out, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, dtype == DType::bf16 ? 8e-3 : 0);
    }
}

TEST(ScatterReduce, CombinesElementsInTheirOrder) {
  std::mt19937_64 random(test_seed());
  const std::pair<BinaryOp, double (*)(double, double)> operations[] = {
      {BinaryOp::mul, [](double a, double b) { return a * b; }},
      {BinaryOp::maximum, [](double a, double b) { return std::max(a, b); }},
      {BinaryOp::minimum, [](double a, double b) { return std::min(a, b); }}};
  for (const auto& [op, combine] : operations)
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
      for (const Case& c : cases) {
        TestArray out(dtype, c.shape, Layout::spread), index(DType::i64, index_shape(c)), x(dtype, index_shape(c));
        // Products of 0 and 1 are exact in every dtype.
        const double most = op == BinaryOp::mul ? 2 : 100;
        out.random(random, 0, most);
        x.random(random, 0, most);
        for (std::int64_t i = 0; i < out.count(); ++i) out.set(i, std::floor(out[i]));
        for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, std::floor(x[i]));
        const auto limit = static_cast<double>(c.shape[static_cast<std::size_t>(c.dim)]);
        index.random(random, -limit, limit);
        std::vector<double> expected;
        for (std::int64_t i = 0; i < out.count(); ++i) expected.push_back(out[i]);
        for (std::int64_t i = 0; i < x.count(); ++i) {
          double& place = expected[static_cast<std::size_t>(moved(index, i, c.dim, whole(index[i]), out))];
          place = combine(place, x[i]);
        }
        scatter_reduce({}, op, out, c.dim, index, x);
        expect_elements(
            out, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 0);
      }
  TestArray x(DType::f32, {1}), index(DType::i64, {1}), out(DType::f32, {1});
  EXPECT_THROW(scatter_reduce({}, BinaryOp::sub, out, 0, index, x), ValueError);
}

TEST(Embedding, LooksRowsUpAndItsBackwardAddsThem) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& index_shape : {Shape{}, Shape{0}, Shape{1}, Shape{1025}, Shape{3, 65}})
      for (const std::int64_t columns : {1, 33, 128, 1500})
        for (const std::int64_t padding : {-1, 2}) {
          if (columns == 1500 && index_shape != Shape{3, 65}) continue;
          Shape shape = index_shape;
          shape.push_back(columns);
          TestArray table(dtype, {37, columns}), index(DType::i64, index_shape), out(dtype, shape), grad(dtype, shape);
          TestArray dtable(dtype, {37, columns});
          table.random(random);
          grad.random(random);
          index.random(random, 0, 37);
          embedding({}, out, table, index);
          expect_elements(
              out, [&](std::int64_t i) { return table[whole(index[i / columns]) * columns + i % columns]; }, 0);
          dtable.random(random);
          std::vector<double> expected, magnitude;
          for (std::int64_t i = 0; i < dtable.count(); ++i)
            expected.push_back(dtable[i]), magnitude.push_back(std::abs(dtable[i]));
          for (std::int64_t i = 0; i < grad.count(); ++i) {
            const std::int64_t row = whole(index[i / columns]);
            if (row == padding) continue;
            expected[static_cast<std::size_t>(row * columns + i % columns)] += grad[i];
            magnitude[static_cast<std::size_t>(row * columns + i % columns)] += std::abs(grad[i]);
          }
          embedding_backward({}, dtable, grad, index, padding);
          for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_TRUE(close(dtable[static_cast<std::int64_t>(i)], expected[i], tolerance(dtype),
                              tolerance(compute_dtype(dtype)) * magnitude[i]))
                << i;
        }
}

TEST(Indexing, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray index(DType::i64, {5000}), grad(DType::f32, {5000, 64}), table(DType::f32, {256, 64});
  index.random(random, 0, 256);
  grad.random(random);
  expect_same_bits_for_any_thread_count(table, [&] { embedding_backward({}, table.zero(), grad, index, -1); });
  TestArray places(DType::i64, {5000, 64}), lines(DType::f32, {256, 64});
  places.random(random, 0, 256);
  expect_same_bits_for_any_thread_count(lines,
                                        [&] { scatter_reduce({}, BinaryOp::add, lines.zero(), 0, places, grad); });
}

}  // namespace
}  // namespace poolgrad::kernels
