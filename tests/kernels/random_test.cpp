#include "kernels/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>

#include "kernels/cpu/simd/philox.h"
#include "kernels/functors/random.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

TEST(Philox, GivesThePublishedWords) {  // the known-answer vectors of Random123
  const auto words = [](PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
    const PhiloxWords result = philox(counter, key0, key1);
    return std::array{result.word[0], result.word[1], result.word[2], result.word[3]};
  };
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0), (std::array{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr std::uint32_t ones = 0xffffffffu;
  EXPECT_EQ(words({{ones, ones, ones, ones}}, ones, ones),
            (std::array{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(words({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u),
            (std::array{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, BlocksEqualSingleBlocks) {
  const RandomKey key{0x0123456789abcdefu, 0xfedcba9876543210u, 0};
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{0xfffffff5u}, ~std::uint64_t{0} - 30})
    for (const std::int64_t count : {0, 1, 15, 16, 17, 100}) {
      std::vector<std::uint32_t> words(static_cast<std::size_t>(4 * count + 1), 7);
      philox_blocks(key, first, count, words.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const PhiloxWords expected = philox_block(key.seed, key.use, first + static_cast<std::uint64_t>(i));
        for (int j = 0; j < 4; ++j) EXPECT_EQ(words[static_cast<std::size_t>(4 * i + j)], expected.word[j]);
      }
      EXPECT_EQ(words.back(), 7u);
    }
}

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0, lowest = 1e300, highest = -1e300;
  explicit Moments(const TestArray& x) {
    const auto n = static_cast<double>(x.count());
    for (std::int64_t i = 0; i < x.count(); ++i) {
      mean += x[i] / n;
      lowest = std::min(lowest, x[i]);
      highest = std::max(highest, x[i]);
    }
    for (std::int64_t i = 0; i < x.count(); ++i) variance += (x[i] - mean) * (x[i] - mean) / n;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double z = (x[i] - mean) / std::sqrt(variance);
      skew += z * z * z / n;
      kurtosis += z * z * z * z / n;
    }
  }
};

TEST(Uniform, FillsItsIntervalEvenly) {
  for (const DType dtype : floats) {
    TestArray x(dtype, {200000});
    uniform({}, {42, 1, 0}, x, -1, 3);
    const Moments m(x);
    EXPECT_NEAR(m.mean, 1, 0.02);
    EXPECT_NEAR(m.variance, 16.0 / 12, 0.02);
    EXPECT_NEAR(m.kurtosis, 1.8, 0.02);
    EXPECT_GE(m.lowest, -1);
    EXPECT_LT(m.highest, 3);
    EXPECT_GT(m.highest, 2.95);
    EXPECT_LT(m.lowest, -0.95);
  }
}

TEST(Uniform, NeverReachesItsUpperBoundByRounding) {
  for (const DType dtype : floats)
    for (const double high : {1.0, 1.5, -1.0, 64.0}) {
      TestArray x(dtype, {20000});
      uniform({}, {42, 1, 0}, x, high - 0.01 * std::abs(high), high);
      EXPECT_LT(Moments(x).highest, high) << to_string(dtype);
    }
}

TEST(Normal, HasTheMomentsOfTheNormalDistribution) {
  for (const DType dtype : floats) {
    TestArray x(dtype, {200000});
    normal({}, {43, 1, 0}, x, 2, 3);
    const Moments m(x);
    EXPECT_NEAR(m.mean, 2, 0.03);
    EXPECT_NEAR(m.variance, 9, 0.15);
    EXPECT_NEAR(m.skew, 0, 0.03);
    EXPECT_NEAR(m.kurtosis, 3, 0.08);
    EXPECT_GT(m.highest, 2 + 3 * 3.9);
    EXPECT_LT(m.highest, 2 + 3 * 7);
  }
}

TEST(Normal, FollowsBoxMuller) {
  const std::int64_t n = 100000;
  TestArray x(DType::f64, {n});
  const RandomKey key{11, 12, 13};
  normal({}, key, x, 2, 3);
  for (std::int64_t i = 0; i < n; ++i) {
    const PhiloxWords words = philox_block(11, 12 ^ (std::uint64_t{4} << 60), 13 + static_cast<std::uint64_t>(i));
    const long double u = unit_interval(words.word[0], words.word[1]), v = unit_interval(words.word[2], words.word[3]);
    const long double z = std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi_v<long double> * v);
    ASSERT_TRUE(close(x[i], static_cast<double>(2 + 3 * z), tolerance(DType::f64), 1e-15)) << i << ": " << x[i];
  }
}

/// Words at which the definition changes branches: halves, quarters of a turn, the smallest number.
TEST(Normal, IsExactAtItsEdges) {
  const NormalNumber normal{0, 1};
  EXPECT_EQ(normal(0.0, 0.3), 0.0);
  const double length = std::sqrt(-2 * std::log(0x1p-53)), last = 1 - 0x1p-53;
  EXPECT_NEAR(normal(last, 0.0), length, 1e-14);
  EXPECT_NEAR(normal(last, 0.5), -length, 1e-14);
  EXPECT_EQ(normal(last, 0.25), 0.0);
  EXPECT_EQ(normal(last, 0.75), 0.0);
  EXPECT_NEAR(normal(last, last), length, 1e-14);
  for (const double quarter : {0.125, 0.375, 0.625, 0.875})
    for (const double v : {quarter - 0x1p-53, quarter, quarter + 0x1p-53})
      EXPECT_NEAR(normal(0.5, v), std::sqrt(2 * std::log(2.0)) * std::cos(2 * std::numbers::pi * v), 1e-15);
  for (const double u : {1 - std::sqrt(0.5), std::nextafter(1 - std::sqrt(0.5), 0), 0x1p-53, 0x1p-30})
    EXPECT_NEAR(normal(u, 0.0), std::sqrt(-2 * std::log1p(-u)), 4e-16 * std::sqrt(-2 * std::log1p(-u)) + 1e-15);
}

/// The three generators with one signature; dropout applies to ones.
using Generate = void (*)(RandomKey, View);
const Generate generators[] = {[](RandomKey key, View out) { uniform({}, key, out, 0, 1); },
                               [](RandomKey key, View out) { normal({}, key, out, 0, 1); },
                               [](RandomKey key, View out) {
                                 TestArray ones(out.dtype, {out.count()});
                                 ones.fill([](std::int64_t) { return 1.0; });
                                 View x = out;
                                 x.data = ones.view().data;
                                 std::int64_t step = 1;
                                 for (int d = x.rank - 1; d >= 0; --d) x.strides[d] = step, step *= x.shape[d];
                                 dropout({}, key, out, x, 0.5);
                               }};

TEST(RandomNumbers, DependOnTheirAbsoluteIndexAlone) {
  for (const Generate generate : generators) {
    TestArray whole(DType::f32, {5000});
    generate({7, 8, 0}, whole);
    for (const std::int64_t offset : {1, 2, 3, 5, 1023, 4097}) {
      TestArray part(DType::f32, {5000 - offset});
      generate({7, 8, static_cast<std::uint64_t>(offset)}, part);
      expect_elements(
          part, [&](std::int64_t i) { return whole[offset + i]; }, 0);
    }
    for (const Layout layout : output_layouts) {
      TestArray matrix(DType::f32, {50, 100}, layout);
      generate({7, 8, 0}, matrix);
      expect_elements(
          matrix, [&](std::int64_t i) { return whole[i]; }, 0);
    }
    TestArray other_seed(DType::f32, {5000}), other_use(DType::f32, {5000});
    generate({9, 8, 0}, other_seed);
    generate({7, 9, 0}, other_use);
    EXPECT_NE(other_seed.bytes(), whole.bytes());
    EXPECT_NE(other_use.bytes(), whole.bytes());
    TestArray many(DType::f32, {40000});
    expect_same_bits_for_any_thread_count(many, [&] { generate({7, 8, 3}, many); });
  }
}

TEST(RandomNumbers, AreEqualInEveryDtype) {
  TestArray exact(DType::f64, {3000}), bell(DType::f64, {3000});
  uniform({}, {1, 2, 3}, exact, -1, 1);
  normal({}, {1, 2, 3}, bell, 0, 1);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    TestArray x(dtype, {3000});
    uniform({}, {1, 2, 3}, x, -1, 1);
    expect_elements(
        x, [&](std::int64_t i) { return exact[i]; }, tolerance(dtype), 1e-7);
    normal({}, {1, 2, 3}, x, 0, 1);
    expect_elements(
        x, [&](std::int64_t i) { return bell[i]; }, tolerance(dtype), 1e-7);
  }
}

TEST(Dropout, KeepsTheExpectedShareAndScalesIt) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const double p : {0.0, 0.1, 0.5, 1.0}) {
      TestArray x(dtype, {100, 1000}, Layout::transposed), out(dtype, {100, 1000});
      x.random(random, 1, 2);
      dropout({}, {5, 6, 7}, out, x, p);
      double dropped = 0;
      for (std::int64_t i = 0; i < out.count(); ++i) {
        dropped += out[i] == 0;
        if (out[i] != 0) {
          ASSERT_TRUE(close(out[i], x[i] / (1 - p), tolerance(dtype)));
        }
      }
      EXPECT_NEAR(dropped / 100000, p, p * (1 - p) * 0.03);
    }
}

TEST(Dropout, DropsTheSameElementsOfAGradient) {
  TestArray x(DType::f32, {1000}), grad(DType::bf16, {1000}), out(DType::f32, {1000}), dx(DType::bf16, {1000});
  x.fill([](std::int64_t) { return 1.0; });
  grad.fill([](std::int64_t) { return 2.0; });
  dropout({}, {5, 6, 7}, out, x, 0.3);
  dropout({}, {5, 6, 7}, dx, grad, 0.3);
  for (std::int64_t i = 0; i < 1000; ++i) EXPECT_EQ(out[i] == 0, dx[i] == 0);
}

}  // namespace
}  // namespace poolgrad::kernels
