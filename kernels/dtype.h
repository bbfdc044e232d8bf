// Element types. f16 and bf16 are storage types: their arithmetic is in f32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "allocator/error.h"
#include "kernels/functors/host_device.h"

namespace poolgrad {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, u8, boolean };

inline constexpr std::string_view dtype_names[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool"};
/// "f32", "bf16", "bool", ...
constexpr std::string_view to_string(DType dtype) { return dtype_names[static_cast<std::size_t>(dtype)]; }
/// The inverse of to_string(). Throws a DTypeError that lists the names.
inline DType parse_dtype(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(dtype_names); ++i) {
    if (name == dtype_names[i]) return static_cast<DType>(i);
    known += (i ? ", " : "") + std::string(dtype_names[i]);
  }
  throw DTypeError("[parse_dtype] unknown dtype '" + std::string(name) + "': known are " + known);
}

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    default: return 1;
  }
}
constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }

/// Bits of a floating dtype's significand, including the implicit one. Integers up to 2 to that power are exact.
constexpr int significant_bits(DType dtype) {
  switch (dtype) {
    case DType::f64: return 53;
    case DType::f32: return 24;
    case DType::f16: return 11;
    default: return 8;  // bf16
  }
}

/// Whether the dtype can hold the number. Floating dtypes round every number. Integers and bools hold only integers in
/// their range.
constexpr bool has_number(DType dtype, double number) {
  const auto within = [&](double low, double high) {  // [low, high)
    return number >= low && number < high && static_cast<double>(static_cast<std::int64_t>(number)) == number;
  };
  switch (dtype) {
    case DType::i64: return within(-0x1p63, 0x1p63);
    case DType::i32: return within(-0x1p31, 0x1p31);
    case DType::u8: return within(0.0, 256.0);
    case DType::boolean: return within(0.0, 2.0);
    default: return true;
  }
}
/// f64 stays f64; every other floating type computes in f32.
constexpr DType compute_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// IEEE binary16. Conversion rounds to nearest even.
struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  POOLGRAD_HD explicit Half(float value);
  POOLGRAD_HD explicit operator float() const;
};

/// The upper half of an IEEE binary32. Conversion rounds to nearest even and keeps NaN a NaN.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  POOLGRAD_HD explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    bits = value != value ? static_cast<std::uint16_t>((word >> 16) | 0x40u)
                          : static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  POOLGRAD_HD explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

inline POOLGRAD_HD Half::Half(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (word >> 16) & 0x8000u;
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    bits = static_cast<std::uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to infinity
    bits = static_cast<std::uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal or zero: let the float adder round
    const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(0x3f000000u);
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  } else {
    const std::uint32_t rebiased = magnitude - 0x38000000u;
    bits = static_cast<std::uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }
}

inline POOLGRAD_HD Half::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) return std::bit_cast<float>(sign | (magnitude + 0x70000000u));  // infinity, NaN
  if (magnitude < 0x00800000u) {  // subnormal: renormalized by a float subtraction
    const float value = std::bit_cast<float>(magnitude + 0x38800000u) - std::bit_cast<float>(0x38800000u);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | (magnitude + 0x38000000u));
}

/// Rounds x to odd in f32 (Boldo & Melquiond 2008): between two floats it takes the one whose last bit is 1. A later
/// rounding to f16 or bf16 then equals the direct rounding of x.
POOLGRAD_HD inline float rounded_to_odd(float x) { return x; }
POOLGRAD_HD inline float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  const auto back = static_cast<double>(nearest);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (back == x || x != x || (bits & 1u) != 0) return nearest;
  const bool below = (x < 0 ? -x : x) > (back < 0 ? -back : back);
  return std::bit_cast<float>(below ? bits + 1u : bits - 1u);
}
POOLGRAD_HD inline float rounded_to_odd(std::int64_t x) {
  // A double has 53 bits. One sticky bit stands for the 11 bits below them.
  constexpr std::int64_t rest = 2047;
  const bool exact = static_cast<std::uint64_t>(x) + (std::uint64_t{1} << 53) <= std::uint64_t{1} << 54;
  return rounded_to_odd(static_cast<double>(exact || (x & rest) == 0 ? x : (x & ~rest) | (rest + 1)));
}

/// Converts `x` to another element type. Floating types round once, to nearest even. Float to integer truncates,
/// saturates at the ends of the range, and maps NaN to 0. Integer to a narrower integer keeps the low bits. A bool is x
/// != 0.
template <class To, class From>
POOLGRAD_HD To narrowed(From x) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return narrowed<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    using Exact = std::conditional_t<std::is_integral_v<From>, std::int64_t, From>;
    return To(rounded_to_odd(static_cast<Exact>(x)));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    using Range = std::numeric_limits<To>;
    constexpr From lowest = static_cast<From>(Range::min());
    constexpr From beyond = static_cast<From>(std::uint64_t{1} << (Range::digits - 1)) * From(2);
    if (!(x > lowest)) return x <= lowest ? Range::min() : To{};  // NaN gives 0
    return x < beyond ? static_cast<To>(x) : Range::max();
  } else {
    return static_cast<To>(x);
  }
}

/// Rounds a number to a floating dtype. Other dtypes return it unchanged.
inline double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(static_cast<float>(value));
    case DType::f16: return static_cast<double>(static_cast<float>(narrowed<Half>(value)));
    case DType::bf16: return static_cast<double>(static_cast<float>(narrowed<BFloat16>(value)));
    default: return value;
  }
}

/// The DType of a C++ type: dtype_of<float> == DType::f32.
template <class T>
inline constexpr DType dtype_of = [] {
  constexpr bool same[] = {std::is_same_v<T, double>,       std::is_same_v<T, float>,
                           std::is_same_v<T, Half>,         std::is_same_v<T, BFloat16>,
                           std::is_same_v<T, std::int64_t>, std::is_same_v<T, std::int32_t>,
                           std::is_same_v<T, std::uint8_t>, std::is_same_v<T, bool>};
  int index = 0;
  while (!same[index]) ++index;  // a type without a DType runs past the end: not a constant expression
  return static_cast<DType>(index);
}();

}  // namespace poolgrad
