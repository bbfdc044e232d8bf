// When a norm of a row takes care: host and device alike.
#pragma once

#include <limits>

#include "kernels/definition/math.h"

namespace poolgrad::kernels {

/// Whether a mean of squares, epsilon added, lost no square to the ends of T's range: neither overflowed nor so small
/// that squares were subnormal. NaN gives false.
template <class T>
POOLGRAD_HD bool squares_fit(T mean_of_squares) {
  using Range = std::numeric_limits<T>;
  return mean_of_squares >= Range::min() / Range::epsilon() && mean_of_squares <= Range::max();
}

/// The power of two by which a row is divided so that its squares and epsilon fit; 1 where `largest`, its largest
/// magnitude, is not finite.
template <class T>
POOLGRAD_HD T scale_of_squares(T largest, T epsilon) {
  const T least = Math<T>::sqrt(epsilon);
  return Math<T>::power_of_two(largest < least ? least : largest);
}

}  // namespace poolgrad::kernels
