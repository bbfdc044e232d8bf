// Sizes and addresses in multiples of a power of two.
#pragma once

#include <cstddef>
#include <cstdint>

namespace poolgrad {

constexpr std::uintptr_t round_up(std::uintptr_t value, std::size_t power_of_two) {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}

constexpr std::uintptr_t round_down(std::uintptr_t value, std::size_t power_of_two) {
  return value & ~(power_of_two - 1);
}

}  // namespace poolgrad
