#include "kernels/cpu/simd/philox_blocks.h"

#include "kernels/cpu/simd/philox_lanes.h"

namespace poolgrad::kernels {
namespace {

using Words = PhiloxLanes;
constexpr int lanes = philox_lanes;

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
    philox(x, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
    store_interleaved(x, words + 4 * i, std::make_integer_sequence<int, lanes>{});
  }
  for (; i < count; ++i) {
    const PhiloxWords block = philox_block(key.seed, key.use, first + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
  }
}

}  // namespace poolgrad::kernels
