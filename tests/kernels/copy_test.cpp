#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/elementwise.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<Shape> copied_shapes = {{}, {0}, {1}, {33}, {1025}, {3, 0}, {31, 33}, {4, 1, 5, 7}, {200, 300}};

TEST(Copy, ConvertsBetweenAllDtypes) {
  std::mt19937_64 random(test_seed());
  for (const DType from : all_dtypes)
    for (const DType to : all_dtypes)
      for (const Shape& shape : {Shape{}, Shape{0}, Shape{1025}, Shape{3, 1400}}) {
        TestArray x(from, shape), out(to, shape);
        x.random(random, from == DType::u8 || to == DType::u8 ? 0 : -100, from == DType::boolean ? 2 : 100);
        copy({}, out, x);
        TestArray expected(to, shape);
        expected.fill(
            [&](std::int64_t i) { return is_floating(to) || to == DType::boolean ? x[i] : std::trunc(x[i]); });
        expect_elements(
            out, [&](std::int64_t i) { return expected[i]; }, 0);
      }
}

TEST(Copy, ClampsToTheRangeOfIntegersAndMapsNaNToZero) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers = {-0.75, -1.5, 255.5, 256.0, 3e9, -3e9, 1e19, -1e19, inf, -inf, nan};
  const auto count = static_cast<std::int64_t>(numbers.size());
  for (const DType from : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [to, least, most] :
         {std::tuple(DType::u8, 0.0, 255.0), std::tuple(DType::i32, -0x1p31, 0x1p31 - 1),
          std::tuple(DType::i64, -0x1p63, 0x1p63)}) {  // 2^63 - 1 as a double
      TestArray x(from, {count}), out(to, {count});
      x.fill([&](std::int64_t i) { return numbers[static_cast<std::size_t>(i)]; });
      copy({}, out, x);
      for (std::int64_t i = 0; i < count; ++i)
        EXPECT_EQ(out[i], std::isnan(x[i]) ? 0.0 : std::clamp(std::trunc(x[i]), least, most)) << x[i];
    }
}

TEST(Copy, MovesBetweenAllLayouts) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8})
    for (const Shape& shape : copied_shapes)
      for (const Layout from : input_layouts)
        for (const Layout to : output_layouts) {
          TestArray x(dtype, shape, from), out(dtype, shape, to);
          x.random(random, 0, 100);
          copy({}, out, x);
          expect_elements(
              out, [&](std::int64_t i) { return x[i]; }, 0);
        }
}

TEST(Copy, PermutesEveryWay) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {5, 67, 3, 36});
  x.random(random);
  int order[] = {0, 1, 2, 3};
  do {
    View permuted = x;
    Shape shape;
    for (int d = 0; d < 4; ++d) {
      permuted.shape[d] = x.view().shape[order[d]];
      permuted.strides[d] = x.view().strides[order[d]];
      shape.push_back(permuted.shape[d]);
    }
    TestArray out(DType::f32, shape);
    copy({}, out, permuted);
    expect_elements(
        out, [&](std::int64_t i) { return static_cast<double>(permuted.as<float>()[permuted.offset(i)]); }, 0);
  } while (std::next_permutation(order, order + 4));
}

TEST(Copy, KeepsTheBitsOfNaNAndTheSignOfZero) {
  TestArray x(DType::f16, {2}), out(DType::f16, {2});
  x.view().as<std::uint16_t>()[0] = 0x7d55;  // a signalling NaN with a payload
  x.view().as<std::uint16_t>()[1] = 0x8000;
  copy({}, out, x);
  EXPECT_EQ(out.view().as<std::uint16_t>()[0], 0x7d55);
  EXPECT_EQ(out.view().as<std::uint16_t>()[1], 0x8000);
}

TEST(Copy, KeepsIntegersAbove2To53) {
  TestArray x(DType::i64, {3}), out(DType::i64, {3}, Layout::spread);
  const std::int64_t big = 9007199254740993;
  for (int i = 0; i < 3; ++i) x.view().as<std::int64_t>()[i] = big + i;
  copy({}, out, x);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(out.view().as<std::int64_t>()[2 * i], big + i);
}

TEST(Copy, RoundsOnceToHalfTypesInEveryLayout) {
  for (const Layout layout : output_layouts)
    for (const std::int64_t n : {1, 40, 1100}) {
      TestArray x(DType::f64, {n}), brain(DType::bf16, {n}, layout), half(DType::f16, {n}, layout);
      x.fill([](std::int64_t i) { return i % 2 ? 2049.0000001 : 1.003906251; });
      copy({}, brain, x);
      copy({}, half, x);
      expect_elements(
          brain, [](std::int64_t i) { return i % 2 ? 2048 : 1.0078125; }, 0);
      expect_elements(
          half, [](std::int64_t i) { return i % 2 ? 2050 : 1.00390625; }, 0);
      TestArray integers(DType::i64, {n});
      integers.fill([](std::int64_t) { return 16842753; });
      copy({}, brain, integers);
      expect_elements(
          brain, [](std::int64_t) { return 16908288; }, 0);
    }
}

TEST(Copy, ThreadsDoNotChangeABit) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {301, 403}, Layout::transposed), out(DType::bf16, {301, 403});
  x.random(random);
  expect_same_bits_for_any_thread_count(out, [&] { copy({}, out, x); });
}

TEST(Fill, SetsEveryElementOfEveryDtypeAndLayout) {
  for (const DType dtype : all_dtypes)
    for (const Shape& shape : copied_shapes)
      for (const Layout layout : output_layouts) {
        TestArray out(dtype, shape, layout);
        fill({}, out, 3);
        expect_elements(
            out, [&](std::int64_t) { return dtype == DType::boolean ? 1.0 : 3.0; }, 0);
      }
}

TEST(Fill, RoundsOnce) {
  TestArray half(DType::f16, {37}), brain(DType::bf16, {37});
  fill({}, half, 2049.0000001);
  fill({}, brain, 1.003906251);
  expect_elements(
      half, [](std::int64_t) { return 2050; }, 0);
  expect_elements(
      brain, [](std::int64_t) { return 1.0078125; }, 0);
}

TEST(Arange, CountsInEveryDtype) {
  for (const DType dtype : {DType::f64, DType::f32, DType::i64, DType::i32, DType::u8})
    for (const std::int64_t n : {0, 1, 33, 250}) {
      TestArray out(dtype, {n}, Layout::spread);
      arange({}, out, ArithmeticSequence::of_doubles(2, 1));
      expect_elements(
          out, [](std::int64_t i) { return 2.0 + static_cast<double>(i); }, 0);
    }
  TestArray out(DType::f64, {5000});
  arange({}, out, ArithmeticSequence::of_doubles(-1, 0.25));
  expect_elements(
      out, [](std::int64_t i) { return -1 + 0.25 * static_cast<double>(i); }, 0);
}

TEST(Arange, IsExactForIntegers) {
  constexpr std::int64_t n = 1031, first = (std::int64_t{1} << 53) + 1;
  TestArray out(DType::i64, {n});
  const auto expect = [&](const ArithmeticSequence& numbers, const auto& element) {
    arange({}, out, numbers);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(out.view().as<std::int64_t>()[i], element(i)) << i;
  };
  expect(ArithmeticSequence::of_integers(first, 2), [&](std::int64_t i) { return first + 2 * i; });
  expect(ArithmeticSequence::of_integers(-first, -1), [&](std::int64_t i) { return -first - i; });
  // Rounds towards 0; the difference of the bounds exceeds i64.
  __extension__ using Wide = __int128;
  const std::pair<std::int64_t, std::int64_t> bounds[] = {
      {INT64_MIN, INT64_MAX}, {INT64_MAX, INT64_MIN}, {-7, 5}, {5, -7}, {first, first + 3}, {-first, -first - 3}};
  for (const auto& [begin, end] : bounds)
    expect(ArithmeticSequence::between(begin, end, n - 1), [begin = begin, end = end](std::int64_t i) {
      const Wide above = static_cast<Wide>(begin) * (n - 1) + (static_cast<Wide>(end) - begin) * i;
      return static_cast<std::int64_t>(above / (n - 1));
    });
}

}  // namespace
}  // namespace poolgrad::kernels
