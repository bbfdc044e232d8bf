// Layout of matrix elements over the lanes of a warp for D = A B + C, with A 16 x 16, B 16 x 8, C and D 16 x 8. Also
// the rows of shared memory that each lane addresses for ldmatrix. Source: PTX ISA, "Matrix Fragments for mma.m16n8k16
// with floating point type" and "ldmatrix". The kernels and their host twins share these functions.
#pragma once

#include <cstdint>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels::cuda {

struct Place {
  int row, column;
};

/// Elements per lane. A register holds two 16-bit elements, the first in the lower half.
inline constexpr int elements_of_a = 8, elements_of_b = 4, elements_of_c = 4;

/// 16 bytes of shared memory: eight elements of a row.
struct alignas(16) Chunk {
  std::uint32_t word[4];
};
inline constexpr int elements_of_chunk = 8;

/// A lane's part of A, or of two neighboring B: words 0 and 1 of the first, 2 and 3 of the second.
struct FragmentAB {
  std::uint32_t word[4];
};
/// A lane's part of C or D.
struct FragmentC {
  float value[elements_of_c];
};

/// Returns the place of a lane's element i.
POOLGRAD_HD constexpr Place place_in_a(int lane, int i) {
  return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}
POOLGRAD_HD constexpr Place place_in_b(int lane, int i) { return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4}; }
POOLGRAD_HD constexpr Place place_in_c(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }

/// ldmatrix: returns the place of a lane's element i, 0 or 1, in an 8 x 8 matrix. One lane addresses each 16-byte row.
/// With .trans the place is in the transpose.
POOLGRAD_HD constexpr Place place_in_matrix(int lane, int i) { return {lane / 4, lane % 4 * 2 + i}; }
/// With .x4: the lane that addresses a row of one of the four matrices.
POOLGRAD_HD constexpr int lane_of_matrix_row(int matrix, int row) { return matrix * 8 + row; }

/// Returns the row and the pack of eight elements that a lane addresses in a 16 x 16 part of a matrix in shared memory.
/// For A as stored, or for two neighboring parts of B with .trans.
POOLGRAD_HD constexpr Place rows_before_columns(int lane) { return {lane % 16, lane / 16}; }
/// The same for two neighboring parts of B whose columns are rows in shared memory.
POOLGRAD_HD constexpr Place columns_before_rows(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }

}  // namespace poolgrad::kernels::cuda
