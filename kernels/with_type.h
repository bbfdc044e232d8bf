// From a DType at run time to a C++ type at compile time.
#pragma once

#include "kernels/dtype.h"

namespace poolgrad {

/// Calls f(T{}) with the C++ type of `dtype`: `with_type(dtype, [&]<class T>(T) { ... })`.
template <class F>
decltype(auto) with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::u8: return f(std::uint8_t{});
    default: return f(bool{});
  }
}

/// A number of any dtype as f64 (i64 beyond 2^53 is rounded).
template <class T>
double as_double(T value) {
  if constexpr (requires { static_cast<double>(value); })
    return static_cast<double>(value);
  else
    return static_cast<double>(static_cast<float>(value));
}

}  // namespace poolgrad
