// Arithmetic sequences for host and device: start + i step in f64, or integers without rounding.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels {

struct ArithmeticSequence {
  double start = 0, step = 0;
  /// Integer sequences: first + i each + i rest / parts, truncated towards 0, with 0 <= rest < parts.
  bool whole = false;
  std::int64_t first = 0, each = 0, rest = 0, parts = 1;

  static ArithmeticSequence of_doubles(double start, double step) { return {start, step}; }
  static ArithmeticSequence of_integers(std::int64_t first, std::int64_t step) { return {0, 0, true, first, step}; }
  /// `steps` >= 1 steps from `first` to `last`; their difference may exceed an i64.
  static ArithmeticSequence between(std::int64_t first, std::int64_t last, std::int64_t steps) {
    const bool down = last < first;
    const std::uint64_t from = static_cast<std::uint64_t>(first), to = static_cast<std::uint64_t>(last);
    const std::uint64_t distance = down ? from - to : to - from, count = static_cast<std::uint64_t>(steps);
    std::uint64_t each = distance / count, rest = distance % count;
    if (down) {  // a step of -(each + rest / count) is -(each + 1) plus (count - rest) / count
      each = 0 - each - (rest ? 1 : 0);
      rest = rest ? count - rest : 0;
    }
    return {0, 0, true, first, static_cast<std::int64_t>(each), static_cast<std::int64_t>(rest), steps};
  }

  /// T is double or int64_t.
  template <class T>
  POOLGRAD_HD T at(std::int64_t i) const {
    if constexpr (std::is_same_v<T, std::int64_t>)
      if (whole) return integer_at(i);
    return static_cast<T>(start + static_cast<double>(i) * step);
  }

 private:
  POOLGRAD_HD std::int64_t integer_at(std::int64_t i) const {
    // i < 2^32 if rest > 0: a larger tensor would take 32 GiB.
    const auto index = static_cast<std::uint64_t>(i), part = index * static_cast<std::uint64_t>(rest);
    const auto count = static_cast<std::uint64_t>(parts);
    const auto floor = static_cast<std::int64_t>(static_cast<std::uint64_t>(first) +
                                                 index * static_cast<std::uint64_t>(each) + part / count);
    return floor < 0 && part % count != 0 ? floor + 1 : floor;
  }
};

}  // namespace poolgrad::kernels
