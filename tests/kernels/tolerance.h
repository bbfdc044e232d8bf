// Tolerances of kernels by dtype, against a naive f64 definition on the same stored inputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/dtype.h"

namespace poolgrad::kernels::testing {

/// Relative error of one result: half types round once at the end (2^-11, 2^-8); f32 and f64 err by a few ulps.
constexpr double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 4e-15;
    case DType::f32: return 1e-6;
    case DType::f16: return 6e-4;
    case DType::bf16: return 4.5e-3;
    default: return 0.0;
  }
}

/// The smallest magnitude that rounds to infinity: half a step above the largest number of the dtype.
constexpr double overflow(DType dtype) {
  switch (dtype) {
    case DType::f16: return 65520;
    case DType::bf16: return 0x1.ffp127;
    case DType::f32: return 0x1.ffffffp127;
    default: return std::numeric_limits<double>::infinity();
  }
}

/// Equal infinities are close, and so are two NaNs. Otherwise |actual - expected| <= relative * |expected| + absolute.
inline bool close(double actual, double expected, double relative, double absolute = 0.0) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= relative * std::abs(expected) + absolute;
}

}  // namespace poolgrad::kernels::testing
