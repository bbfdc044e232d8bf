#include "kernels/cpu/philox_blocks.h"

#include "kernels/cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poolgrad::kernels {
namespace {

/// A word of as many blocks as there are 64-bit lanes, in the lower halves; the upper halves hold anything.
using Words = simd::Vec<std::uint64_t>;
constexpr int lanes = simd::lanes<std::uint64_t>;

/// The product of the lower halves.
Words multiply(Words a, std::uint32_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), _mm512_set1_epi64(static_cast<std::int64_t>(b))));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(static_cast<std::int64_t>(b))));
#else
  return (a & 0xffffffffu) * std::uint64_t{b};
#endif
}

/// The words of `lanes` blocks in order.
template <int... Lane>
void store_interleaved(const Words (&x)[4], std::uint32_t* to, std::integer_sequence<int, Lane...>) {
  const Words low = (x[0] & 0xffffffffu) | (x[1] << 32), high = (x[2] & 0xffffffffu) | (x[3] << 32);
  const Words first = __builtin_shufflevector(low, high, (Lane / 2 + Lane % 2 * lanes)...);
  const Words second = __builtin_shufflevector(low, high, (Lane / 2 + lanes / 2 + Lane % 2 * lanes)...);
  std::memcpy(to, &first, sizeof(first));
  std::memcpy(to + 2 * lanes, &second, sizeof(second));
}

}  // namespace

void philox_blocks(const RandomKey& key, std::uint64_t first, std::int64_t count, std::uint32_t* words) {
  std::int64_t i = 0;
  Words index;
  for (int lane = 0; lane < lanes; ++lane) index[lane] = first + static_cast<std::uint64_t>(lane);
  for (; i + lanes <= count; i += lanes, index += static_cast<std::uint64_t>(lanes)) {
    Words x[4] = {index, index >> 32, simd::broadcast(key.use), simd::broadcast(key.use >> 32)};
    std::uint32_t key0 = static_cast<std::uint32_t>(key.seed), key1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const Words p = multiply(x[0], philox_multiplier0), q = multiply(x[2], philox_multiplier1);
      x[0] = (q >> 32) ^ x[1] ^ std::uint64_t{key0};
      x[1] = q;
      x[2] = (p >> 32) ^ x[3] ^ std::uint64_t{key1};
      x[3] = p;
      key0 += philox_weyl0;
      key1 += philox_weyl1;
    }
    store_interleaved(x, words + 4 * i, std::make_integer_sequence<int, lanes>{});
  }
  for (; i < count; ++i) {
    const PhiloxWords block = philox_block(key.seed, key.use, first + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
  }
}

}  // namespace poolgrad::kernels
