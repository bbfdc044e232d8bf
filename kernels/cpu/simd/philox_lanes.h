// Philox blocks in vectors, one block per 64-bit lane. Internal to kernels/cpu.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"
#include "kernels/definition/philox.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {

/// One word of as many blocks as there are lanes, in the lower halves; the upper halves hold anything.
using PhiloxLanes = simd::Vec<std::uint64_t>;
inline constexpr int philox_lanes = simd::lanes<std::uint64_t>;

/// The product of the lower halves.
inline PhiloxLanes multiply_low(PhiloxLanes a, std::uint32_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<PhiloxLanes>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), _mm512_set1_epi64(static_cast<std::int64_t>(b))));
#elif defined(__AVX2__)
  return reinterpret_cast<PhiloxLanes>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(static_cast<std::int64_t>(b))));
#else
  return (a & 0xffffffffu) * std::uint64_t{b};
#endif
}

/// philox() of every lane: counters become random words.
inline void philox(PhiloxLanes (&x)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const PhiloxLanes p = multiply_low(x[0], philox_multiplier0), q = multiply_low(x[2], philox_multiplier1);
    x[0] = (q >> 32) ^ x[1] ^ std::uint64_t{key0};
    x[1] = q;
    x[2] = (p >> 32) ^ x[3] ^ std::uint64_t{key1};
    x[3] = p;
    key0 += philox_weyl0;
    key1 += philox_weyl1;
  }
}

}  // namespace poolgrad::kernels
