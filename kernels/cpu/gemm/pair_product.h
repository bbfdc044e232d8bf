// Products of bf16 matrices with f32 sums, as dot products of pairs: the operation of AVX-512 BF16 (vdpbf16ps) and AMX
// (tdpbf16ps), with an emulation for other CPUs. Operands are 32-bit words of two neighbors along the summed
// dimension, the first in the low half:
//
//   a (rows x pairs)       a row is a row of a bf16 matrix as it lies in memory
//   b (pairs x columns)    word (p, j) is (b[2 p][j], b[2 p + 1][j]) of a bf16 matrix
//   c (rows x columns)     f32
//
// Per element, as in the manuals: c = fma(a high, b high, c), then c = fma(a low, b low, c). Both round to nearest even
// in every rounding mode; subnormal operands and results count as 0. AMX sums the high and the low products of 16 pairs
// separately and adds both sums to c. The last bits therefore differ between implementations, but each one is
// deterministic.
#pragma once

#include <cstdint>

namespace poolgrad::kernels {

/// Strides are in elements of 4 bytes. Any alignment.
struct PairMatrices {
  float* c;
  std::int64_t c_stride;
  const std::uint32_t* a;
  std::int64_t a_stride;
  const std::uint32_t* b;
  std::int64_t b_stride;
  std::int64_t rows, columns, pairs;  // multiples of pair_step; packing pads with zeros
  bool accumulate;                    // c += a b, else c = a b
};
inline constexpr std::int64_t pair_step = 16;

using PairProduct = void (*)(const PairMatrices&);

void pair_product_emulated(const PairMatrices& m);
/// Only for CPUs with the instructions (kernels/cpu/instruction_sets.h).
void pair_product_avx512_bf16(const PairMatrices& m);
void pair_product_amx(const PairMatrices& m);

}  // namespace poolgrad::kernels
