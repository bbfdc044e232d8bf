// Seeds of randomized tests: POOLGRAD_TEST_SEED repeats a run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace poolgrad {

/// Returns POOLGRAD_TEST_SEED if it is set, else `otherwise`.
inline std::uint64_t seed_or(std::uint64_t otherwise) {
  const char* text = std::getenv("POOLGRAD_TEST_SEED");
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Returns the seed of this run, a new one for each run; prints it once.
inline std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const std::uint64_t value = seed_or(std::random_device{}());
    std::printf("seed %llu (repeat with POOLGRAD_TEST_SEED)\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

}  // namespace poolgrad
