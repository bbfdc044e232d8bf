// Tensor-core products on the host. The lanes of a warp give their elements as fragments.h lays them out. One call
// multiplies for all lanes, with exact products and f64 sums.
#pragma once

#include <cstdint>

#include "tests/emulation/block.h"

namespace poolgrad::emulation {

/// mma.m16n8k16: a lane's inputs; `c` is also its result.
struct LaneProduct {
  std::uint32_t a[4], b[2];
  float c[4];
};
/// The Join of 32 LaneProduct; S is Half or BFloat16.
template <class S>
void multiply_fragments(LaneValue* of_lanes);

/// A matrix of 16 by n 16-bit elements in shared memory, at the place of a descriptor; `array` has 16-byte chunks.
class DescribedMatrix {
 public:
  /// Ends the kernel if the matrix starts in the middle of eight rows.
  DescribedMatrix(const SharedArray& array, std::uint64_t descriptor, bool by_rows, Where where);
  /// Returns bits (n, k), k < 16.
  std::uint16_t bits(int n, int k) const;
  /// Returns the bits of eight neighboring n, from a multiple of eight.
  void take(int n, std::uint16_t (&bits)[16][8]) const;
  /// Marks the calling lane's share of its warp's reads, elements from `first` on, until the product is done.
  void read(int first, int count) const;

 private:
  /// Returns the chunk of eight elements that contains (n, k).
  int chunk(int n, int k) const;
  /// Returns chunk number i, with 16 elements per group of eight, from `first` on.
  int numbered_chunk(int first, int i) const;

  const SharedArray& array_;
  const bool by_rows_;
  const Where where_;
  int first_, beyond_, eight_rows_, across_;
};

/// wgmma: a lane's inputs for the 16 rows of its warp. Its sums, four per eight columns, are in sums_of_product()
/// storage.
struct LaneOfWarpgroup {
  std::uint32_t a[4];
  const DescribedMatrix* b;
  int columns;
  float* sums;
};
/// The Join of 32 LaneOfWarpgroup.
template <class S>
void multiply_rows_of_warp(LaneValue* of_lanes);

}  // namespace poolgrad::emulation
