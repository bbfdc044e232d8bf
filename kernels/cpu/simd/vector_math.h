// Math<V> for vectors, for functors with simd::Vec. exp, tanh, sigmoid and erf come from simd.h, the others are here.
// Relative errors below 3e-7 (f32) and 1e-15 (f64).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/simd/simd.h"
#include "kernels/functors/math.h"
#include "kernels/functors/trigonometry.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {

namespace simd::detail {

inline Vec<float> sqrt(Vec<float> x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec<float>>(_mm512_maskz_sqrt_ps(every_lane, reinterpret_cast<__m512>(x)));
#elif defined(__AVX__)
  return reinterpret_cast<Vec<float>>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  for (int i = 0; i < lanes<float>; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}
inline Vec<double> sqrt(Vec<double> x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec<double>>(_mm512_maskz_sqrt_pd(0xff, reinterpret_cast<__m512d>(x)));
#elif defined(__AVX__)
  return reinterpret_cast<Vec<double>>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(x)));
#else
  for (int i = 0; i < lanes<double>; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

/// x y + z, rounded once.
inline Vec<float> fma(Vec<float> x, Vec<float> y, Vec<float> z) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec<float>>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y), reinterpret_cast<__m512>(z)));
#elif defined(__FMA__)
  return reinterpret_cast<Vec<float>>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y), reinterpret_cast<__m256>(z)));
#else
  for (int i = 0; i < lanes<float>; ++i) x[i] = std::fma(x[i], y[i], z[i]);
  return x;
#endif
}
inline Vec<double> fma(Vec<double> x, Vec<double> y, Vec<double> z) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec<double>>(
      _mm512_fmadd_pd(reinterpret_cast<__m512d>(x), reinterpret_cast<__m512d>(y), reinterpret_cast<__m512d>(z)));
#elif defined(__FMA__)
  return reinterpret_cast<Vec<double>>(
      _mm256_fmadd_pd(reinterpret_cast<__m256d>(x), reinterpret_cast<__m256d>(y), reinterpret_cast<__m256d>(z)));
#else
  for (int i = 0; i < lanes<double>; ++i) x[i] = std::fma(x[i], y[i], z[i]);
  return x;
#endif
}

typedef float HalfVector __attribute__((vector_size(vector_bytes / 2)));

/// Stores a Vec<double> as elements of T, rounded.
inline void store_as(double* to, const Vec<double>& value) { std::memcpy(to, &value, sizeof(value)); }
inline void store_as(float* to, const Vec<double>& value) {
  const auto rounded = __builtin_convertvector(value, HalfVector);
  std::memcpy(to, &rounded, sizeof(rounded));
}

/// Applies a function of Vec<double> to a Vec<float>, half by half: the cheapest way to an accurate float.
template <class F, class... X>
inline Vec<float> through_double(const F& f, X... x) {
  HalfVector result[2];
  for (int h = 0; h < 2; ++h) {
    const auto part = [h](const Vec<float>& whole) {
      HalfVector half;
      std::memcpy(&half, reinterpret_cast<const char*>(&whole) + h * static_cast<int>(sizeof(half)), sizeof(half));
      return __builtin_convertvector(half, Vec<double>);
    };
    result[h] = __builtin_convertvector(f(part(x)...), HalfVector);
  }
  Vec<float> whole;
  std::memcpy(&whole, result, sizeof(whole));
  return whole;
}

template <class T>
struct LogConstants;
// 2 atanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...); the first dropped term is below half an ulp at |s| = 0.1716.
template <>
struct LogConstants<float> {
  static constexpr int terms = 5;
  static constexpr float to_normal = 0x1p23f;
  static constexpr int to_normal_exponent = 23;
};
template <>
struct LogConstants<double> {
  static constexpr int terms = 11;
  static constexpr double to_normal = 0x1p52;
  static constexpr int to_normal_exponent = 52;
};

/// x = 2^e m with m in [sqrt(1/2), sqrt(2)): log x = e ln 2 + 2 atanh((m - 1) / (m + 1)).
template <class T>
inline Vec<T> log(Vec<T> x) {
  using C = ExpConstants<T>;
  using L = LogConstants<T>;
  using Signed = Vec<Int<T>>;
  using Bits = Vec<std::make_unsigned_t<Int<T>>>;  // negative x and NaN may wrap
  const Vec<T> zero{};
  const auto subnormal = x < std::numeric_limits<T>::min();
  const Vec<T> scaled = subnormal ? x * L::to_normal : x;
  const Bits bits = reinterpret_cast<Bits>(scaled);
  // Moves the boundary between exponents from 1 to sqrt(1/2).
  const auto offset = static_cast<std::make_unsigned_t<Int<T>>>(std::bit_cast<Int<T>>(T(1)) -
                                                                std::bit_cast<Int<T>>(T(0.70710678118654752)));
  Signed exponent = (reinterpret_cast<Signed>(bits + offset) >> C::mantissa) - C::bias;
  const Vec<T> m = reinterpret_cast<Vec<T>>(bits - (reinterpret_cast<Bits>(exponent) << C::mantissa));
  exponent = subnormal ? exponent - Int<T>(L::to_normal_exponent) : exponent;
  const Vec<T> e = __builtin_convertvector(exponent, Vec<T>);
  const Vec<T> f = m - T(1), s = f / (m + T(1)), square = s * s;
  Vec<T> series = broadcast(T(1) / T(2 * L::terms + 1));
  for (int k = L::terms - 1; k >= 1; --k) series = series * square + T(1) / T(2 * k + 1);
  // 2 s = f - s f keeps the largest term exact.
  const Vec<T> correction = s * (T(2) * square * series - f);
  const Vec<T> result = e * C::ln2_high + (f + (correction + e * C::ln2_low));
  const Vec<T> infinity = broadcast(std::numeric_limits<T>::infinity());
  const Vec<T> nan = broadcast(std::numeric_limits<T>::quiet_NaN());
  return x == zero ? -infinity : (x < zero ? nan : (x < infinity ? result : x));
}

/// Kahan's correction of the rounding of 1 + x.
template <class T>
inline Vec<T> log1p(Vec<T> x) {
  const Vec<T> u = x + T(1), d = u - T(1);
  const Vec<T> corrected = log<T>(u) * (x / d);
  const Vec<T> infinity = broadcast(std::numeric_limits<T>::infinity());
  return d == Vec<T>{} ? x : (u < infinity ? (u == Vec<T>{} ? -infinity : corrected) : u);
}

template <class T>
inline Vec<T> expm1(Vec<T> x) {
  const Vec<T> low = broadcast(T(-40)), high = broadcast(T(40));
  Vec<T> inner = x < low ? low : x;
  inner = inner > high ? high : inner;
  const Reduced<T> reduced = reduce_exp<T>(inner);
  const Vec<T> scale = power_of_two<T>(reduced.exponent);
  const Vec<T> result = reduced.fraction * scale + (scale - T(1));
  return x > high ? exp<T>(x) : (x == Vec<T>{} ? x : result);
}

/// 2^n e^(r ln 2) with x = n + r, n whole.
template <class T>
inline Vec<T> exp2(Vec<T> x) {
  using C = ExpConstants<T>;
  constexpr T log2e = T(1.442695040888963407), ln2 = T(0.693147180559945309);
  const Vec<T> low = broadcast(C::lowest * log2e), high = broadcast(C::highest * log2e);
  x = low > x ? low : x;  // this order keeps a NaN
  x = high < x ? high : x;
  const Vec<T> shifted = x + C::rounder, n = shifted - C::rounder;
  const Vec<Int<T>> exponent = reinterpret_cast<Vec<Int<T>>>(shifted) - std::bit_cast<Int<T>>(C::rounder);
  const Vec<Int<T>> half = exponent >> 1;  // 2^n itself need not be a normal number
  return exp<T>((x - n) * ln2) * power_of_two<T>(half) * power_of_two<T>(exponent - half);
}

/// Recomputes lanes with large arguments one by one.
[[gnu::noinline, gnu::cold]] inline void replace_far(const Vec<double>& x, SineCosine<Vec<double>>& result) {
  for (int i = 0; i < lanes<double>; ++i) {
    const SineCosine<double> lane = kernels::sine_cosine(x[i]);
    result.sine[i] = lane.sine;
    result.cosine[i] = lane.cosine;
  }
}
inline SineCosine<Vec<double>> sine_cosine(Vec<double> x) {
  SineCosine<Vec<double>> result = trigonometry::of_near(x);
  const Vec<double> numbers =
      x == x ? x : Vec<double>{};  // NaN counts as near: it would hide far arguments in other lanes
  if (max_lane<double>(abs<double>(numbers)) > trigonometry::near) [[unlikely]]
    replace_far(x, result);
  return result;
}

/// x^y through double logarithms; exp and log handle infinite and zero operands.
inline Vec<float> pow(Vec<float> x, Vec<float> y) {
  const Vec<float> one = broadcast(1.0f), zero{}, nan = broadcast(std::numeric_limits<float>::quiet_NaN());
  const Vec<float> magnitude =
      through_double([](Vec<double> a, Vec<double> b) { return exp<double>(b * log<double>(a)); }, abs<float>(x), y);
  Vec<float> result = abs<float>(x) == one ? one : magnitude;
  // A negative base needs an integral exponent; it is odd if y / 2 is not integral. Above 2^24 all floats are even.
  const Vec<float> large = broadcast(0x1p24f);
  const Vec<float> bounded = abs<float>(y) < large ? y : zero;
  const Vec<std::int32_t> whole = __builtin_convertvector(bounded, Vec<std::int32_t>);
  const auto is_whole = __builtin_convertvector(whole, Vec<float>) == bounded;
  const auto is_odd = (whole & 1) != 0;
  const auto negative = reinterpret_cast<Vec<std::int32_t>>(x) < 0;
  result = negative ? ((is_whole & is_odd) != 0 ? -result : result) : result;
  result = x < zero ? ((is_whole | (abs<float>(x) > std::numeric_limits<float>::max())) != 0 ? result : nan) : result;
  result = x != x ? x : (y != y ? y : result);
  return y == zero ? one : (x == one ? one : result);
}
inline Vec<double> pow(Vec<double> x, Vec<double> y) {
  for (int i = 0; i < lanes<double>; ++i) x[i] = std::pow(x[i], y[i]);
  return x;
}

/// Applies a standard library function lane by lane: for functions outside training steps.
template <class T, class F, class... More>
inline Vec<T> each_lane(const F& f, Vec<T> x, More... more) {
  for (int i = 0; i < lanes<T>; ++i) x[i] = f(static_cast<T>(x[i]), static_cast<T>(more[i])...);
  return x;
}

template <class T>
struct VectorMath {
  using V = Vec<T>;
  using Scalar = T;
  static V sqrt(V x) { return detail::sqrt(x); }
  static V fma(V x, V y, V z) { return detail::fma(x, y, z); }
  static V exp(V x) { return simd::exp(x); }
  static V expm1(V x) { return detail::expm1<T>(x); }
  static V log(V x) { return detail::log<T>(x); }
  static V log1p(V x) { return detail::log1p<T>(x); }
  template <class F>
  static V in_double(const F& f, V x) {
    if constexpr (sizeof(T) == 8)
      return f(x);
    else
      return through_double(f, x);
  }
  static V sin(V x) {
    return in_double([](Vec<double> y) { return sine_cosine(y).sine; }, x);
  }
  static V cos(V x) {
    return in_double([](Vec<double> y) { return sine_cosine(y).cosine; }, x);
  }
  static V tan(V x) {
    return in_double(
        [](Vec<double> y) {
          const auto [sine, cosine] = sine_cosine(y);
          return sine / cosine;
        },
        x);
  }
  static V log2(V x) {
    return each_lane<T>([](T y) { return std::log2(y); }, x);
  }
  static V log10(V x) {
    return each_lane<T>([](T y) { return std::log10(y); }, x);
  }
  static V exp2(V x) { return detail::exp2<T>(x); }
  static V asin(V x) {
    return each_lane<T>([](T y) { return std::asin(y); }, x);
  }
  static V acos(V x) {
    return each_lane<T>([](T y) { return std::acos(y); }, x);
  }
  static V atan(V x) {
    return each_lane<T>([](T y) { return std::atan(y); }, x);
  }
  static V atan2(V y, V x) {
    return each_lane<T>([](T a, T b) { return std::atan2(a, b); }, y, x);
  }
  static V fmod(V x, V y) {
    return each_lane<T>([](T a, T b) { return std::fmod(a, b); }, x, y);
  }
  static V sinh(V x) {
    return each_lane<T>([](T y) { return std::sinh(y); }, x);
  }
  static V cosh(V x) {
    return each_lane<T>([](T y) { return std::cosh(y); }, x);
  }
  static V tanh(V x) { return simd::tanh(x); }
  static V sigmoid(V x) { return simd::sigmoid(x); }
  static V erf(V x) { return simd::erf(x); }
  static V pow(V x, V y) { return detail::pow(x, y); }
  static V round(V x) {
    constexpr T whole = T(1) / std::numeric_limits<T>::epsilon();  // larger floats have no fraction
    const V magnitude = detail::abs<T>(x), rounded = (magnitude + whole) - whole;
    return magnitude < whole ? with_sign_of<T>(rounded, x) : x;
  }
  static V power_of_two(V x) {
    constexpr T infinity = std::numeric_limits<T>::infinity(), least = std::numeric_limits<T>::min();
    const V power = reinterpret_cast<V>(reinterpret_cast<Vec<Int<T>>>(x) & std::bit_cast<Int<T>>(infinity));
    const V scale = power < least ? broadcast(least) : (power == infinity ? broadcast(T(1)) : power);
    return x == V{} ? broadcast(T(1)) : scale;
  }
  static V floor(V x) {
    const V nearest = round(x);
    return nearest > x ? nearest - T(1) : nearest;
  }
  static V ceil(V x) {
    const V nearest = round(x);
    return nearest < x ? with_sign_of<T>(detail::abs<T>(nearest + T(1)), x) : nearest;
  }
};

}  // namespace simd::detail

template <>
struct Math<simd::Vec<float>> : simd::detail::VectorMath<float> {};
template <>
struct Math<simd::Vec<double>> : simd::detail::VectorMath<double> {};

}  // namespace poolgrad::kernels
