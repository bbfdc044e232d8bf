// Rows of a matrix in shared memory, so that ldmatrix finds each eight of them without a conflict of banks, and as
// wgmma has to find them.
#pragma once

#include <cstdint>

#include "kernels/definition/host_device.h"

namespace poolgrad::kernels::cuda {

/// `Rows` rows of `Depth` elements of 16 bits, from chunk `first` of shared memory on. Eight neighbouring chunks lie in
/// the 32 banks once. Which of a row's chunks a column is in is exclusive-ored with the row, or, where two rows lie in
/// the banks once, with half of it: neighbouring columns of a row, and eight neighbouring rows of a column, are each in
/// all banks.
template <int Rows, int Depth>
struct StagedRows {
  static constexpr int rows = Rows, depth = Depth, chunks = Depth / 8, count = Rows * chunks, across = chunks;
  static_assert(chunks == 4 || chunks % 8 == 0);
  int first;

  /// Of numbers that are not negative; `chunk` may be an even one that is exclusive-ored with 0 or 1.
  POOLGRAD_HD constexpr int at(int row, int chunk) const {
    const unsigned turn = static_cast<unsigned>(row) / (chunks == 4 ? 2 : 1) % (chunks == 4 ? 4 : 8);
    return first + row * chunks + (chunk ^ static_cast<int>(turn));
  }
};

/// The same, but that of rows of more than eight chunks the eight to the left of all rows lie before those to the
/// right. (PTX ISA: swizzled by 128 bytes, or by 64, where the first chunk is at a multiple of 1024 bytes, or of 512.)
template <int Rows, int Depth>
struct PanelRows {
  static constexpr int rows = Rows, depth = Depth, chunks = Depth / 8, count = Rows * chunks;
  static constexpr int across = chunks == 4 ? 4 : 8;  // chunks of a panel's row
  static_assert(Rows % 8 == 0 && chunks % across == 0);
  int first;

  POOLGRAD_HD constexpr int at(int row, int chunk) const {
    return first + chunk / across * (Rows * across) +
           StagedRows<Rows, 8 * across>{0}.at(row, static_cast<int>(static_cast<unsigned>(chunk) % across));
  }
};

/// A matrix in shared memory as a product of a warpgroup finds it: 16 elements by as many as the product has rows, or
/// columns.
struct StagedMatrix {
  int first;   // chunk
  int across;  // chunks of a panel's row, 4 or 8
  int beyond;  // chunks from one panel to the next

  /// Elements 8 chunk to 8 chunk + 15 of all rows, for an even chunk.
  template <int Rows, int Depth>
  static POOLGRAD_HD constexpr StagedMatrix columns(const PanelRows<Rows, Depth>& of, int chunk) {
    return {of.first + chunk / of.across * Rows * of.across + chunk % of.across, of.across, Rows * of.across};
  }
  /// 16 rows, from one on whose number is a multiple of eight.
  template <int Rows, int Depth>
  static POOLGRAD_HD constexpr StagedMatrix rows(const PanelRows<Rows, Depth>& of, int row) {
    return {of.first + row * of.across, of.across, Rows * of.across};
  }
  /// PTX ISA, "Matrix-Descriptor Format" of wgmma; `memory` is the address of chunk 0, in bytes.
  POOLGRAD_HD constexpr std::uint64_t descriptor(std::uint32_t memory) const {
    const std::uint32_t low = (memory >> 4) + static_cast<std::uint32_t>(first + (beyond << 16)),
                        high = static_cast<std::uint32_t>(8 * across) | (across == 8 ? 1u : 2u) << 30;
    return static_cast<std::uint64_t>(high) << 32 | low;
  }
};

}  // namespace poolgrad::kernels::cuda
