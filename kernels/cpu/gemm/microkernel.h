// The inner loop of every matrix product on the CPU: a block of the result stays in registers while rows of B stream
// past it. Packing turns operands of any layout and floating type into panels of the compute type, in the order of that
// loop. GEMM and the attention kernels use both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace poolgrad::kernels {

/// Elements past the end of a packed panel that pack_panel may overwrite.
template <class T>
inline constexpr std::int64_t panel_slack = simd::lanes<T>;

/// Packs a panel of `Width` lines, step by step: out[p * Width + i] is line i at step p < depth, for i < count <=
/// Width. Other lines are undefined. Line i at step p is x[i * stride + p] if `by_line`, else x[p * stride + i].
template <int Width, class T, class S>
void pack_panel(T* out, const S* x, std::int64_t stride, bool by_line, std::int64_t count, std::int64_t depth) {
  constexpr int n = simd::lanes<T>;
  // Stores write whole vectors, and the next step overwrites the excess. The last vector of a step is therefore stored
  // first.
  constexpr int last = (Width - 1) / n * n;
  if (!by_line) {
    for (std::int64_t p = 0; p < depth; ++p, x += stride, out += Width) {
      const std::int64_t readable = (depth - 1 - p) * stride + count;
#pragma GCC unroll 4
      for (int i = last; i >= 0; i -= n)
        simd::store(out + i, i + n <= readable ? simd::load<T>(x + i) : simd::load_partial<T>(x + i, count - i));
    }
    return;
  }
  const S* line[static_cast<std::size_t>(last + n)];
  for (std::int64_t i = 0; i < last + n; ++i) line[i] = x + std::min(i, count - 1) * stride;
  std::int64_t p = 0;
  for (; p + n <= depth; p += n, out += n * Width) {
    for (int i = last; i >= 0; i -= n) {
      simd::Vec<T> rows[static_cast<std::size_t>(n)];
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r) rows[r] = simd::load<T>(line[i + r] + p);
      simd::transpose<T>(rows);
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r) simd::store(out + r * Width + i, rows[r]);
    }
  }
  for (; p < depth; ++p, out += Width)
    for (int i = 0; i < Width; ++i) out[i] = static_cast<T>(line[i][p]);
}

/// Rows of the register block: 14 x 2 vectors plus the loop's operands fit 32 registers, 6 x 2 fit 16.
inline constexpr int block_rows = simd::vector_bytes == 64 ? 14 : 6;
inline constexpr int block_vectors = 2;
template <class T>
inline constexpr int block_columns = block_vectors* simd::lanes<T>;

/// sum[r][v] += sum over p < depth of a[r * RowStride + p * DepthStride] * b[p * b_stride + v-th vector]. Each element
/// is one chain of fused multiply-adds in the order of p, for any block shape.
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
