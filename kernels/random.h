// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011). Element i depends only on (seed, use, offset + i),
// never on threads, tiling or strides.
#pragma once

#include <cstdint>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

struct ReplayedKey;

/// Key of a random number, besides its index: a seed, a stream (`use`) and the offset of this use in the stream.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t use = 0;
  std::uint64_t offset = 0;
  /// Device memory of a recorded step: each replay reads its key there and adds this offset.
  const ReplayedKey* replayed = nullptr;
};
/// Key that the host writes before each replay.
struct ReplayedKey {
  RandomKey key;
  std::uint32_t words[4] = {};  // random words of the block at key.offset
};

/// Uniform in [low, high), row-major element order. Uses 53 bits of two words, so all dtypes get the same numbers,
/// rounded.
void uniform(Stream stream, const RandomKey& key, const View& out, double low, double high);
/// Normal by Box-Muller from the four words of a block per element, computed in f64 and rounded to the dtype.
void normal(Stream stream, const RandomKey& key, const View& out, double mean, double deviation);
/// out = keep ? x / (1 - p) : 0; keep has probability 1 - p. The backward is the same call with grad in place of x.
void dropout(Stream stream, const RandomKey& key, const View& out, const View& x, double p);

}  // namespace poolgrad::kernels
