// Random numbers as a function of (seed, stream of use, index): Philox 4x32-10 by counter. A generator only hands out
// disjoint index ranges, so its state is two numbers, and a range can be replayed exactly (checkpointing, dropout's
// backward).
#pragma once

#include <cstdint>

#include "kernels/random.h"

namespace poolgrad {

class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0, std::uint64_t use = 0) : key_{seed, use, 0} {}

  /// Takes `count` numbers; the key names them for ever.
  kernels::RandomKey take(std::int64_t count);
  void set_seed(std::uint64_t seed) { key_ = {seed, key_.use, 0}; }

  /// The whole state, for checkpoints.
  kernels::RandomKey state() const { return key_; }
  void set_state(kernels::RandomKey state) { key_ = state; }

 private:
  kernels::RandomKey key_;
};

/// This thread's generator, used where none is given; seed 0 at start.
Generator& default_generator();
/// Seeds default_generator().
void manual_seed(std::uint64_t seed);

}  // namespace poolgrad
