// Decides when to pack live blocks: before the pool's bookkeeping grows too large, and only where it helps. Packs the
// later replacements of packed blocks one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/front/front.h"
#include "allocator/pool/plan.h"

namespace poolgrad {

/// Requires the pool's mutex.
class BlockPacker {
 public:
  BlockPacker(const Ground& ground, Arenas& arenas, Front& front, const Plan& plan)
      : ground_(ground), arenas_(arenas), front_(front), plan_(plan) {}

  /// Notes a block that became live.
  void note(const Block* block) noexcept {
    if (Tiling::is_among_packed(block)) note_newcomer({block->address, block->number});
  }
  /// Notes a block that a magazine keeps: a cache hit may hand it out unseen.
  void note_kept(const Block* block) noexcept {
    if (!Tiling::is_among_packed(block)) return;
    note_newcomer({block->address, whichever});
    keep_small();
  }
  /// Packs live blocks if their bookkeeping is too large and packing will help.
  void keep_small() noexcept {
    if (newcomers_ > pack_again_above_) pack_again();
    if (arenas_.noted_bytes() > pack_above_) pack_or_wait();
  }
  /// Packs, and frees all unused memory. Requires all threads stopped.
  void tidy() noexcept;
  std::size_t bookkeeping_bytes() const noexcept { return ring_.capacity() * sizeof(Newcomer); }

 private:
  /// A live block in a region of packed ones.
  struct Newcomer {
    std::uintptr_t address;
    std::uint64_t number;
  };
  static constexpr std::uint64_t whichever = UINT64_MAX;  // unknown number: a cache hit may have changed it

  std::size_t most_noted() const noexcept;
  /// The number of young blocks, the newest ones.
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
  // Bookkeeping bytes below which nothing is packed: now; for any reserved bytes; and as a minimum after a pass in
  // vain.
  std::size_t pack_above_ = 0, patience_ = 0, regret_ = 0;
  std::size_t packed_ = 0;         // blocks, in the last pass; 0 once judged
  std::size_t unpacked_then_ = 0;  // Arenas::unpacked_blocks() at that moment
  std::uint64_t rests_until_ = 0;  // no pass before this tick
  // The newest blocks, oldest first: a ring whose size is a power of two.
  std::vector<Newcomer> ring_;
  std::size_t oldest_ = 0, newcomers_ = 0;
  std::size_t pack_again_above_ = 0;
};

}  // namespace poolgrad
