// Attention dropout as a function of (seed, call, batch, head, query position, key position). Tiles, shards and threads
// do not affect it, and nothing is stored. Host and device.
#pragma once

#include <cstdint>

#include "kernels/functors/philox.h"
#include "kernels/random.h"

namespace poolgrad::kernels {

struct AttentionDropout {
  std::uint32_t key0 = 0, key1 = 0;
  std::uint32_t threshold = 0;              // smaller words are dropped
  const std::uint32_t* replayed = nullptr;  // of a recorded step: the two words of the key, on the device

  /// p in [0, 1). Each call has its own key: two words of the generator's block `key.offset`.
  POOLGRAD_HD static constexpr AttentionDropout make(const RandomKey& key, double p) {
    const PhiloxWords words = philox_block(key.seed, key.use, key.offset);
    return {words.word[0], words.word[1], static_cast<std::uint32_t>(p * 4294967296.0),
            key.replayed == nullptr ? nullptr : key.replayed->words};
  }
  /// Random words of keys 4 g .. 4 g + 3.
  POOLGRAD_HD constexpr PhiloxWords words(std::int64_t batch, std::int64_t head, std::int64_t query,
                                          std::int64_t group) const {
    const auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
    const auto high = [](std::int64_t x) { return static_cast<std::uint32_t>(x >> 32) & 0xFFFFu; };
    return philox({{low(group), low(query), low(batch << 16 ^ head), high(group) << 16 | high(query)}},
                  replayed == nullptr ? key0 : replayed[0], replayed == nullptr ? key1 : replayed[1]);
  }
  /// Whether the weight is kept.
  POOLGRAD_HD constexpr bool keeps(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const {
    return words(batch, head, query, key >> 2).word[key & 3] >= threshold;
  }
};

}  // namespace poolgrad::kernels
