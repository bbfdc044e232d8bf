// Rows of a matrix in shared memory, so that ldmatrix finds each eight of them without a conflict of banks.
#pragma once

#include "kernels/definition/host_device.h"

namespace poolgrad::kernels::cuda {

/// `Rows` rows of `Depth` elements of 16 bits, from chunk `first` of shared memory on. Eight neighbouring chunks lie in
/// the 32 banks once, and which of them a column is in is exclusive-ored with the row: neighbouring columns of a row,
/// and eight neighbouring rows of a column, are each in all banks.
template <int Rows, int Depth>
struct StagedRows {
  static constexpr int chunks = Depth / 8, count = Rows * chunks;
  static_assert(chunks % 8 == 0);
  int first;

  POOLGRAD_HD constexpr int at(int row, int chunk) const { return first + row * chunks + (chunk ^ row % 8); }
};

}  // namespace poolgrad::kernels::cuda
