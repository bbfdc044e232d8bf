#include "kernels/cpu/gemm/pair_product.h"

#include <cstddef>

#include "kernels/cpu/simd/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {
namespace {

using simd::Vec;
using Words = Vec<std::uint32_t>;

/// Subnormal numbers become 0 of the same sign.
Vec<float> flush(Vec<float> value) {
  const auto bits = reinterpret_cast<Words>(value);
  return reinterpret_cast<Vec<float>>((bits & 0x7f800000u) == 0u ? bits & 0x80000000u : bits);
}
Vec<float> high(Words pairs) { return flush(reinterpret_cast<Vec<float>>(pairs & 0xffff0000u)); }
Vec<float> low(Words pairs) { return flush(reinterpret_cast<Vec<float>>(pairs << 16)); }

template <std::size_t Rows>
void multiply_emulated(const PairMatrices& m, std::int64_t row, std::int64_t column) {
  Vec<float> sum[Rows];
  float* c = m.c + row * m.c_stride + column;
  const std::uint32_t* a = m.a + row * m.a_stride;
  for (std::size_t r = 0; r < Rows; ++r)
    sum[r] = m.accumulate ? simd::load<float>(c + static_cast<std::int64_t>(r) * m.c_stride) : Vec<float>{};
  for (std::int64_t p = 0; p < m.pairs; ++p) {
    Words words;
    std::memcpy(&words, m.b + p * m.b_stride + column, sizeof(words));
    const Vec<float> b_high = high(words), b_low = low(words);
    for (std::size_t r = 0; r < Rows; ++r) {
      const Words pair = simd::broadcast(a[static_cast<std::int64_t>(r) * m.a_stride + p]);
      // The products are exact in f32, so fusion by the compiler does not matter.
      sum[r] = flush(sum[r] + high(pair) * b_high);
      sum[r] = flush(sum[r] + low(pair) * b_low);
    }
  }
  for (std::size_t r = 0; r < Rows; ++r) simd::store(c + static_cast<std::int64_t>(r) * m.c_stride, sum[r]);
}

}  // namespace

void pair_product_emulated(const PairMatrices& m) {
  for (std::int64_t column = 0; column < m.columns; column += simd::lanes<float>)
    for (std::int64_t row = 0; row < m.rows; row += 8) multiply_emulated<8>(m, row, column);
}

// The functions below declare their own instruction set and call nothing else. The rest of the library keeps its
// compile flags.

#if defined(__x86_64__)
namespace {

/// 8 rows by Vectors x 16 columns: 16 sums hide the latency of the instruction.
template <std::size_t Vectors>
[[gnu::target("avx512f,avx512bf16")]] void multiply_avx512(const PairMatrices& m, std::int64_t row,
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
      m.columns - column >= 32 ? multiply_avx512<2>(m, row, column) : multiply_avx512<1>(m, row, column);
}

namespace {

/// Operand of ldtilecfg: all eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);
constexpr TileConfiguration configuration;

/// 16 Rows by 16 Columns tiles: sums in tiles 0 to 3, a in 4 and 5, b in 6 and 7. Four products share four loads.
template <int Rows, int Columns>
[[gnu::target("amx-tile,amx-bf16")]] void multiply_amx(const PairMatrices& m, std::int64_t row, std::int64_t column) {
  const std::int64_t c_bytes = m.c_stride * 4, a_bytes = m.a_stride * 4, b_bytes = m.b_stride * 4;
  float *c0 = m.c + row * m.c_stride + column, *c1 = c0 + 16 * m.c_stride;
  const std::uint32_t *a0 = m.a + row * m.a_stride, *a1 = a0 + 16 * m.a_stride, *b = m.b + column;
  if (m.accumulate) {
    _tile_loadd(0, c0, c_bytes);
    if constexpr (Columns == 2) _tile_loadd(1, c0 + 16, c_bytes);
    if constexpr (Rows == 2) _tile_loadd(2, c1, c_bytes);
    if constexpr (Rows == 2 && Columns == 2) _tile_loadd(3, c1 + 16, c_bytes);
  } else {
    _tile_zero(0);
    if constexpr (Columns == 2) _tile_zero(1);
    if constexpr (Rows == 2) _tile_zero(2);
    if constexpr (Rows == 2 && Columns == 2) _tile_zero(3);
  }
  for (std::int64_t p = 0; p < m.pairs; p += 16, b += 16 * m.b_stride) {
    _tile_loadd(4, a0 + p, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Columns == 2) {
      _tile_loadd(7, b + 16, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Rows == 2) {
      _tile_loadd(5, a1 + p, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (Rows == 2 && Columns == 2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c0, c_bytes);
  if constexpr (Columns == 2) _tile_stored(1, c0 + 16, c_bytes);
  if constexpr (Rows == 2) _tile_stored(2, c1, c_bytes);
  if constexpr (Rows == 2 && Columns == 2) _tile_stored(3, c1 + 16, c_bytes);
}

}  // namespace

[[gnu::target("amx-tile,amx-bf16")]] void pair_product_amx(const PairMatrices& m) {
  // GCC's intrinsics do not declare that they read and write memory.
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&configuration);
  for (std::int64_t row = 0; row < m.rows; row += 32)
    for (std::int64_t column = 0; column < m.columns; column += 32) {
      const bool two_rows = m.rows - row > 16, two_columns = m.columns - column > 16;
      if (two_rows && two_columns)
        multiply_amx<2, 2>(m, row, column);
      else if (two_rows)
        multiply_amx<2, 1>(m, row, column);
      else if (two_columns)
        multiply_amx<1, 2>(m, row, column);
      else
        multiply_amx<1, 1>(m, row, column);
    }
  _tile_release();
  __asm__ volatile("" ::: "memory");
}
#else
void pair_product_avx512_bf16(const PairMatrices& m) { pair_product_emulated(m); }
void pair_product_amx(const PairMatrices& m) { pair_product_emulated(m); }
#endif

}  // namespace poolgrad::kernels
