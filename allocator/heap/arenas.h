// Where the blocks of a pool lie: two arenas, so that what lives long does not pin the pages of what does not, and the
// Block objects of both. Geometry only, as an arena's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "allocator/heap/arena.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

/// Guarded by the pool's mutex but for what says otherwise.
class Arenas {
 public:
  Arenas(std::size_t granule, std::size_t page, bool divisible)
      : both_{Arena(store_, granule, page, divisible), Arena(store_, granule, page, divisible)} {}

  Arena& of(Tag tag) { return both_[is_long_lived(tag.category) ? 1 : 0]; }
  const Arena& of(Tag tag) const { return both_[is_long_lived(tag.category) ? 1 : 0]; }
  Arena& other_than(Tag tag) { return both_[is_long_lived(tag.category) ? 0 : 1]; }
  /// The one that the block lies in.
  Arena& of(const Block* block) { return both_[both_[0].owns(block->address) ? 0 : 1]; }
  Arena* begin() { return both_.begin(); }
  Arena* end() { return both_.end(); }
  const Arena* begin() const { return both_.begin(); }
  const Arena* end() const { return both_.end(); }
  BlockStore& store() { return store_; }

  /// Needs no lock.
  bool owns(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return both_[0].owns(address) || both_[1].owns(address);
  }
  /// Needs no lock for a block that is the caller's. nullptr for a packed one, see unpacked().
  Block* live(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    Block* block = both_[0].live(address);
    if (block == nullptr) block = both_[1].live(address);
    return block != nullptr && block->state == BlockState::live ? block : nullptr;
  }
  /// A copy of the live block that starts there, packed or not.
  std::optional<Block> live_copy(const void* pointer) const;
  /// The live block that starts there, no longer packed; nullptr if there is none.
  Block* unpacked(const void* pointer);
  /// The same to give it back: nullptr for want of memory, too; one that was packed is not in the live map.
  Block* unpacked_at_last(const void* pointer) noexcept {
    Block* block = live(pointer);
    return block != nullptr ? block : take_out_at_last(pointer);
  }
  /// Packed blocks that came out so far.
  std::size_t unpacked_blocks() const { return unpacked_blocks_; }
  /// Packs the live blocks that may be; how many were packed. During a standstill.
  std::size_t pack(const std::function<bool(const Block*)>& may_pack) noexcept;

  /// Blocks may be put here for the stream, in either arena.
  void expect(std::uint64_t stream);
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept;
  bool knows_stream(std::uint64_t stream) const;
  /// How often a block became free or stopped being free.
  std::uint64_t changes() const { return both_[0].changes() + both_[1].changes(); }

  std::size_t free_bytes() const { return both_[0].free_bytes() + both_[1].free_bytes(); }
  /// Free for other streams than this.
  std::size_t free_elsewhere(std::uint64_t stream) const;
  /// Free in whole handles: what a release could return; or at least `enough`.
  std::size_t releasable_bytes(std::size_t enough = SIZE_MAX) const;
  /// What is held for blocks, the live map, and packed blocks.
  std::size_t noted_bytes() const { return store_.bytes() + both_[0].map_bytes() + both_[1].map_bytes(); }
  /// That and all else.
  std::size_t bookkeeping_bytes() const;

 private:
  Block* take_out_at_last(const void* pointer) noexcept;

  BlockStore store_;
  std::array<Arena, 2> both_;  // transients; long-lived
  std::size_t unpacked_blocks_ = 0;
};

}  // namespace poolgrad
