// When live blocks are packed: before what the pool notes about blocks becomes too much, and not where it is in
// vain; and again, one by one, what came in their place and stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/front/front.h"
#include "allocator/pool/plan.h"

namespace poolgrad {

/// Called with the pool's mutex held.
class BlockPacker {
 public:
  BlockPacker(const Ground& ground, Arenas& arenas, Front& front, const Plan& plan)
      : ground_(ground), arenas_(arenas), front_(front), plan_(plan) {}

  /// A live block has been handed out.
  void note(const Block* block) noexcept {
    if (Tiling::is_among_packed(block)) note_newcomer({block->address, block->number});
  }
  /// A magazine keeps the block, which a hit may hand out: nobody hears of that.
  void note_kept(const Block* block) noexcept {
    if (!Tiling::is_among_packed(block)) return;
    note_newcomer({block->address, whichever});
    keep_small();
  }
  /// Packs live blocks if what is noted about them is too much, and packing will not be in vain.
  void keep_small() noexcept {
    if (newcomers_ > pack_again_above_) pack_again();
    if (arenas_.noted_bytes() > pack_above_) pack_or_wait();
  }
  /// Packs, and gives all back that is not needed now. During a standstill.
  void tidy() noexcept;
  std::size_t bookkeeping_bytes() const noexcept { return ring_.capacity() * sizeof(Newcomer); }

 private:
  /// A block in a region of packed ones.
  struct Newcomer {
    std::uintptr_t address;
    std::uint64_t number;
  };
  static constexpr std::uint64_t whichever = UINT64_MAX;  // number, where a hit may have handed the block out since

  std::size_t most_noted() const noexcept;
  /// How many blocks are young: those that came last.
  std::size_t young() const noexcept;
  bool may_pack(const Block* block) const noexcept;
  void note_newcomer(const Newcomer& newcomer) noexcept;
  void pack_again() noexcept;
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
  std::uint64_t rests_until_ = 0;  // the tick before which there is no other pass
  // The last ones, the oldest first: a ring, whose size is a power of two.
  std::vector<Newcomer> ring_;
  std::size_t oldest_ = 0, newcomers_ = 0;
  std::size_t pack_again_above_ = 0;
};

}  // namespace poolgrad
