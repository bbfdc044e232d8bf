// Hash maps for keys from untrusted files. A secret random salt determines buckets and iteration order, so that a file
// cannot force collisions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace poolgrad {

struct SaltedHash {
  using is_transparent = void;

  std::size_t operator()(std::uint64_t number) const {
    // The high half of a product depends on every bit of the factors.
    const std::uint64_t secret = salt(), mixed = (number ^ secret) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(((mixed ^ mixed >> 29) * (secret | 1)) >> 32);
  }
  /// A polynomial at a secret point, modulo a prime: two texts of n bytes collide at n / 7 of 2^61 points at most,
  /// rounded up. Collisions of std::hash are easy to construct, whatever salt is added.
  std::size_t operator()(std::string_view text) const {
    constexpr std::uint64_t prime = (std::uint64_t{1} << 61) - 1;
    __extension__ using Wide = unsigned __int128;
    std::uint64_t sum = text.size();
    while (!text.empty()) {
      const std::size_t taken = std::min<std::size_t>(text.size(), 7);
      std::uint64_t word = 0;
      std::memcpy(&word, text.data(), taken);
      text.remove_prefix(taken);
      sum = static_cast<std::uint64_t>((static_cast<Wide>(sum) * (salt() >> 3) + word) % prime);
    }
    return (*this)(sum);
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
template <class Value>
using SaltedTextMap = std::unordered_map<std::string, Value, SaltedHash, std::equal_to<>>;
using SaltedNumbers = std::unordered_set<std::uint64_t, SaltedHash>;
using SaltedTexts = std::unordered_set<std::string, SaltedHash, std::equal_to<>>;

}  // namespace poolgrad
