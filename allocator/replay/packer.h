// Offline placement: blocks whose lifetimes are known are put at fixed offsets of one slab, so that no two that are
// live together overlap and the slab is small (dynamic storage allocation, which is NP-hard: this is a heuristic).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poolgrad {

/// A block that is live from `begin` up to, and not including, `end`. If `end` <= `begin` it is live from `begin` to
/// the end of time and from the start up to `end`: it is allocated in one repetition and given back in the next.
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

/// Offsets are multiples of `granule` (a power of two), and so are the sizes that are packed. Best fit decreasing over
/// size x lifetime; if the slab is more than `tolerance` above the lower bound, other orders and repairs of the best
/// one follow, as long as the work allows. Throws ValueError for sizes that add up to 2^62 bytes or more.
Packing pack(const std::vector<PackItem>& items, std::size_t granule = 64, double tolerance = 0.005);

}  // namespace poolgrad
