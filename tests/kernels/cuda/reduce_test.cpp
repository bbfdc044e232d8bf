// Reductions, searches and running sums on the emulated device, compared with the CPU's, which other tests compare with
// the definition in f64. Every launch has another order of blocks and threads, and the same bits.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <vector>

#include "allocator/caching_allocator.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/elementwise.h"
#include "kernels/rows.h"
#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

constexpr ReduceOp every_reduction[] = {ReduceOp::sum,     ReduceOp::mean, ReduceOp::maximum, ReduceOp::minimum,
                                        ReduceOp::product, ReduceOp::any,  ReduceOp::all};

bool gives_truth(ReduceOp op) { return op == ReduceOp::any || op == ReduceOp::all; }
bool is_choice(ReduceOp op) { return op != ReduceOp::sum && op != ReduceOp::mean && op != ReduceOp::product; }

/// Numbers whose sums do not cancel and whose products stay near 1; for logic, few zeros or few ones.
void fill_for_reduction(ReduceOp op, TestArray& x, std::mt19937_64& random) {
  if (op == ReduceOp::any)
    x.fill([&](std::int64_t i) { return i % 97 == 1 ? 1.0 : 0.0; });
  else if (op == ReduceOp::all)
    x.fill([&](std::int64_t i) { return i % 97 == 1 ? 0.0 : 1.0; });
  else if (op == ReduceOp::product)
    x.random(random, 0.99, 1.01);
  else
    x.random(random, is_choice(op) ? -2 : 0.5, 2);
}

/// Sums of many numbers in two orders, rounded to the dtype.
double slack_of_sums(DType dtype) { return dtype == DType::f64 ? 1e-12 : std::max(4e-6, 2 * tolerance(dtype)); }

template <class Body>
void for_each_subset(const Shape& shape, const Body& body) {
  for (unsigned subset = 0; subset < 1u << shape.size(); ++subset) {
    Shape reduced = shape;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (subset >> d & 1) reduced[d] = 1;
    body(reduced);
  }
}

class CudaReduce : public ::testing::TestWithParam<ReduceOp> {};
INSTANTIATE_TEST_SUITE_P(Every, CudaReduce, ::testing::ValuesIn(every_reduction),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

// One lane, several lanes, a warp or a block for each row; segments; columns side by side and below each other; many
// chunks.
const std::vector<Shape> reduce_shapes = {{},        {0},        {1},       {33},         {1025},      {70001},
                                          {3, 0},    {0, 3},     {31, 33},  {1025, 3},    {3, 2500},   {9000, 2},
                                          {333, 17}, {9000, 20}, {40, 700}, {4, 1, 5, 7}, {9, 33, 20}, {2, 3, 0, 4}};

TEST_P(CudaReduce, AgreesWithTheCpuOverEverySubsetOfDimensions) {
  std::mt19937_64 random(test_seed());
  const ReduceOp op = GetParam();
  for (const DType dtype : floats)
    for (const Shape& shape : reduce_shapes) {
      TestArray x(dtype, shape);
      if (x.count() > 10000 && dtype != DType::f32) continue;  // covers the same code
      fill_for_reduction(op, x, random);
      for_each_subset(shape, [&](const Shape& reduced) {
        TestArray out(gives_truth(op) ? DType::boolean : dtype, reduced);
        const double factors = op == ReduceOp::product ? static_cast<double>(x.count()) : 0;  // each factor rounds once
        const double slack = slack_of_sums(dtype) + (dtype == DType::f64 ? 4e-16 : 2.4e-7) * std::sqrt(factors);
        expect_same(is_choice(op) ? bits : slack, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
          reduce(stream, op, operands[0], operands[1]);
        });
      });
    }
}

TEST_P(CudaReduce, IsExactForIntegers) {
  std::mt19937_64 random(test_seed());
  const ReduceOp op = GetParam();
  if (op == ReduceOp::mean) return;
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean})
    for (const Shape& shape : {Shape{0}, Shape{70001}, Shape{31, 33}, Shape{9, 33, 20}}) {
      TestArray x(dtype, shape);
      x.random(random, dtype == DType::i64 || dtype == DType::i32 ? -9 : 0, dtype == DType::boolean ? 2 : 10);
      for_each_subset(shape, [&](const Shape& reduced) {
        TestArray out(gives_truth(op) ? DType::boolean : DType::i64, reduced);
        expect_same(bits, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
          reduce(stream, op, operands[0], operands[1]);
        });
      });
    }
}

TEST_P(CudaReduce, MatchesTheCpuForNaNAndInfinity) {
  const ReduceOp op = GetParam();
  for (const DType dtype : floats) {
    TestArray x(dtype, {70, 33}), rows(gives_truth(op) ? DType::boolean : dtype, {70, 1}),
        columns(rows.dtype(), {1, 33});
    x.fill([](std::int64_t i) { return i % 71 == 5 ? nan : (i % 71 == 9 ? infinity : 1.0); });
    for (TestArray* out : {&rows, &columns})
      expect_same(slack_of_sums(dtype), {out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
        reduce(stream, op, operands[0], operands[1]);
      });
  }
}

TEST(CudaReduction, SupportsAnyLayout) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Layout from : input_layouts)
      for (const Layout to : output_layouts)
        for_each_subset({5, 17, 20}, [&](const Shape& reduced) {
          TestArray x(dtype, {5, 17, 20}, from), out(dtype, reduced, to);
          x.random(random, 0.5, 2);
          expect_same(slack_of_sums(dtype), {&out}, {&x}, [](Stream stream, const std::vector<View>& operands) {
            reduce(stream, ReduceOp::sum, operands[0], operands[1]);
          });
        });
}

TEST(CudaReduction, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  std::mt19937_64 random(test_seed());
  constexpr int repeats = 6;
  TestArray x(DType::f32, {700, 133});
  x.random(random, 0.5, 2);
  for (const Shape& reduced : {Shape{1, 1}, Shape{700, 1}, Shape{1, 133}}) {
    TestArray out(DType::f32, reduced), squares(DType::f64, {1});
    squares.set(0, 1);
    expect_same(
        slack_of_sums(DType::f32), {&out, &squares}, {&x},
        [](Stream stream, const std::vector<View>& operands) {
          reduce(stream, ReduceOp::sum, operands[0], operands[2]);
          add_sum_of_squares(stream, operands[1], operands[2]);
        },
        repeats);
  }
  TestArray index(DType::i64, {700}), sums(DType::f32, {700, 133});
  expect_same(
      slack_of_sums(DType::f32), {&index, &sums}, {&x},
      [](Stream stream, const std::vector<View>& operands) {
        argmax(stream, operands[0], operands[2]);
        cumulative_sum(stream, operands[1], operands[2], true);
      },
      repeats);
}

TEST(CudaReduction, HasTheSameBitsForMisalignedViews) {
  // A view that begins one element later is not aligned. Its sums have the order of an aligned view.
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Shape& shape : {Shape{5, 3000}, Shape{300, 64}})
      for (const Shape& reduced : {Shape{shape[0], 1}, Shape{1, shape[1]}}) {
        const std::int64_t count = shape[0] * shape[1];
        TestArray x(dtype, {count + 1}), out(dtype, reduced), moved(dtype, reduced);
        x.random(random);
        const Twin shifted(x), to(out), to_moved(moved);
        const DeviceArray<double> memory(std::vector<double>(static_cast<std::size_t>(count), 0.0));
        const auto matrix_at = [&](void* data) { return View{data, dtype, 2, {shape[0], shape[1]}, {shape[1], 1}}; };
        const View from = matrix_at(shifted.on_device().as<std::uint8_t>() + size_of(dtype));
        copy(cuda0, matrix_at(memory.data()), from);
        ASSERT_NE(reinterpret_cast<std::uintptr_t>(from.data) % 16, 0u);
        reduce(cuda0, ReduceOp::sum, to.on_device(), matrix_at(memory.data()));
        reduce(cuda0, ReduceOp::sum, to_moved.on_device(), from);
        to.fetch();
        to_moved.fetch();
        expect_elements(
            moved, [&](std::int64_t i) { return out[i]; }, 0);
      }
}

TEST(CudaReduction, IndicesOf64BitsFindTheSameElements) {
  TestArray x(DType::f32, {6, 7, 9}, Layout::transposed);
  cuda::Axes axes(x, 0, 3);
  ASSERT_TRUE(axes.narrow);
  for (const bool narrow : {true, false}) {
    axes.narrow = narrow;
    for (std::int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(axes.offset(i), x.view().offset(i));
  }
  float nothing = 0;
  const auto reach = [&](std::int64_t rows, std::int64_t stride) {
    return cuda::Axes(View{&nothing, DType::f32, 2, {rows, 3}, {stride, 1}}, 0, 2).narrow;
  };
  EXPECT_TRUE(reach(2, 2147483645));
  EXPECT_FALSE(reach(2, 2147483646));
  EXPECT_FALSE(reach(2, -2147483647));
  EXPECT_FALSE(reach(std::int64_t{1} << 30, 0));
}

TEST(CudaReduction, MatchesTheRequestsOfASimulatedDevice) {
  const Stream sim{Device{DeviceType::sim, 0}};
  for (const Shape& shape : {Shape{70001}, Shape{9000, 20}, Shape{30, 31}})
    for_each_subset(shape, [&](const Shape& reduced) {
      TestArray x(DType::f32, shape), out(DType::f32, reduced), squares(DType::f64, {1});
      x.zero();
      const Twin from(x), to(out), sum(squares);
      const auto hash_of = [&](Stream stream, const View& result, const View& total, const View& source) {
        CachingAllocator& pool = allocator_for(stream.device);
        pool.reset_sequence_hash();
        reduce(stream, ReduceOp::sum, result, source);
        add_sum_of_squares(stream, total, source);
        return pool.sequence_hash();
      };
      EXPECT_EQ(hash_of(cuda0, to.on_device(), sum.on_device(), from.on_device()), hash_of(sim, out, squares, x));
    });
}

TEST(CudaReduction, BiasGradientsAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : {Shape{33}, Shape{0, 7}, Shape{1, 9}, Shape{1025, 33}, Shape{12, 64, 130}}) {
      TestArray x(dtype, shape), out(dtype, {shape.back()});
      x.random(random, 0.5, 2);
      expect_same(slack_of_sums(dtype), {&out}, {&x},
                  [](Stream stream, const std::vector<View>& operands) { sum_rows(stream, operands[0], operands[1]); });
    }
}

TEST(CudaSearch, FindsTheFirstExtremeElement) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const Shape& shape : {Shape{1}, Shape{33}, Shape{5000}, Shape{0, 4}, Shape{31, 33}, Shape{3, 2, 2500}})
      for (const Layout layout : input_layouts) {
        TestArray x(dtype, shape, layout);
        const Shape rows(shape.begin(), shape.end() - 1);
        TestArray largest(DType::i64, rows), smallest(DType::i64, rows);
        x.random(random, 0, 40);
        for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, std::floor(x[i]));  // ties
        expect_same(bits, {&largest, &smallest}, {&x}, [](Stream stream, const std::vector<View>& operands) {
          argmax(stream, operands[0], operands[2]);
          argmin(stream, operands[1], operands[2]);
        });
      }
}

TEST(CudaSearch, FindsTheFirstNaN) {
  for (const std::int64_t n : {20, 2000, 5000})
    for (const std::int64_t place : {std::int64_t{0}, std::int64_t{1}, n / 2, n - 2, n - 1}) {
      TestArray x(DType::f32, {n}), largest(DType::i64, {}), smallest(DType::i64, {});
      x.fill([&](std::int64_t i) { return i == place || i == n - 1 ? nan : (i == 0 ? infinity : 1.0); });
      expect_same(bits, {&largest, &smallest}, {&x}, [](Stream stream, const std::vector<View>& operands) {
        argmax(stream, operands[0], operands[2]);
        argmin(stream, operands[1], operands[2]);
      });
      EXPECT_EQ(largest[0], place);
      EXPECT_EQ(smallest[0], place);
    }
}

TEST(CudaScan, MatchesTheCpuInBothDirections) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Shape& shape :
         {Shape{0}, Shape{1}, Shape{33}, Shape{9000}, Shape{31, 33}, Shape{3, 1030}, Shape{2, 4100}})
      for (const bool reverse : {false, true})
        for (const Layout layout : {Layout::contiguous, Layout::spread}) {
          const DType result = is_floating(dtype) ? dtype : DType::i64;
          TestArray x(dtype, shape, layout),
              out(result, shape, layout == Layout::spread ? Layout::transposed : Layout::contiguous);
          x.random(random, 0, dtype == DType::f16 ? 0.1 : 3);
          const double slack = dtype == DType::f64 ? slack_of_sums(dtype) : 2 * tolerance(dtype);
          expect_same(is_floating(dtype) ? slack : bits, {&out}, {&x},
                      [&](Stream stream, const std::vector<View>& operands) {
                        cumulative_sum(stream, operands[0], operands[1], reverse);
                      });
        }
}

TEST(CudaScan, MayOverwriteItsInput) {
  std::mt19937_64 random(test_seed());
  for (const bool reverse : {false, true}) {
    TestArray x(DType::f32, {3, 5000}), out(DType::f32, {3, 5000});
    x.random(random, 0, 3);
    cumulative_sum({}, out, x, reverse);
    const Twin twin(x);
    cumulative_sum(cuda0, twin.on_device(), twin.on_device(), reverse);
    twin.fetch();
    expect_elements(
        x, [&](std::int64_t i) { return out[i]; }, 2e-6);
  }
}

TEST(CudaSumOfSquares, IsAddedInDoublePrecision) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const std::int64_t n : {0, 1, 33, 1025, 100003})
      for (const Layout layout : {Layout::contiguous, Layout::reversed, Layout::spread}) {
        TestArray x(dtype, {n}, layout), sum(DType::f64, {1});
        x.random(random);
        sum.set(0, 10);
        const Twin total(sum);
        add_sum_of_squares(cuda0, total.on_device(), Twin(x).on_device());
        total.fetch();
        long double expected = 10;
        for (std::int64_t i = 0; i < n; ++i) expected += static_cast<long double>(x[i]) * x[i];
        EXPECT_NEAR(sum[0], static_cast<double>(expected), 1e-14 * static_cast<double>(expected));
      }
}

TEST(CudaSumOfSquares, ReducesManyTensorsTogether) {
  // More tensors than one table holds, of all dtypes, some empty, strided or misaligned.
  std::mt19937_64 random(test_seed());
  std::deque<TestArray> arrays;
  std::deque<Twin> twins;
  std::vector<View> all;
  long double expected = 3;
  for (int i = 0; i < 150; ++i) {
    const std::int64_t n = i % 9 == 0 ? 0 : i % 11 == 0 ? 40000 : i * 5;
    const bool is_strided = i % 7 == 0, is_misaligned = !is_strided && i % 5 == 0 && n > 0;
    TestArray& x = arrays.emplace_back(floats[i % 4], Shape{n, 2}, is_strided ? Layout::spread : Layout::contiguous);
    x.random(random);
    View view = twins.emplace_back(x).on_device();
    if (is_misaligned) view = {view.as<std::byte>() + size_of(x.dtype()), view.dtype, 1, {2 * n - 1}, {1}};
    all.push_back(view);
    for (std::int64_t e = is_misaligned; e < x.count(); ++e) expected += static_cast<long double>(x[e]) * x[e];
  }
  TestArray sum(DType::f64, {1});
  sum.set(0, 3);
  const Twin total(sum);
  add_sums_of_squares(cuda0, total.on_device(), all);
  total.fetch();
  EXPECT_NEAR(sum[0], static_cast<double>(expected), 1e-13 * static_cast<double>(expected));
}

TEST(CudaSumOfSquares, SurvivesSquaresBeyondF32) {
  for (const double value : {1e20, 1e-30}) {
    TestArray x(DType::f32, {40000}), sum(DType::f64, {1});
    x.fill([&](std::int64_t) { return value; });
    sum.set(0, 0);
    const Twin total(sum), from(x);
    add_sum_of_squares(cuda0, total.on_device(), from.on_device());
    total.fetch();
    EXPECT_NEAR(sum[0] / (40000 * x[0] * x[0]), 1.0, 1e-14) << value;
  }
}

}  // namespace
}  // namespace poolgrad::kernels
