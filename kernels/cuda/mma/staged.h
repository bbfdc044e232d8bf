// Rows of a matrix in shared memory, so that ldmatrix finds each eight of them without a conflict of banks.
#pragma once

#include "kernels/definition/host_device.h"

namespace poolgrad::kernels::cuda {

/// `Rows` rows of `Depth` elements of 16 bits, from chunk `first` of shared memory on. Eight neighbouring chunks lie in
/// the 32 banks once. Which of a row's chunks a column is in is exclusive-ored with the row, or, where two rows lie in
/// the banks once, with half of it: neighbouring columns of a row, and eight neighbouring rows of a column, are each in
/// all banks.
template <int Rows, int Depth>
struct StagedRows {
  static constexpr int chunks = Depth / 8, count = Rows * chunks;
  static_assert(chunks == 4 || chunks % 8 == 0);
  int first;

  /// Of numbers that are not negative; `chunk` may be an even one that is exclusive-ored with 0 or 1.
  POOLGRAD_HD constexpr int at(int row, int chunk) const {
    const unsigned turn = static_cast<unsigned>(row) / (chunks == 4 ? 2 : 1) % (chunks == 4 ? 4 : 8);
    return first + row * chunks + (chunk ^ static_cast<int>(turn));
  }
};

}  // namespace poolgrad::kernels::cuda
