// The functions name their instruction set themselves and call nothing, so that the rest of the program stays what it
// is compiled for.
#include "kernels/cpu/gemm/pair_product.h"

#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {

#if defined(__x86_64__)
namespace {

/// 8 rows by Vectors x 16 columns: 16 sums hide the latency of the instruction.
template <std::size_t Vectors>
[[gnu::target("avx512f,avx512bf16")]] void multiply_block(const PairMatrices& m, std::int64_t row,
                                                          std::int64_t column) {
  constexpr std::size_t rows = 8, lanes = 16;
  const auto stride = static_cast<std::size_t>(m.c_stride), a_stride = static_cast<std::size_t>(m.a_stride);
  __m512 sum[rows][Vectors];
  float* c = m.c + row * m.c_stride + column;
#pragma GCC unroll 8
  for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < Vectors; ++v)
      sum[r][v] = m.accumulate ? _mm512_loadu_ps(c + r * stride + v * lanes) : _mm512_setzero_ps();
  const std::uint32_t* a = m.a + row * m.a_stride;
  const std::uint32_t* b = m.b + column;
  for (std::int64_t p = 0; p < m.pairs; ++p, ++a, b += m.b_stride) {
    __m512i words[Vectors];
#pragma GCC unroll 2
    for (std::size_t v = 0; v < Vectors; ++v) words[v] = _mm512_loadu_si512(b + v * lanes);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < rows; ++r) {
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(a[r * a_stride]));
#pragma GCC unroll 2
      for (std::size_t v = 0; v < Vectors; ++v)
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(words[v]));
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < Vectors; ++v) _mm512_storeu_ps(c + r * stride + v * lanes, sum[r][v]);
}

}  // namespace

void pair_product_avx512_bf16(const PairMatrices& m) {
  for (std::int64_t column = 0; column < m.columns; column += 32)
    for (std::int64_t row = 0; row < m.rows; row += 8)
      m.columns - column >= 32 ? multiply_block<2>(m, row, column) : multiply_block<1>(m, row, column);
}
#else
void pair_product_avx512_bf16(const PairMatrices& m) { pair_product_emulated(m); }
#endif

}  // namespace poolgrad::kernels
