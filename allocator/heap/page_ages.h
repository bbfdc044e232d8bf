// When each stretch of an address window was given back last. A free block that joins a younger one takes its epoch;
// the pages that were not touched meanwhile are as old as they were. Noted where pages go back with age alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace poolgrad {

class PageAges {
 public:
  explicit PageAges(std::uintptr_t address) : address_(address) {}

  /// note() of addresses below `end` will count from now on.
  void expect(std::uintptr_t end) { epochs_.resize(std::max(epochs_.size(), stretch(end - 1) + 1), UINT64_MAX); }
  /// [begin, end) was given back at this tick.
  void note(std::uintptr_t begin, std::uintptr_t end, std::uint64_t epoch) noexcept {
    const std::size_t last = std::min(stretch(end - 1) + 1, epochs_.size());
    for (std::size_t i = stretch(begin); i < last; ++i) epochs_[i] = epoch;
  }
  /// The latest tick at which some of [begin, end), or what is less than a stretch away, was given back.
  std::uint64_t latest(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    const std::size_t last = stretch(end - 1);
    if (last >= epochs_.size()) return UINT64_MAX;
    return *std::max_element(epochs_.begin() + static_cast<std::ptrdiff_t>(stretch(begin)),
                             epochs_.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  }
  /// Where the stretch ends that `address` is in.
  std::uintptr_t end_of(std::uintptr_t address) const noexcept {
    return address_ + ((stretch(address) + 1) << stretch_bits);
  }
  /// Bytes held.
  std::size_t bytes() const noexcept { return epochs_.capacity() * sizeof(std::uint64_t); }

 private:
  static constexpr unsigned stretch_bits = 21;  // a page of a GPU

  std::size_t stretch(std::uintptr_t address) const noexcept { return (address - address_) >> stretch_bits; }

  std::uintptr_t address_;
  std::vector<std::uint64_t> epochs_;
};

}  // namespace poolgrad
