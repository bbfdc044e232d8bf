// Random numbers as a function of (seed, index): the same on every machine and device.
#pragma once

#include <cstdint>

namespace poolgrad {

/// SplitMix64 (Steele et al. 2014) of the index-th number after `seed`.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// In [0, 1).
constexpr double random_unit(std::uint64_t seed, std::uint64_t index) {
  return static_cast<double>(random_bits(seed, index) >> 11) * 0x1p-53;
}

/// In [0, bound).
constexpr std::uint64_t random_below(std::uint64_t seed, std::uint64_t index, std::uint64_t bound) {
  return random_bits(seed, index) % bound;
}

}  // namespace poolgrad
