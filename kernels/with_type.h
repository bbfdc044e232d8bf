// Maps a run-time DType to a compile-time C++ type: with_type(dtype, [&]<class T>(T) { ... }), and variants with fewer
// types.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace poolgrad {

/// Calls f(T{}) with the listed type of this dtype; with the last listed type if none matches.
template <class T, class... Others, class F>
decltype(auto) with_type_among(DType dtype, const F& f) {
  if constexpr (sizeof...(Others) == 0)
    return f(T{});
  else
    return dtype == dtype_of<T> ? f(T{}) : with_type_among<Others...>(dtype, f);
}

/// Calls f with the C++ type of a dtype.
template <class F>
decltype(auto) with_type(DType dtype, const F& f) {
  return with_type_among<double, float, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>(dtype, f);
}
/// Calls f with the C++ type of a floating dtype.
template <class F>
decltype(auto) with_floating_type(DType dtype, const F& f) {
  return with_type_among<double, Half, BFloat16, float>(dtype, f);
}
/// Calls f with the compute type of a dtype: float, double or int64_t.
template <class F>
decltype(auto) with_compute_type(DType dtype, const F& f) {
  return with_type_among<double, float, std::int64_t>(is_floating(dtype) ? compute_dtype(dtype) : DType::i64, f);
}
/// Calls f with the compute type of a floating dtype: float or double.
template <class F>
decltype(auto) with_floating_compute_type(DType dtype, const F& f) {
  return with_type_among<double, float>(dtype, f);
}
/// Calls f with the unsigned integer of an element's size, for copies.
template <class F>
decltype(auto) with_word(DType dtype, const F& f) {
  switch (size_of(dtype)) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

}  // namespace poolgrad
