// When live blocks are packed: before what the pool notes about blocks becomes too much, and not where it is in vain.
#pragma once

#include <cstddef>

#include "allocator/front/front.h"
#include "allocator/pool/plan.h"

namespace poolgrad {

/// Called with the pool's mutex held.
class BlockPacker {
 public:
  BlockPacker(const Ground& ground, Arenas& arenas, Front& front, const Plan& plan)
      : ground_(ground), arenas_(arenas), front_(front), plan_(plan) {}

  /// Packs live blocks if what is noted about them is too much, and packing will not be in vain.
  void keep_small() noexcept {
    if (arenas_.noted_bytes() > pack_above_) pack_or_wait();
  }
  /// Packs, and gives all back that is not needed now. During a standstill.
  void tidy() noexcept;

 private:
  void pack_or_wait() noexcept;
  void pack() noexcept;

  const Ground& ground_;
  Arenas& arenas_;
  Front& front_;
  const Plan& plan_;
  // Noted bytes up to which nothing is packed: now; whatever is reserved; and at least, since it was in vain.
  std::size_t pack_above_ = 0, patience_ = 0, regret_ = 0;
  std::size_t packed_ = 0;         // blocks, the last time; 0 once that is judged
  std::size_t unpacked_then_ = 0;  // Arenas::unpacked_blocks() at that moment
};

}  // namespace poolgrad
