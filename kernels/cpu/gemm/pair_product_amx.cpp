#include "kernels/cpu/gemm/pair_product.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {

#if defined(__x86_64__)
namespace {

/// What ldtilecfg reads: all eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);
constexpr TileConfiguration configuration;

/// 16 Rows by 16 Columns tiles: sums in tiles 0 to 3, a in 4 and 5, b in 6 and 7. Four products share four loads.
template <int Rows, int Columns>
[[gnu::target("amx-tile,amx-bf16")]] void multiply_block(const PairMatrices& m, std::int64_t row, std::int64_t column) {
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
  // GCC's intrinsics do not say that they read and write memory.
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&configuration);
  for (std::int64_t row = 0; row < m.rows; row += 32)
    for (std::int64_t column = 0; column < m.columns; column += 32) {
      const bool two_rows = m.rows - row > 16, two_columns = m.columns - column > 16;
      if (two_rows && two_columns)
        multiply_block<2, 2>(m, row, column);
      else if (two_rows)
        multiply_block<2, 1>(m, row, column);
      else if (two_columns)
        multiply_block<1, 2>(m, row, column);
      else
        multiply_block<1, 1>(m, row, column);
    }
  _tile_release();
  __asm__ volatile("" ::: "memory");
}
#else
void pair_product_amx(const PairMatrices& m) { pair_product_emulated(m); }
#endif

}  // namespace poolgrad::kernels
