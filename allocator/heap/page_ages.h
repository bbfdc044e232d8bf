// The tick of the last free of each stretch of an address window. A free block that joins a younger one takes its
// epoch, but its untouched pages keep their age here. Used only if pages decay with age.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace poolgrad {

class PageAges {
 public:
  explicit PageAges(std::uintptr_t address) : address_(address) {}

  /// Makes room for note() of addresses below `end`.
  void expect(std::uintptr_t end) { epochs_.resize(std::max(epochs_.size(), stretch(end - 1) + 1), UINT64_MAX); }
  /// Records a free of [begin, end) at this tick.
  void note(std::uintptr_t begin, std::uintptr_t end, std::uint64_t epoch) noexcept {
    const std::size_t last = std::min(stretch(end - 1) + 1, epochs_.size());
    for (std::size_t i = stretch(begin); i < last; ++i) epochs_[i] = epoch;
  }
  /// The latest free of any part of [begin, end), to the precision of a stretch.
  std::uint64_t latest(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    const std::size_t last = stretch(end - 1);
    if (last >= epochs_.size()) return UINT64_MAX;
    return *std::max_element(epochs_.begin() + static_cast<std::ptrdiff_t>(stretch(begin)),
                             epochs_.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  }
  /// The end of the stretch that contains `address`.
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
