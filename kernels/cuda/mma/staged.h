// Layout of matrix rows in shared memory. ldmatrix reads any eight of them without bank conflicts, and wgmma accepts
// the layout.
#pragma once

#include <cstdint>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels::cuda {

/// `Rows` rows of `Depth` 16-bit elements, from chunk `first` of shared memory on. Eight neighboring chunks span the 32
/// banks. The chunk index is XORed with the row, or with half the row if two rows span the banks. Neighboring chunks of
/// a row use different banks, and so do eight neighboring rows of a column.
template <int Rows, int Depth>
struct StagedRows {
  static constexpr int rows = Rows, depth = Depth, chunks = Depth / 8, count = Rows * chunks, across = chunks;
  static_assert(chunks == 4 || chunks % 8 == 0);
  int first;

  /// Returns a chunk's index; arguments must not be negative. The caller may also XOR an even `chunk` with 0 or 1.
  POOLGRAD_HD constexpr int at(int row, int chunk) const {
    const unsigned turn = static_cast<unsigned>(row) / (chunks == 4 ? 2 : 1) % (chunks == 4 ? 4 : 8);
    return first + row * chunks + (chunk ^ static_cast<int>(turn));
  }
};

/// The same for wgmma: rows of more than eight chunks are split into panels of eight, one panel after another. (PTX
/// ISA: 128-byte or 64-byte swizzle, with the first chunk at a multiple of 1024 or 512 bytes.)
template <int Rows, int Depth>
struct PanelRows {
  static constexpr int rows = Rows, depth = Depth, chunks = Depth / 8, count = Rows * chunks;
  static constexpr int across = chunks == 4 ? 4 : 8;  // chunks per row of a panel
  static_assert(Rows % 8 == 0 && chunks % across == 0);
  int first;

  POOLGRAD_HD constexpr int at(int row, int chunk) const {
    return first + chunk / across * (Rows * across) +
           StagedRows<Rows, 8 * across>{0}.at(row, static_cast<int>(static_cast<unsigned>(chunk) % across));
  }
};

/// A matrix in shared memory as an operand of a warpgroup product. It has 16 elements along k and spans the product's
/// rows or columns.
struct StagedMatrix {
  int first;   // chunk
  int across;  // chunks per row of a panel, 4 or 8
  int beyond;  // chunks from one panel to the next

  /// Returns elements 8 chunk to 8 chunk + 15 of all rows; `chunk` must be even.
  template <int Rows, int Depth>
  static POOLGRAD_HD constexpr StagedMatrix columns(const PanelRows<Rows, Depth>& of, int chunk) {
    return {of.first + chunk / of.across * Rows * of.across + chunk % of.across, of.across, Rows * of.across};
  }
  /// Returns 16 rows from `row` on, which must be a multiple of eight.
  template <int Rows, int Depth>
  static POOLGRAD_HD constexpr StagedMatrix rows(const PanelRows<Rows, Depth>& of, int row) {
    return {of.first + row * of.across, of.across, Rows * of.across};
  }
  /// PTX ISA, "Matrix-Descriptor Format" of wgmma; `memory` is the byte address of chunk 0.
  POOLGRAD_HD constexpr std::uint64_t descriptor(std::uint32_t memory) const {
    const std::uint32_t low = (memory >> 4) + static_cast<std::uint32_t>(first + (beyond << 16)),
                        high = static_cast<std::uint32_t>(8 * across) | (across == 8 ? 1u : 2u) << 30;
    return static_cast<std::uint64_t>(high) << 32 | low;
  }
};

}  // namespace poolgrad::kernels::cuda
