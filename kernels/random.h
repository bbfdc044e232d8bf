// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): element i depends on (seed, use, offset + i)
// alone, never on threads, tiling or strides.
#pragma once

#include <cstdint>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

struct ReplayedKey;

/// What a random number is a function of, besides its index: a seed, a stream of use, and where this use begins.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t use = 0;
  std::uint64_t offset = 0;
  /// Of a step that is recorded: where on the device the key of each replay lies, which is then the key, this offset
  /// further on.
  const ReplayedKey* replayed = nullptr;
};
/// What the host writes before each replay.
struct ReplayedKey {
  RandomKey key;
  std::uint32_t words[4] = {};  // of the block of random words at key.offset
};

/// Uniform in [low, high), row-major element order: 53 bits of two words, so all dtypes get the same numbers, rounded.
void uniform(Stream stream, const RandomKey& key, const View& out, double low, double high);
/// Normal by Box-Muller from the four words of a block per element, in f64, then rounded to the dtype.
void normal(Stream stream, const RandomKey& key, const View& out, double mean, double deviation);
/// out = keep ? x / (1 - p) : 0, keep with probability 1 - p. The same call with grad in place of x is the backward.
void dropout(Stream stream, const RandomKey& key, const View& out, const View& x, double p);

}  // namespace poolgrad::kernels
