// Element types. f16 and bf16 are storage: arithmetic on them is done in f32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/definition/host_device.h"

namespace poolgrad {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, u8, boolean };

/// "f32", "bf16", "bool", ...
std::string_view to_string(DType dtype);
/// The inverse; throws DTypeError that lists the names.
DType parse_dtype(std::string_view name);

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
  if (magnitude < 0x00800000u) {  // subnormal: renormalised by a float subtraction
    const float value = std::bit_cast<float>(magnitude + 0x38800000u) - std::bit_cast<float>(0x38800000u);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | (magnitude + 0x38000000u));
}

/// The DType of a C++ type: dtype_of<float> == DType::f32.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no DType for this type");
  return DType::f32;
}();
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<Half> = DType::f16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

}  // namespace poolgrad
