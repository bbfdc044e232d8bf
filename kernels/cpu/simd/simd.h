// Vectors of the widest available register for float and double, and transcendental functions on them. They use GCC's
// vector extensions: one source for AVX-512, AVX2, SSE and NEON. Internal to kernels/cpu.
//
//   Vec<float> x = load<float>(p); store(out, exp(x - max));
//
// Errors of the functions are relative to the true value, measured by tests/kernels/simd/simd_test.cpp.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/dtype.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels::simd {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(vector_bytes)));
};
/// vector_bytes / sizeof(T) elements; arithmetic, comparisons and ?: work lane by lane.
template <class T>
using Vec = typename VectorOf<T>::type;
/// Elements of Vec<T>.
template <class T>
inline constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));

template <class T>
inline Vec<T> broadcast(T value) {
  return value - Vec<T>{};  // x - 0 keeps the sign of zero
}

namespace detail {
#if defined(__AVX512F__)
// The unmasked intrinsics read an undefined register and make GCC 12 warn. This mask costs nothing.
inline constexpr __mmask16 every_lane = 0xffff;
#endif

/// As many narrow integers as Vec<float> has lanes.
typedef std::uint16_t Bits16 __attribute__((vector_size(vector_bytes / 2)));
using Bits32 = Vec<std::uint32_t>;

inline Vec<float> widen(Bits16 bits, BFloat16) {
  return reinterpret_cast<Vec<float>>(__builtin_convertvector(bits, Bits32) << 16);
}
inline Bits16 narrow(Vec<float> value, BFloat16) {
  const auto word = reinterpret_cast<Bits32>(value);
  const Bits32 rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const Bits32 quiet_nan = (word >> 16) | 0x40u;
  return __builtin_convertvector(value != value ? quiet_nan : rounded, Bits16);
}
inline Vec<float> widen(Bits16 bits, Half) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec<float>>(_mm512_maskz_cvtph_ps(every_lane, reinterpret_cast<__m256i>(bits)));
#elif defined(__AVX__) && defined(__F16C__)
  return reinterpret_cast<Vec<float>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
#else
  Vec<float> value{};
  for (int i = 0; i < lanes<float>; ++i) {
    Half half;
    half.bits = bits[i];
    value[i] = static_cast<float>(half);
  }
  return value;
#endif
}
inline Bits16 narrow(Vec<float> value, Half) {
#if defined(__AVX512F__)
  return reinterpret_cast<Bits16>(
      _mm512_maskz_cvtps_ph(every_lane, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX__) && defined(__F16C__)
  return reinterpret_cast<Bits16>(_mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
  Bits16 bits{};
  for (int i = 0; i < lanes<float>; ++i) bits[i] = Half(value[i]).bits;
  return bits;
#endif
}
}  // namespace detail

/// Compute type of the storage type S.
template <class S>
using Compute = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// Loads lanes<T> elements from any address; half types widen to float.
template <class T, class S>
inline Vec<T> load(const S* from) {
  static_assert(std::is_same_v<T, Compute<S>>);
  if constexpr (std::is_same_v<T, S>) {
    Vec<T> value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  } else {
    detail::Bits16 bits;
    std::memcpy(&bits, from, sizeof(bits));
    return detail::widen(bits, S{});
  }
}
/// Loads the first `count` elements; the other lanes are `rest`. Reads no other memory.
template <class T, class S>
inline Vec<T> load_partial(const S* from, std::int64_t count, T rest = T{}) {
  if (count >= lanes<T>) return load<T>(from);
  if (count <= 0) return broadcast(rest);
#if defined(__AVX512F__)
  const auto mask = (1u << static_cast<unsigned>(count)) - 1u;
  if constexpr (std::is_same_v<S, float>)
    return reinterpret_cast<Vec<T>>(
        _mm512_mask_loadu_ps(reinterpret_cast<__m512>(broadcast(rest)), static_cast<__mmask16>(mask), from));
  else if constexpr (std::is_same_v<S, double>)
    return reinterpret_cast<Vec<T>>(
        _mm512_mask_loadu_pd(reinterpret_cast<__m512d>(broadcast(rest)), static_cast<__mmask8>(mask), from));
#endif
  S buffer[lanes<T>] = {};
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  Vec<T> value = load<T>(buffer);
  for (std::int64_t i = count; i < lanes<T>; ++i) value[i] = rest;
  return value;
}

template <class S>
inline void store(S* to, Vec<Compute<S>> value) {
  if constexpr (std::is_same_v<S, Compute<S>>) {
    std::memcpy(static_cast<void*>(to), &value, sizeof(value));
  } else {
    const auto bits = detail::narrow(value, S{});
    std::memcpy(static_cast<void*>(to), &bits, sizeof(bits));
  }
}
template <class S>
inline void store_partial(S* to, Vec<Compute<S>> value, std::int64_t count) {
  if (count >= lanes<Compute<S>>) return store(to, value);
  if (count <= 0) return;
#if defined(__AVX512F__)
  const auto mask = (1u << static_cast<unsigned>(count)) - 1u;
  if constexpr (std::is_same_v<S, float>)
    return _mm512_mask_storeu_ps(to, static_cast<__mmask16>(mask), reinterpret_cast<__m512>(value));
  else if constexpr (std::is_same_v<S, double>)
    return _mm512_mask_storeu_pd(to, static_cast<__mmask8>(mask), reinterpret_cast<__m512d>(value));
#endif
  S buffer[lanes<Compute<S>>];
  store(buffer, value);
  for (std::int64_t i = 0; i < count; ++i) to[i] = buffer[i];
}

/// Rounds the value to S.
template <class S>
inline Vec<Compute<S>> stored(Vec<Compute<S>> value) {
  if constexpr (std::is_same_v<S, Compute<S>>)
    return value;
  else
    return detail::widen(detail::narrow(value, S{}), S{});
}

/// a > b ? a : b, lane by lane: b if either is NaN.
template <class V>
inline V max(V a, V b) {
  return a > b ? a : b;
}
template <class V>
inline V min(V a, V b) {
  return a < b ? a : b;
}
#if defined(__AVX__) && !defined(__AVX512F__)
// GCC 12 emits two instructions for a comparison with a constant.
inline Vec<float> max(Vec<float> a, Vec<float> b) { return _mm256_max_ps(a, b); }
inline Vec<float> min(Vec<float> a, Vec<float> b) { return _mm256_min_ps(a, b); }
#endif

namespace detail {
/// Combines lane i with lane i + Width, then with half of that, down to lane 0.
template <int Width, class T, class Combine, int... Lane>
inline T fold_lanes(Vec<T> value, const Combine& combine, std::integer_sequence<int, Lane...> order) {
  if constexpr (Width == 0)
    return value[0];
  else
    return fold_lanes<Width / 2, T>(
        combine(value, __builtin_shufflevector(value, value, ((Lane + Width) % lanes<T>)...)), combine, order);
}
}  // namespace detail

/// Folds all lanes with combine(vector, vector): halves combine until one lane is left, in a fixed order.
template <class T, class Combine>
inline T fold(Vec<T> value, const Combine& combine) {
  return detail::fold_lanes<lanes<T> / 2, T>(value, combine, std::make_integer_sequence<int, lanes<T>>{});
}
template <class T>
inline T sum(Vec<T> value) {
  return fold<T>(value, [](Vec<T> a, Vec<T> b) { return a + b; });
}
template <class T>
inline T max_lane(Vec<T> value) {
  return fold<T>(value, [](Vec<T> a, Vec<T> b) { return a > b ? a : b; });
}

namespace detail {
/// Swaps the off-diagonal blocks of size `Block` of every 2 x 2 blocks in lanes<T> rows.
template <class T, int Block, int... Lane>
inline void swap_blocks(Vec<T>* rows, std::integer_sequence<int, Lane...>) {
  constexpr int n = lanes<T>;
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    if (i & Block) continue;
    const Vec<T> a = rows[i], b = rows[i + Block];
    rows[i] = __builtin_shufflevector(a, b, (Lane & Block ? n + Lane - Block : Lane)...);
    rows[i + Block] = __builtin_shufflevector(a, b, (Lane & Block ? n + Lane : Lane + Block)...);
  }
}
template <class T, int Block>
inline void transpose_from(Vec<T>* rows) {
  swap_blocks<T, Block>(rows, std::make_integer_sequence<int, lanes<T>>{});
  if constexpr (Block > 1) transpose_from<T, Block / 2>(rows);
}
}  // namespace detail

/// Transposes lanes<T> x lanes<T> elements in registers.
template <class T>
inline void transpose(Vec<T>* rows) {
  detail::transpose_from<T, lanes<T> / 2>(rows);
}

namespace detail {

template <class T>
using Int = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

template <class T>
struct ExpConstants;
// (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, minimax with weight r^2; ln 2 in two parts, the first with trailing zeros.
template <>
struct ExpConstants<float> {
  static constexpr float lowest = -104.0f, highest = 89.0f;  // e^x is 0 below, infinity above
  static constexpr float rounder = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float polynomial[] = {1.39506159564917463e-3f, 8.36895334120086884e-3f, 4.16662038893195436e-2f,
                                         1.66665183086589291e-1f, 5.00000009580319583e-1f};
};
template <>
struct ExpConstants<double> {
  static constexpr double lowest = -746.0, highest = 710.0;
  static constexpr double rounder = 0x1.8p52, ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b39p-40;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double polynomial[] = {2.51180296699683549e-8, 2.76314119587407339e-7, 2.75572157510766474e-6,
                                          2.48014895963670817e-5, 1.98412699180192213e-4, 1.38888889473248679e-3,
                                          8.33333333330690267e-3, 4.16666666665143506e-2, 1.66666666666666995e-1,
                                          5.00000000000001285e-1};
};

/// x = n ln 2 + r: returns e^r - 1 and n as an integer. x must lie in [lowest, highest] or be NaN.
template <class T>
struct Reduced {
  Vec<T> fraction;
  Vec<Int<T>> exponent;
};
template <class T>
inline Reduced<T> reduce_exp(Vec<T> x) {
  using C = ExpConstants<T>;
  const Vec<T> shifted = x * T(1.442695040888963407) + C::rounder;
  const Vec<T> n = shifted - C::rounder;
  const Vec<T> r = (x - n * C::ln2_high) - n * C::ln2_low;
  Vec<T> q = broadcast(C::polynomial[0]);
  for (std::size_t i = 1; i < std::size(C::polynomial); ++i) q = q * r + C::polynomial[i];
  const auto rounder_bits = std::bit_cast<Int<T>>(C::rounder);
  return {q * (r * r) + r, reinterpret_cast<Vec<Int<T>>>(shifted) - rounder_bits};
}

/// 2^n for n within the normal exponents.
template <class T>
inline Vec<T> power_of_two(Vec<Int<T>> n) {
  using C = ExpConstants<T>;
  return reinterpret_cast<Vec<T>>((n + C::bias) << C::mantissa);
}

template <class T>
inline Vec<T> abs(Vec<T> x) {
  return reinterpret_cast<Vec<T>>(reinterpret_cast<Vec<Int<T>>>(x) & std::numeric_limits<Int<T>>::max());
}
template <class T>
inline Vec<T> with_sign_of(Vec<T> magnitude, Vec<T> x) {
  const auto sign = reinterpret_cast<Vec<Int<T>>>(x) & std::numeric_limits<Int<T>>::min();
  return reinterpret_cast<Vec<T>>(reinterpret_cast<Vec<Int<T>>>(magnitude) | sign);
}

template <class T>
inline Vec<T> exp(Vec<T> x) {
  using C = ExpConstants<T>;
  const Vec<T> low = broadcast(C::lowest), high = broadcast(C::highest);
  x = low > x ? low : x;  // this order keeps a NaN
  x = high < x ? high : x;
  const Reduced<T> reduced = reduce_exp<T>(x);
#if defined(__AVX512F__)
  const Vec<T> scaled = reduced.fraction + T(1);
  if constexpr (sizeof(T) == 4)
    return reinterpret_cast<Vec<T>>(
        _mm512_maskz_scalef_ps(every_lane, reinterpret_cast<__m512>(scaled),
                               reinterpret_cast<__m512>(__builtin_convertvector(reduced.exponent, Vec<T>))));
  else
    return reinterpret_cast<Vec<T>>(
        _mm512_maskz_scalef_pd(0xff, reinterpret_cast<__m512d>(scaled),
                               reinterpret_cast<__m512d>(__builtin_convertvector(reduced.exponent, Vec<T>))));
#else
  // Two factors: 2^n itself may be subnormal or overflow.
  const auto half = reduced.exponent >> 1;
  return (reduced.fraction + T(1)) * power_of_two<T>(half) * power_of_two<T>(reduced.exponent - half);
#endif
}

/// e^x - 1 for 0 <= x <= 40, or NaN.
template <class T>
inline Vec<T> expm1_positive(Vec<T> x) {
  const Reduced<T> reduced = reduce_exp<T>(x);
  const Vec<T> scale = power_of_two<T>(reduced.exponent);
  return reduced.fraction * scale + (scale - T(1));
}

/// e / (e + 2) with e = e^(2|x|) - 1 keeps the relative accuracy near 0.
template <class T>
inline Vec<T> tanh(Vec<T> x) {
  Vec<T> twice = abs<T>(x) * T(2);
  const Vec<T> limit = broadcast(T(40));  // tanh(20) is 1 in double
  twice = limit < twice ? limit : twice;
  const Vec<T> e = expm1_positive<T>(twice);
  return with_sign_of<T>(e / (e + T(2)), x);
}

}  // namespace detail

/// e^x. Relative error below 2e-7 (f32), 4e-16 (f64); 0 at -infinity, infinity above the range, subnormals and NaN
/// kept.
inline Vec<float> exp(Vec<float> x) { return detail::exp<float>(x); }
inline Vec<double> exp(Vec<double> x) { return detail::exp<double>(x); }

/// tanh(x), odd. Relative error below 4e-7 (f32), 8e-16 (f64).
inline Vec<float> tanh(Vec<float> x) { return detail::tanh<float>(x); }
inline Vec<double> tanh(Vec<double> x) { return detail::tanh<double>(x); }

/// 1 / (1 + e^-x). Exact limits 0 and 1.
inline Vec<float> sigmoid(Vec<float> x) { return 1.0f / (1.0f + exp(-x)); }
inline Vec<double> sigmoid(Vec<double> x) { return 1.0 / (1.0 + exp(-x)); }

/// The error function, odd. Relative error below 4e-7 (f32). f64 calls std::erf lane by lane.
inline Vec<float> erf(Vec<float> x) {
  // erf(x) / x as a rational minimax function of x^2 on [0, 3.93]; beyond, 1 - erf(x) is below half an ulp of 1.
  constexpr float above[] = {2.041973083e-6f, 2.848084803e-4f, 3.779601092e-3f,
                             5.279026105e-2f, 1.907836330e-1f, 1.128379145f};
  constexpr float below[] = {3.800409236e-5f, 1.165210857e-3f, 1.499742101e-2f, 1.142574417e-1f, 5.024103121e-1f, 1.0f};
  const Vec<float> limit = broadcast(3.93f), one = broadcast(1.0f);
  Vec<float> a = detail::abs<float>(x);
  a = limit < a ? limit : a;  // this order keeps a NaN
  const Vec<float> square = a * a;
  Vec<float> numerator = broadcast(above[0]), denominator = broadcast(below[0]);
  for (std::size_t i = 1; i < std::size(above); ++i) {
    numerator = numerator * square + above[i];
    denominator = denominator * square + below[i];
  }
  const Vec<float> value = a * numerator / denominator;
  return detail::with_sign_of<float>(value > one ? one : value, x);
}
inline Vec<double> erf(Vec<double> x) {
  for (int i = 0; i < lanes<double>; ++i) x[i] = std::erf(x[i]);
  return x;
}

}  // namespace poolgrad::kernels::simd
