// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011), host and device.
#pragma once

#include <cstdint>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels {

/// Four 32-bit words.
struct PhiloxWords {
  std::uint32_t word[4];
};

inline constexpr std::uint32_t philox_multiplier0 = 0xD2511F53u, philox_multiplier1 = 0xCD9E8D57u;
inline constexpr std::uint32_t philox_weyl0 = 0x9E3779B9u, philox_weyl1 = 0xBB67AE85u;  // added to the key each round

/// The random words of a counter under a key.
POOLGRAD_HD constexpr PhiloxWords philox(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{philox_multiplier0} * counter.word[0];
    const std::uint64_t second = std::uint64_t{philox_multiplier1} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(second >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(second),
                static_cast<std::uint32_t>(first >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(first)}};
    key0 += philox_weyl0;
    key1 += philox_weyl1;
  }
  return counter;
}

/// Block `block` of the random words of (seed, use): the counter is block and use, the key is the seed.
POOLGRAD_HD constexpr PhiloxWords philox_block(std::uint64_t seed, std::uint64_t use, std::uint64_t block) {
  return philox({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                  static_cast<std::uint32_t>(use), static_cast<std::uint32_t>(use >> 32)}},
                static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

/// 53 bits of two words as a number in [0, 1).
POOLGRAD_HD constexpr double unit_interval(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (std::uint64_t{high} << 32) | low;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace poolgrad::kernels
