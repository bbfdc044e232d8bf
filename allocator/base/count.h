// Counts that files hold.
#pragma once

#include <cstdint>

namespace poolgrad {

/// The largest count that a file may say, 2^53: doubles hold every count up to it.
inline constexpr std::int64_t largest_count = std::int64_t{1} << 53;

/// Adds 1 unless that is above the largest count: a count that was read from a file can be written to one again.
constexpr void count_up(std::int64_t& count) {
  if (count < largest_count) ++count;
}

}  // namespace poolgrad
