// Products of tensor cores on the host. The lanes of a warp give what fragments.h says that they have, and it is
// multiplied once for all of them, products exact and sums in f64.
#pragma once

#include <cstdint>

#include "kernels/cuda/emulation/block.h"

namespace poolgrad::emulation {

/// mma.m16n8k16: what a lane gives; `c` is what it gets.
struct LaneProduct {
  std::uint32_t a[4], b[2];
  float c[4];
};
/// The Join of 32 LaneProduct; S is Half or BFloat16.
template <class S>
void multiply_fragments(LaneValue* of_lanes);

/// A matrix of 16 by n elements of 16 bits in shared memory, where a descriptor says; `array` is of chunks of 16 bytes.
class DescribedMatrix {
 public:
  /// Ends the kernel where the matrix begins in the middle of eight rows.
  DescribedMatrix(const SharedArray& array, std::uint64_t descriptor, bool by_rows, Where where);
  /// Element k of the 16 of element n.
  std::uint16_t bits(int n, int k) const;
  /// Those of eight neighbouring elements, from n on, a multiple of eight.
  void take(int n, std::uint16_t (&bits)[16][8]) const;
  /// The calling lane's share of what its warp reads, elements from `first` on, until the product is done.
  void read(int first, int count) const;

 private:
  /// Where the eight elements are that element n of those of number k is among.
  int chunk(int n, int k) const;
  /// Of those of eight elements at a time, from `first` on, 16 each, number i.
  int numbered_chunk(int first, int i) const;

  const SharedArray& array_;
  const bool by_rows_;
  const Where where_;
  int first_, beyond_, eight_rows_, across_;
};

/// wgmma: what a lane gives for the 16 rows of its warp. Its sums, four for each eight columns, are where
/// sums_of_product() says.
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
