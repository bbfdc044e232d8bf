#include "kernels/cpu/gemm/pair_product.h"

#include <cstddef>

#include "kernels/cpu/simd/simd.h"

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
void multiply_block(const PairMatrices& m, std::int64_t row, std::int64_t column) {
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
      // The products are exact in f32, so that it does not matter whether the compiler fuses.
      sum[r] = flush(sum[r] + high(pair) * b_high);
      sum[r] = flush(sum[r] + low(pair) * b_low);
    }
  }
  for (std::size_t r = 0; r < Rows; ++r) simd::store(c + static_cast<std::int64_t>(r) * m.c_stride, sum[r]);
}

}  // namespace

void pair_product_emulated(const PairMatrices& m) {
  for (std::int64_t column = 0; column < m.columns; column += simd::lanes<float>)
    for (std::int64_t row = 0; row < m.rows; row += 8) multiply_block<8>(m, row, column);
}

}  // namespace poolgrad::kernels
