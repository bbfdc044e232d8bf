// FNV-1a (Fowler, Noll, Vo), 64 bits: a fingerprint by which a text, a program or a file is known again. Not for hash
// tables, nor against anybody who wants two things to be taken for one.
#pragma once

#include <cstdint>

namespace poolgrad {

class Fnv1a {
 public:
  /// A byte, or, to be quicker or for numbers, up to 64 bits at once, which give another value.
  constexpr void mix(std::uint64_t bits) { value_ = (value_ ^ bits) * 0x100000001b3u; }
  constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace poolgrad
