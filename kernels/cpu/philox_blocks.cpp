#include "kernels/cpu/philox_blocks.h"

namespace poolgrad::kernels {

void philox_blocks(const RandomKey& key, std::uint64_t first, std::int64_t count, std::uint32_t* words) {
  constexpr int lanes = 16;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    std::uint32_t a[lanes], b[lanes], c[lanes], d[lanes];
    for (int l = 0; l < lanes; ++l) {
      const std::uint64_t block = first + static_cast<std::uint64_t>(i + l);
      a[l] = static_cast<std::uint32_t>(block);
      b[l] = static_cast<std::uint32_t>(block >> 32);
      c[l] = static_cast<std::uint32_t>(key.use);
      d[l] = static_cast<std::uint32_t>(key.use >> 32);
    }
    auto key0 = static_cast<std::uint32_t>(key.seed), key1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int l = 0; l < lanes; ++l) {
        const std::uint64_t p = std::uint64_t{0xD2511F53u} * a[l], q = std::uint64_t{0xCD9E8D57u} * c[l];
        a[l] = static_cast<std::uint32_t>(q >> 32) ^ b[l] ^ key0;
        b[l] = static_cast<std::uint32_t>(q);
        c[l] = static_cast<std::uint32_t>(p >> 32) ^ d[l] ^ key1;
        d[l] = static_cast<std::uint32_t>(p);
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    for (int l = 0; l < lanes; ++l) {
      std::uint32_t* to = words + 4 * (i + l);
      to[0] = a[l], to[1] = b[l], to[2] = c[l], to[3] = d[l];
    }
  }
  for (; i < count; ++i) {
    const PhiloxWords block = philox_block(key.seed, key.use, first + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
  }
}

}  // namespace poolgrad::kernels
