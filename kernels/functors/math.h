// Elementary functions under one name for every type of elementwise.h's functors: float, double and int64_t here, on
// host and device; vectors in kernels/cpu/simd/vector_math.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/functors/host_device.h"
#include "kernels/functors/trigonometry.h"

namespace poolgrad::kernels {

/// V is the operand type; Scalar is the type of its elements.
template <class V>
struct Math {
  using Scalar = V;
  static POOLGRAD_HD V sqrt(V x) { return std::sqrt(x); }
  /// x y + z, rounded once.
  static POOLGRAD_HD V fma(V x, V y, V z) { return std::fma(x, y, z); }
  static POOLGRAD_HD V exp(V x) { return std::exp(x); }
  static POOLGRAD_HD V expm1(V x) { return std::expm1(x); }
  static POOLGRAD_HD V log(V x) { return std::log(x); }
  static POOLGRAD_HD V log1p(V x) { return std::log1p(x); }
  static POOLGRAD_HD V log2(V x) { return std::log2(x); }
  static POOLGRAD_HD V log10(V x) { return std::log10(x); }
  static POOLGRAD_HD V exp2(V x) { return std::exp2(x); }
  static POOLGRAD_HD V sin(V x) { return static_cast<V>(sine_cosine(x).sine); }
  static POOLGRAD_HD V cos(V x) { return static_cast<V>(sine_cosine(x).cosine); }
  static POOLGRAD_HD V tan(V x) {
    const SineCosine<double> of = sine_cosine(x);
    return static_cast<V>(of.sine / of.cosine);
  }
  static POOLGRAD_HD V asin(V x) { return std::asin(x); }
  static POOLGRAD_HD V acos(V x) { return std::acos(x); }
  static POOLGRAD_HD V atan(V x) { return std::atan(x); }
  static POOLGRAD_HD V atan2(V y, V x) { return std::atan2(y, x); }
  static POOLGRAD_HD V fmod(V x, V y) { return std::fmod(x, y); }
  static POOLGRAD_HD V sinh(V x) { return std::sinh(x); }
  static POOLGRAD_HD V cosh(V x) { return std::cosh(x); }
  static POOLGRAD_HD V tanh(V x) { return std::tanh(x); }
  static POOLGRAD_HD V sigmoid(V x) { return V(1) / (V(1) + std::exp(-x)); }
  static POOLGRAD_HD V erf(V x) { return std::erf(x); }
  static POOLGRAD_HD V pow(V x, V y) { return std::pow(x, y); }
  static POOLGRAD_HD V floor(V x) { return std::floor(x); }
  static POOLGRAD_HD V ceil(V x) { return std::ceil(x); }
  /// Rounds halves to even.
  static POOLGRAD_HD V round(V x) { return std::rint(x); }
  /// The largest power of two up to |x|, or the smallest normal number; 1 for 0, infinities and NaN.
  static POOLGRAD_HD V power_of_two(V x) {
    using Bits = std::conditional_t<sizeof(V) == 8, std::int64_t, std::int32_t>;
    constexpr V infinity = std::numeric_limits<V>::infinity(), least = std::numeric_limits<V>::min();
    const V power = std::bit_cast<V>(std::bit_cast<Bits>(x) & std::bit_cast<Bits>(infinity));
    return x == V{} || power == infinity ? V(1) : (power < least ? least : power);
  }
};

template <>
struct Math<std::int64_t> {
  using V = std::int64_t;
  using Scalar = V;
  /// Repeated squaring; a negative exponent truncates 1 / x^n.
  static POOLGRAD_HD V pow(V x, V y) {
    if (y < 0) return x == 1 ? 1 : (x == -1 ? (y % 2 ? -1 : 1) : 0);
    std::uint64_t result = 1, factor = static_cast<std::uint64_t>(x);
    for (; y > 0; y /= 2, factor *= factor)
      if (y % 2) result *= factor;
    return static_cast<V>(result);
  }
  static POOLGRAD_HD V floor(V x) { return x; }
  static POOLGRAD_HD V ceil(V x) { return x; }
  static POOLGRAD_HD V round(V x) { return x; }
};

}  // namespace poolgrad::kernels
