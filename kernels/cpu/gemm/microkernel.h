// The inner loop of every matrix product on the CPU: a block of the result lives in registers while rows of B stream
// past it. GEMM and the attention kernels are built from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace poolgrad::kernels {

/// Rows of the register block: 14 x 2 vectors and what the loop needs fit 32 registers, 6 x 2 fit 16.
inline constexpr int block_rows = simd::vector_bytes == 64 ? 14 : 6;
inline constexpr int block_vectors = 2;
template <class T>
inline constexpr int block_columns = block_vectors* simd::lanes<T>;

/// sum[r][v] += sum over p < depth of a[r * RowStride + p * DepthStride] * b[p * b_stride + v-th vector]. Each element
/// is one chain of fused multiply-adds in the order of p, whatever the block shape.
template <class T, std::size_t Rows, std::size_t Vectors, int RowStride, int DepthStride>
[[gnu::always_inline]] inline void multiply_add(simd::Vec<T> (&sum)[Rows][Vectors], std::int64_t depth, const T* a,
                                                const T* b, std::int64_t b_stride) {
  simd::Vec<T> block[Rows][Vectors];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (std::size_t v = 0; v < Vectors; ++v) block[r][v] = sum[r][v];
  for (std::int64_t p = 0; p < depth; ++p) {
    simd::Vec<T> row[Vectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < Vectors; ++v) row[v] = simd::load<T>(b + static_cast<int>(v) * simd::lanes<T>);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (std::size_t v = 0; v < Vectors; ++v) block[r][v] += a[static_cast<int>(r) * RowStride] * row[v];
    a += DepthStride;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (std::size_t v = 0; v < Vectors; ++v) sum[r][v] = block[r][v];
}

}  // namespace poolgrad::kernels
