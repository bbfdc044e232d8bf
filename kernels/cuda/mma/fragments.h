// Where a warp has the elements of the matrices that tensor cores multiply, D = A B + C with A 16 x 16, B 16 x 8, C and
// D 16 x 8, and which rows of shared memory its lanes point to, to get them. Source: PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type" and "ldmatrix". Kernels and the host's twins both read it here.
#pragma once

#include <cstdint>

#include "kernels/definition/host_device.h"

namespace poolgrad::kernels::cuda {

struct Place {
  int row, column;
};

/// Of elements of 16 bits, two lie in a register, the first in the lower half.
inline constexpr int elements_of_a = 8, elements_of_b = 4, elements_of_c = 4;

/// Element i of what a lane has.
POOLGRAD_HD constexpr Place place_in_a(int lane, int i) {
  return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}
POOLGRAD_HD constexpr Place place_in_b(int lane, int i) { return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4}; }
POOLGRAD_HD constexpr Place place_in_c(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }

/// ldmatrix: element i, 0 or 1, of what a lane gets of an 8 x 8 matrix, each row of which is 16 bytes that one lane
/// points to; of its transpose with .trans.
POOLGRAD_HD constexpr Place place_in_matrix(int lane, int i) { return {lane / 4, lane % 4 * 2 + i}; }
/// With .x4, the lane that points to a row of one of the four matrices.
POOLGRAD_HD constexpr int lane_of_matrix_row(int matrix, int row) { return matrix * 8 + row; }

/// The row that a lane points to, and the column in packs of eight elements, of a 16 x 16 part of a matrix in shared
/// memory:
/// of A as it lies there, or of two neighbouring parts of B with .trans
POOLGRAD_HD constexpr Place rows_before_columns(int lane) { return {lane % 16, lane / 16}; }
/// of two neighbouring parts of B, where B's columns are the rows in shared memory
POOLGRAD_HD constexpr Place columns_before_rows(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }

}  // namespace poolgrad::kernels::cuda
