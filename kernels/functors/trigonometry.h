// Sine and cosine of any argument, bitwise equal on host and device. A GPU library would need per-thread memory for a
// table for large arguments. V is double or a vector of them. Errors are below 2.5 ulps.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels {

template <class V>
struct Math;

template <class V>
struct SineCosine {
  V sine, cosine;
};

namespace trigonometry {

/// Result type of vector comparisons: as many integers of the same size.
template <class V>
using Integer = std::conditional_t<std::is_same_v<V, double>, std::int64_t, decltype(V{} < V{})>;

/// Sine and cosine of `quarters` quarter turns plus an angle in [-pi / 4, pi / 4], by Taylor series.
template <class V>
POOLGRAD_HD SineCosine<V> of_quarters(Integer<V> quarters, V angle) {
  const V square = angle * angle;
  V odd = V{} - 1.0 / 1307674368000, even = V{} + 1.0 / 20922789888000;
  constexpr double sines[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6};
  constexpr double cosines[] = {-1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24};
  for (int i = 0; i < 6; ++i) {
    odd = Math<V>::fma(odd, square, V{} + sines[i]);
    even = Math<V>::fma(even, square, V{} + cosines[i]);
  }
  const V sine = square == V{} ? angle : Math<V>::fma(angle * square, odd, angle);  // -0 stays -0
  const V half = 0.5 * square, rest = 1.0 - half;
  const V cosine = rest + Math<V>::fma(square * square, even, (1.0 - rest) - half);
  constexpr std::int64_t one = 1, two = 2;
  const auto odd_quarter = (quarters & one) == one;
  const V a = odd_quarter ? cosine : sine, b = odd_quarter ? sine : cosine;
  return {(quarters & two) == two ? -a : a, ((quarters + one) & two) == two ? -b : b};
}

/// Up to this argument, pi / 2 in three parts is enough: quarter turns fit the 20 bits that the first two parts leave
/// free.
inline constexpr double near = 1e6;

/// For |x| <= near: subtracts whole quarter turns (Cody & Waite 1980).
template <class V>
POOLGRAD_HD SineCosine<V> of_near(V x) {
  // The low bits hold the nearest integer.
  const V shifted = Math<V>::fma(x, V{} + 2 / std::numbers::pi, V{} + 0x1.8p52), turned = -(shifted - 0x1.8p52);
  V angle = Math<V>::fma(turned, V{} + 0x1.921fb544p+0, x);
  angle = Math<V>::fma(turned, V{} + 0x1.0b4611a6p-34, angle);
  angle = Math<V>::fma(turned, V{} + 0x1.3198a2e037073p-69, angle);
  return of_quarters(std::bit_cast<Integer<V>>(shifted), angle);
}

/// For |x| > near: multiplies x by the relevant bits of 2 / pi (Payne & Hanek 1983). It skips bits that give multiples
/// of four quarter turns and keeps enough bits after the point. Returns NaN if x is not finite.
POOLGRAD_HD inline SineCosine<double> of_far(double x) {
  // 2 / pi after 64 zeros, most significant first: enough for the largest double.
  static constexpr std::uint64_t words[] = {
      0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
      0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41,
      0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7,
      0x4f463f669e5fea2d, 0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto exponent = static_cast<unsigned>(bits >> 52) & 0x7ff;
  if (exponent == 0x7ff) return {x - x, x - x};
  const std::uint64_t mantissa = (bits & 0xfffffffffffff) | 0x10000000000000;
  // x = mantissa * 2^(exponent - 1075). Bits of 2 / pi above the one worth two quarter turns for the last mantissa bit
  // contribute only multiples of four quarter turns.
  const unsigned skipped = exponent - 1075 + 62, shift = skipped % 64;
  const std::uint64_t* word = words + skipped / 64;
  const auto window = [&](int i) { return shift == 0 ? word[i] : word[i] << shift | word[i + 1] >> (64 - shift); };

  // The lowest 192 bits of the product are the fraction of a turn.
  using Wide = unsigned __int128;
  const Wide low = Wide{mantissa} * window(2), middle = Wide{mantissa} * window(1) + (low >> 64);
  const std::uint64_t high = mantissa * window(0) + static_cast<std::uint64_t>(middle >> 64);
  // Two bits give the quarters. The rest is rounded to nearest, so it may be negative.
  const Wide fraction =
      Wide{high} << 66 | Wide{static_cast<std::uint64_t>(middle)} << 2 | static_cast<std::uint64_t>(low) >> 62;
  const bool up = static_cast<std::int64_t>(fraction >> 64) < 0;
  const Wide distance = up ? -fraction : fraction;
  const double rest = std::fma(static_cast<double>(static_cast<std::uint64_t>(distance >> 64)), 0x1p-64,
                               static_cast<double>(static_cast<std::uint64_t>(distance)) * 0x1p-128);
  const double angle = rest * (std::numbers::pi / 2);
  const auto quarters = static_cast<std::int64_t>(high >> 62) + (up ? 1 : 0);
  const bool negative = x < 0;
  return of_quarters(negative ? -quarters : quarters, up != negative ? -angle : angle);
}

}  // namespace trigonometry

POOLGRAD_HD inline SineCosine<double> sine_cosine(double x) {
  return std::abs(x) <= trigonometry::near ? trigonometry::of_near(x) : trigonometry::of_far(x);
}

}  // namespace poolgrad::kernels
