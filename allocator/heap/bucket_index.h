// The free blocks of one stream by size: two-level bitmaps over buckets (power of two x 16), as in TLSF (Masmano et al.
// 2004). Buckets do not round sizes: each holds a tree ordered by (size, address), so a search returns the true best
// fit, and of equal fits the lowest address.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "allocator/heap/block.h"

namespace poolgrad {

class BucketIndex {
 public:
  /// Sizes are multiples of `granule` (a power of two).
  explicit BucketIndex(std::size_t granule) : shift_(static_cast<unsigned>(std::countr_zero(granule))) {}

  void insert(Block* block) noexcept;
  void remove(Block* block) noexcept;
  /// The smallest block of at least `size` bytes, at the lowest address; nullptr if there is none. Does not remove it.
  Block* find(std::size_t size) const noexcept;
  /// Sum of the sizes.
  std::size_t bytes() const noexcept { return bytes_; }

  /// Calls visit(Block*) for every block in buckets that can hold `size` bytes or more, in unspecified order.
  template <class Visit>
  void for_each_from(std::size_t size, Visit visit) const {
    const Bucket from = bucket_of(size);
    for (std::uint64_t majors_left = major_map_ >> from.major << from.major; majors_left != 0;
         majors_left &= majors_left - 1) {
      const auto major = static_cast<std::size_t>(std::countr_zero(majors_left));
      unsigned minors_left = minor_map_[major];
      if (major == from.major) minors_left = minors_left >> from.minor << from.minor;
      for (; minors_left != 0; minors_left &= minors_left - 1) {
        tree_walk(roots_[major * minors + static_cast<std::size_t>(std::countr_zero(minors_left))], visit);
      }
    }
  }

  /// Calls visit(Block*) for the blocks by falling size, until it returns false.
  template <class Visit>
  void for_each_largest_first(Visit visit) const {
    for (std::uint64_t left = major_map_; left != 0;) {
      const auto major = static_cast<std::size_t>(std::bit_width(left)) - 1;
      left &= ~(std::uint64_t{1} << major);
      for (unsigned minors_left = minor_map_[major]; minors_left != 0;) {
        const auto minor = static_cast<std::size_t>(std::bit_width(minors_left)) - 1;
        minors_left &= ~(1u << minor);
        if (!walk_down(roots_[major * minors + minor], visit)) return;
      }
    }
  }

 private:
  static constexpr std::size_t majors = 61;
  static constexpr std::size_t minors = 16;

  struct Bucket {
    std::size_t major;
    std::size_t minor;
  };

  Bucket bucket_of(std::size_t size) const noexcept {
    const std::size_t units = size >> shift_;
    if (units < minors) return {0, units};
    const auto log = static_cast<std::size_t>(std::bit_width(units)) - 1;
    return {log - 3, (units >> (log - 4)) & (minors - 1)};
  }

  template <class Visit>
  static bool walk_down(Block* tree, Visit& visit) {
    return tree == nullptr || (walk_down(tree->right, visit) && visit(tree) && walk_down(tree->left, visit));
  }

  unsigned shift_;
  std::size_t bytes_ = 0;
  std::uint64_t major_map_ = 0;
  std::array<std::uint16_t, majors> minor_map_{};
  std::array<Block*, majors * minors> roots_{};
};

}  // namespace poolgrad
