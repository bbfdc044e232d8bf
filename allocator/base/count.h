// Counters that are stored in files.
#pragma once

#include <cstdint>

namespace poolgrad {

/// The largest count in a file, 2^53: a double holds every integer up to it.
inline constexpr std::int64_t largest_count = std::int64_t{1} << 53;

/// Adds 1, but stops at the largest count, so that the result can be written to a file again.
constexpr void count_up(std::int64_t& count) {
  if (count < largest_count) ++count;
}

}  // namespace poolgrad
