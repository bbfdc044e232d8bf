// Overflow and underflow guards for norms of rows, for host and device.
#pragma once

#include <limits>

#include "kernels/functors/math.h"

namespace poolgrad::kernels {

/// Whether a mean of squares plus epsilon is accurate: no square overflowed or was subnormal. False for NaN.
template <class T>
POOLGRAD_HD bool squares_fit(T mean_of_squares) {
  using Range = std::numeric_limits<T>;
  return mean_of_squares >= Range::min() / Range::epsilon() && mean_of_squares <= Range::max();
}

/// Power of two that divides a row so that its squares and epsilon fit. Returns 1 if `largest`, the row's largest
/// magnitude, is not finite.
template <class T>
POOLGRAD_HD T scale_of_squares(T largest, T epsilon) {
  const T least = Math<T>::sqrt(epsilon);
  return Math<T>::power_of_two(largest < least ? least : largest);
}

}  // namespace poolgrad::kernels
