#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "allocator/error.h"
#include "kernels/cpu/strided.h"
#include "tests/kernels/test_array.h"

namespace poolgrad {
namespace {

TEST(DType, NamesRoundTrip) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean})
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  try {
    parse_dtype("float");
    FAIL() << "no exception";
  } catch (const DTypeError& error) {
    EXPECT_STREQ(error.what(),
                 "[parse_dtype] unknown dtype 'float': known are f64, f32, f16, bf16, i64, i32, u8, bool");
  }
}

template <class S>
void every_pattern_survives() {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    S stored;
    stored.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(stored);
    const S again(value);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(static_cast<float>(again))) << bits;
    else
      EXPECT_EQ(again.bits, stored.bits) << bits;
  }
}
TEST(HalfTypes, EveryBitPatternSurvivesARoundTripThroughFloat) {
  every_pattern_survives<Half>();
  every_pattern_survives<BFloat16>();
}

/// The value by the definition of the format: sign, exponent, fraction.
double value_of(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1, exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = (bits & ((1 << fraction_bits) - 1)) * std::ldexp(1.0, -fraction_bits);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent ? std::ldexp(1.0 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias));
}

TEST(HalfTypes, EveryBitPatternDecodesToItsValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Half half;
    BFloat16 brain;
    half.bits = brain.bits = static_cast<std::uint16_t>(bits);
    EXPECT_TRUE(kernels::testing::close(static_cast<float>(half), value_of(half.bits, 5, 10), 0)) << bits;
    EXPECT_TRUE(kernels::testing::close(static_cast<float>(brain), value_of(brain.bits, 8, 7), 0)) << bits;
  }
}

/// Returns the nearer of the two neighbors; on a tie, the even one. Compares values alone.
template <class S, class From>
void rounds_to_nearest_even(From x, int exponent_bits, int fraction_bits) {
  const S rounded = narrowed<S>(x);
  const long double exact = std::abs(static_cast<long double>(x));  // 64 significant bits: exact for every i64
  ASSERT_EQ(rounded.bits >> 15, std::signbit(static_cast<long double>(x))) << x;
  const std::uint16_t bits = rounded.bits & 0x7fff,
                      infinity = static_cast<std::uint16_t>(0x8000 - (1 << fraction_bits));
  const auto magnitude = [&](int pattern) {  // infinity stands for the next number of a wider exponent
    if (pattern < infinity) return value_of(static_cast<std::uint16_t>(pattern), exponent_bits, fraction_bits);
    return std::ldexp(1.0, 1 << (exponent_bits - 1));
  };
  ASSERT_LE(bits, infinity) << x;
  const long double error = std::abs(magnitude(bits) - exact);
  if (bits > 0) {
    ASSERT_LE(magnitude(bits) - exact, exact - magnitude(bits - 1)) << x;
  }
  if (bits < infinity) {
    const long double above = magnitude(bits + 1) - exact;
    ASSERT_LE(error, above) << x;
    if (error == above) {
      ASSERT_EQ(bits & 1, 0) << x;
    }
  }
  if (bits > 0 && error == exact - magnitude(bits - 1)) {
    ASSERT_EQ(bits & 1, 0) << x;
  }
}

TEST(HalfTypes, ConversionRoundsToTheNearestEvenNeighbour) {
  std::mt19937_64 random(poolgrad::test_seed());
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) rounds_to_nearest_even<BFloat16>(x, 8, 7);
    // Exponents close to those of binary16: subnormal and overflowing results are frequent.
    const float y = std::ldexp(std::copysign(1.0f + 0x1p-23f * static_cast<float>(random() % (1 << 23)), x),
                               static_cast<int>(random() % 48) - 28);
    rounds_to_nearest_even<Half>(y, 5, 10);
    const float tie =
        std::ldexp(1.0f + 0x1p-11f * static_cast<float>(random() % 2048), static_cast<int>(random() % 30) - 14);
    rounds_to_nearest_even<Half>(tie, 5, 10);
  }
}

/// A double close to a number with `bits` bits, or to the midpoint of two. Rounding to f32 first may give a wrong
/// result.
double near_tie(std::mt19937_64& random, int bits, int least_exponent, int exponents) {
  const double tie = 1.0 + std::ldexp(static_cast<double>(random() % (std::uint64_t{1} << bits)), -bits);
  const double off[] = {0, 0x1p-52, -0x1p-52, 0x1p-30, -0x1p-30, 0x1p-25, -0x1p-25, 0x1p-24, -0x1p-24, 0x1p-23};
  return std::ldexp((random() & 1 ? 1 : -1) * (tie + off[random() % std::size(off)]),
                    static_cast<int>(random() % static_cast<unsigned>(exponents)) + least_exponent);
}

TEST(HalfTypes, ConversionFromDoubleAndIntegersRoundsOnce) {
  std::mt19937_64 random(poolgrad::test_seed());
  for (int i = 0; i < 100000; ++i) {
    rounds_to_nearest_even<Half>(near_tie(random, 11, -28, 46), 5, 10);
    rounds_to_nearest_even<BFloat16>(near_tie(random, 8, -140, 270), 8, 7);
    const double any = std::bit_cast<double>(random());
    if (!std::isnan(any)) rounds_to_nearest_even<BFloat16>(any, 8, 7);
    if (!std::isnan(any)) rounds_to_nearest_even<Half>(any, 5, 10);
    // Midpoints of two bf16 numbers, and their neighbors.
    const int shift = 8 + static_cast<int>(random() % 47);
    const auto middle = static_cast<std::int64_t>((256 + 2 * (random() % 128) + 1) << shift >> 1);
    const std::int64_t integer = (random() & 1 ? 1 : -1) * (middle + static_cast<std::int64_t>(random() % 3) - 1);
    rounds_to_nearest_even<BFloat16>(integer, 8, 7);
    rounds_to_nearest_even<BFloat16>(static_cast<std::int64_t>(random()), 8, 7);
    rounds_to_nearest_even<Half>(static_cast<std::int64_t>(random() >> (random() % 64)), 5, 10);
    rounds_to_nearest_even<Half>(static_cast<std::int32_t>(random() % 140000) - 70000, 5, 10);
  }
  for (const std::int64_t end : {INT64_MIN, INT64_MAX, std::int64_t{-1} << 53, (std::int64_t{1} << 53) + 1})
    rounds_to_nearest_even<BFloat16>(end, 8, 7);
  for (const double least : {0x1p-1074, -0x1p-1074, 0x1p-150, 0x1p-134, 0x1.8p-134, 0x1.8000000000001p-134, 0.0, -0.0})
    rounds_to_nearest_even<BFloat16>(least, 8, 7);
}

TEST(HalfTypes, ConversionAgreesWithTheCompilersBinary16) {
#if defined(__FLT16_MAX__)
  for (std::uint64_t word = 0; word < 0x100000000ull; word += 977) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(word));
    if (std::isnan(x)) continue;
    ASSERT_EQ(Half(x).bits, std::bit_cast<std::uint16_t>(static_cast<_Float16>(x))) << x;
  }
#else
  GTEST_SKIP() << "the compiler has no _Float16";
#endif
}

template <class S>
void blocks_convert_as_elements_do() {
  std::mt19937_64 random(poolgrad::test_seed());
  std::vector<float> values(4099), back(values.size());
  std::vector<S> stored(values.size());
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  values[3] = 65519.9f, values[4] = 65520.0f, values[5] = 1e-8f, values[6] = -0.0f;
  const auto n = static_cast<std::int64_t>(values.size());
  kernels::narrow<float>(values.data(), n, dtype_of<S>, stored.data());
  kernels::widen<float>(dtype_of<S>, stored.data(), n, back.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const S element(values[i]);
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(back[i]));
      continue;
    }
    EXPECT_EQ(stored[i].bits, element.bits) << values[i];
    EXPECT_EQ(back[i], static_cast<float>(element));
  }
}
TEST(HalfTypes, VectorConversionEqualsTheScalarOne) {
  blocks_convert_as_elements_do<Half>();
  blocks_convert_as_elements_do<BFloat16>();
}

template <class S, class From>
void blocks_narrow_as_elements_do(const std::vector<From>& values) {
  std::vector<S> stored(values.size());
  kernels::narrow<From>(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<S>, stored.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(stored[i].bits, narrowed<S>(values[i]).bits) << values[i];
  }
}
TEST(HalfTypes, BlocksOfDoublesAndIntegersConvertAsElementsDo) {
  std::mt19937_64 random(poolgrad::test_seed());
  std::vector<double> doubles(4099);
  std::vector<std::int64_t> integers(4099);
  for (double& value : doubles) value = near_tie(random, random() & 1 ? 11 : 8, -140, 270);
  for (std::int64_t& value : integers) value = static_cast<std::int64_t>(random() >> (random() % 64));
  doubles[1] = std::numeric_limits<double>::infinity(), doubles[2] = -1e300, doubles[3] = 1e-320, doubles[4] = -0.0;
  blocks_narrow_as_elements_do<Half>(doubles);
  blocks_narrow_as_elements_do<BFloat16>(doubles);
  blocks_narrow_as_elements_do<Half>(integers);
  blocks_narrow_as_elements_do<BFloat16>(integers);
}

}  // namespace
}  // namespace poolgrad
