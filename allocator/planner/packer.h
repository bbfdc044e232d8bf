// Offline placement: puts blocks with known lifetimes at fixed offsets of one small slab, without overlap of live
// blocks. This is dynamic storage allocation, which is NP-hard; the placement is a heuristic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poolgrad {

/// A block that is live in [begin, end). If `end` <= `begin`, it is live from `begin` to the end of time and from the
/// start to `end`: one repetition allocates it and the next frees it.
struct PackItem {
  std::uint64_t bytes = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend bool operator==(const PackItem&, const PackItem&) = default;
};

struct Packing {
  std::vector<std::uint64_t> offsets;  // of the items
  std::uint64_t bytes = 0;             // of the slab
  std::uint64_t lower_bound = 0;       // largest sum of live items: no packing is smaller
};

/// Offsets and packed sizes are multiples of `granule` (a power of two). Best fit decreasing over size x lifetime. If
/// the slab exceeds the lower bound by more than `tolerance`, tries other orders and repairs of the best one within a
/// limit of work. Throws ValueError for sizes that sum to 2^62 bytes or more.
Packing pack(const std::vector<PackItem>& items, std::size_t granule = 64, double tolerance = 0.005);

}  // namespace poolgrad
