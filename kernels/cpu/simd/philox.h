// Philox blocks in vectors, one block per 64-bit lane. Internal to kernels/cpu.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/simd/simd.h"
#include "kernels/functors/philox.h"
#include "kernels/random.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {

/// One word of each lane's block, in the lower half; the upper half is undefined.
using PhiloxLanes = simd::Vec<std::uint64_t>;
inline constexpr int philox_lanes = simd::lanes<std::uint64_t>;

/// Products of the lower halves.
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

/// philox() in every lane: turns counters into random words.
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

/// Stores the words of philox_lanes blocks in order.
template <int... Lane>
void store_interleaved(const PhiloxLanes (&x)[4], std::uint32_t* to, std::integer_sequence<int, Lane...>) {
  constexpr int n = philox_lanes;
  const PhiloxLanes low = (x[0] & 0xffffffffu) | (x[1] << 32), high = (x[2] & 0xffffffffu) | (x[3] << 32);
  const PhiloxLanes first = __builtin_shufflevector(low, high, (Lane / 2 + Lane % 2 * n)...);
  const PhiloxLanes second = __builtin_shufflevector(low, high, (Lane / 2 + n / 2 + Lane % 2 * n)...);
  std::memcpy(to, &first, sizeof(first));
  std::memcpy(to + 2 * n, &second, sizeof(second));
}

/// words[4 i + j] = word j of block `first` + i, for i < count: philox_block() in vectors.
[[gnu::noinline]] inline void philox_blocks(const RandomKey& key, std::uint64_t first, std::int64_t count,
                                            std::uint32_t* words) {
  constexpr int n = philox_lanes;
  std::int64_t i = 0;
  PhiloxLanes index;
  for (int lane = 0; lane < n; ++lane) index[lane] = first + static_cast<std::uint64_t>(lane);
  for (; i + n <= count; i += n, index += static_cast<std::uint64_t>(n)) {
    PhiloxLanes x[4] = {index, index >> 32, simd::broadcast(key.use), simd::broadcast(key.use >> 32)};
    philox(x, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
    store_interleaved(x, words + 4 * i, std::make_integer_sequence<int, n>{});
  }
  for (; i < count; ++i) {
    const PhiloxWords block = philox_block(key.seed, key.use, first + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
  }
}

}  // namespace poolgrad::kernels
