// FNV-1a (Fowler, Noll, Vo), 64 bits: a fingerprint of texts, programs and files. Neither for hash tables nor for
// security: collisions are easy to construct.
#pragma once

#include <cstdint>

namespace poolgrad {

class Fnv1a {
 public:
  /// Mixes in a byte, or up to 64 bits at once, which is faster but gives another value than byte by byte.
  constexpr void mix(std::uint64_t bits) { value_ = (value_ ^ bits) * 0x100000001b3u; }
  constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace poolgrad
