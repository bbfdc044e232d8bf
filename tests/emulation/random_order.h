// Random order of the blocks and threads of a kernel. A number is drawn at every switch between threads, so drawing
// must be cheap.
#pragma once

#include <cstdint>
#include <numeric>

#include "kernels/functors/attention_term.h"

namespace poolgrad::emulation {

/// SplitMix64 (Steele, Lea & Flood 2014).
struct Random {
  std::uint64_t state = 0;

  std::uint64_t operator()() { return kernels::mix(state += 0x9e3779b97f4a7c15u); }
  /// Returns a number in [0, n).
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>((*this)()) * n >> 64);
  }
};

/// Yields the numbers of [0, n), n > 0, once each in a random order without memory: steps of `factor` modulo n.
struct Order {
  std::uint64_t n, factor, place;
  Order(std::uint64_t count, Random& random) : n(count), factor(0), place(random.below(count)) {
    do factor = random.below(n) + (n == 1);
    while (std::gcd(factor, n) != 1);
  }
  std::uint64_t next() {
    const std::uint64_t at = place;
    place += factor < n - place ? factor : factor - n;
    return at;
  }
};

}  // namespace poolgrad::emulation
