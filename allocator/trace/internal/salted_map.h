// Maps from numbers that come from files, which are hostile now and then: where one goes depends on a number that
// nobody knows beforehand, and so does the order of what is in the map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <unordered_map>

namespace poolgrad {

struct SaltedHash {
  std::size_t operator()(std::uint64_t number) const {
    // The high half of a product depends on every bit of what is multiplied.
    const std::uint64_t secret = salt(), mixed = (number ^ secret) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(((mixed ^ mixed >> 29) * (secret | 1)) >> 32);
  }

 private:
  static std::uint64_t salt() {
    static const std::uint64_t bits = [] {
      std::random_device device;
      return std::uint64_t{device()} << 32 | device();
    }();
    return bits;
  }
};

template <class Value>
using SaltedMap = std::unordered_map<std::uint64_t, Value, SaltedHash>;

}  // namespace poolgrad
