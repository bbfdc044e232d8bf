// Address windows tiled by blocks: splits and joins, the live map, and packed live blocks. The arena tracks free blocks
// and pages.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/base/rounding.h"
#include "allocator/heap/block.h"
#include "allocator/heap/handles.h"
#include "allocator/heap/packed_blocks.h"
#include "allocator/heap/page_ages.h"
#include "allocator/heap/pointer_table.h"

namespace poolgrad {

/// Maps an address to the live block that starts there, and to the packed blocks of its region. One writer at a time;
/// concurrent readers may look for blocks, see PointerTable::find(). Keys are offsets in one address window. Adds its
/// bytes to `held`.
class LiveMap {
 public:
  LiveMap(std::size_t granule, std::size_t& held)
      : granule_bits_(static_cast<unsigned>(std::countr_zero(granule))),
        region_bits_(std::max(granule_bits_, least_region_bits)),
        held_(held),
        blocks_(held),
        packed_(held) {}
  ~LiveMap() {
    packed_.for_each([this](PackedBlocks* blocks) { discard(blocks); });
  }

  /// nullptr if no live block starts in the granule of `offset`, or if it is packed.
  Block* find(std::size_t offset) const noexcept { return blocks_.find(offset >> granule_bits_); }
  /// Reserves memory for the next set(), and for former entries that return.
  void expect() { blocks_.expect(); }
  /// The same, for one entry more than before.
  void expect_more() { blocks_.expect_more(); }
  void set(std::size_t offset, Block* block) { blocks_.set(offset >> granule_bits_, block); }
  void clear(std::size_t offset) noexcept { blocks_.erase(offset >> granule_bits_); }
  /// Approximate bytes for each block.
  static constexpr std::size_t bytes_each = PointerTable<Block>::bytes_each;

  // Packed blocks. A region is named by its start offset.
  std::size_t region_of(std::size_t offset) const noexcept { return offset >> region_bits_ << region_bits_; }
  unsigned granule_bits() const noexcept { return granule_bits_; }
  /// The packed blocks of the region that contains the offset; nullptr if there are none.
  PackedBlocks* packed(std::size_t offset) const noexcept { return packed_.find(offset >> region_bits_); }
  /// Reserves memory for the next set_packed().
  void expect_packed() { packed_.expect(); }
  /// Replaces the packed blocks of a region, or removes them.
  void set_packed(std::size_t offset, PackedBlocks::Owner blocks) noexcept {
    if (PackedBlocks* known = packed_.erase(offset >> region_bits_)) discard(known);
    if (blocks == nullptr) return;
    held_ += blocks->bytes();
    packed_.set(offset >> region_bits_, blocks.release());
  }

  /// Frees unused memory. Requires that there are no concurrent readers.
  void trim() noexcept {
    blocks_.trim();
    packed_.trim();
  }

 private:
  static constexpr unsigned least_region_bits = 17;

  void discard(PackedBlocks* blocks) noexcept {
    held_ -= blocks->bytes();
    PackedBlocks::Delete()(blocks);
  }

  unsigned granule_bits_;
  unsigned region_bits_;
  std::size_t& held_;
  PointerTable<Block> blocks_;
  PointerTable<PackedBlocks> packed_;
};

/// One reserved address range.
struct Window {
  std::uintptr_t address;
  Relaxed<std::size_t> size;  // 0 once it is released
  Block* first;
  LiveMap live;
  HandleMap handles;
  PageAges ages;
  Relaxed<const Window*> older = nullptr;  // of the same arena
};

/// Bytes of whole handles from the start of `first` to the end of `last`, all committed.
inline std::size_t whole_handles(const Block* first, const Block* last) {
  const HandleMap& handles = first->window->handles;
  const std::uintptr_t begin = handles.round_up(first->address), end = handles.round_down(last->end());
  return end > begin ? end - begin : 0;
}

/// A function that throws for lack of memory has changed nothing.
class Tiling {
 public:
  /// Blocks are multiples of `granule`, a power of two.
  Tiling(BlockStore& store, std::size_t granule) : store_(store), granule_(granule) {}

  const std::vector<std::unique_ptr<Window>>& windows() const { return windows_; }
  /// Splits a block that is in no index after `size` bytes. Returns the rest, with the same stream, epoch, ticket and
  /// state.
  Block* split(Block* block, std::size_t size);
  /// Merges busy neighbors, in address order.
  Block* join(const std::vector<Block*>& blocks);
  /// Whether `size` bytes at `alignment` fit into the block.
  static bool fits(const Block* block, std::size_t size, std::size_t alignment) {
    const std::uintptr_t start = round_up(block->address, alignment);
    return start >= block->address && start - block->address <= block->size &&
           block->size - (start - block->address) >= size;
  }

  /// Reserves memory for mark_live() of the block.
  static void expect_live(const Block* block) { block->window->live.expect(); }
  static void mark_live(Block* block) {
    block->window->live.set(block->address - block->window->address, block);
    block->state = BlockState::live;
  }
  static void clear_live(Block* block) noexcept { block->window->live.clear(block->address - block->window->address); }
  /// The live block that starts at `address`; nullptr if there is none. Needs no lock: a Window lives as long as the
  /// arena, and the owner of a block sees it in the map.
  Block* live(std::uintptr_t address) const noexcept {
    const Window* window = window_of(address);
    Block* block = window == nullptr ? nullptr : window->live.find(address - window->address);
    return block != nullptr && block->address == address ? block : nullptr;
  }
  /// The block of any state that contains `address`; none outside all windows. Slow.
  std::optional<Block> containing(std::uintptr_t address) const;
  bool owns(std::uintptr_t address) const noexcept { return window_of(address) != nullptr; }

  // Packed blocks are live blocks stored in a few bytes, without a Block each. A live node Block represents each run of
  // them. Only the thread that changes the arena may ask about them.
  struct Packed {
    std::size_t blocks = 0;
    std::size_t touched = 0;  // blocks examined, including packed ones
  };
  /// Packs the blocks of the live map for which `may_pack(block)` is true, as far as that saves memory, and trims the
  /// map. Requires that there are no concurrent readers. Adds to `packed`.
  void pack(const std::function<bool(const Block*)>& may_pack, Packed& packed);
  /// Whether the block's region has packed blocks.
  static bool is_among_packed(const Block* block) noexcept {
    return block->window->live.packed(block->address - block->window->address) != nullptr;
  }
  /// Packs a live block that replaced a packed one of the same size and kind, without moving the records around it.
  /// Returns whether it could. Requires that there are no concurrent readers.
  bool pack_again(Block* block);
  /// Reserves memory for take_out() of the address and a later mark_live().
  void expect_taken_out(std::uintptr_t address);
  /// Unpacks the block that starts at `address`, without an entry in the live map; nullptr if there is none, or no
  /// memory.
  Block* take_out(std::uintptr_t address) noexcept;
  /// A copy of the live block that starts at `address`, packed or not; none if there is none.
  std::optional<Block> live_copy(std::uintptr_t address) const;
  /// Calls visit(const Block&) for the block, or for a copy of each packed block it represents.
  template <class Visit>
  static void for_each_of(const Block* block, Visit visit) {
    if (block->state != BlockState::live || block->packed == nullptr) return visit(*block);
    const PackedBlocks& packed = *block->packed;
    for (std::size_t i = packed.lower_bound(block->address); i < packed.size(); ++i) {
      if (packed.address(i) >= block->end()) return;
      visit(copy_of(block, i));
    }
  }
  /// Calls visit(stream) for the block's stream, or for those of the packed blocks, at least once each.
  template <class Visit>
  static void for_each_stream_of(const Block* block, Visit visit) {
    if (block->state == BlockState::live && block->packed != nullptr) {
      if (const std::optional<std::uint64_t> only = block->packed->only_stream()) return visit(*only);
    }
    for_each_of(block, [&](const Block& one) { visit(one.stream); });
  }
  /// Calls visit(const Block&) for all live blocks.
  template <class Visit>
  void for_each_live(Visit visit) const {
    for (const auto& window : windows_) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state == BlockState::live) for_each_of(block, visit);
      }
    }
  }
  /// Whether any live or busy block has a stream id of at least this value.
  bool has_live_block_from(std::uint64_t stream) const;
  /// Bytes held for the live map and packed blocks.
  std::size_t map_bytes() const noexcept { return map_bytes_; }

 private:
  std::size_t map_bytes_ = 0;  // the memory of all windows_' maps

 protected:
  /// Adds a window and returns it as one uncommitted block.
  Block* tile(std::uintptr_t address, std::size_t bytes, HandleMap handles);
  /// Removes a window that is one uncommitted block in no index. Needs space in former_windows_.
  void untile(Block* hole) noexcept;
  /// Absorbs the right neighbor and deletes it.
  void absorb_next(Block* block) {
    Block* gone = block->absorb_next();
    block->ticket = std::max(block->ticket, gone->ticket);
    store_.recycle(gone);
  }

  BlockStore& store_;
  const std::size_t granule_;
  std::vector<std::unique_ptr<Window>> windows_;
  std::vector<std::unique_ptr<Window>> former_windows_;  // concurrent readers may still use them

 private:
  const Window* window_of(std::uintptr_t address) const noexcept {
    const Window* window = newest_window_.load(std::memory_order_acquire);
    while (window != nullptr && address - window->address >= window->size) window = window->older;
    return window;
  }
  struct Packing;
  /// The record of a packed block, and the node that represents it.
  struct Place {
    PackedBlocks* blocks = nullptr;
    std::size_t index = 0;
    Block* node = nullptr;  // nullptr: not found
  };
  Place look_up(std::uintptr_t address) const noexcept;
  static Block copy_of(const Block* node, std::size_t index);
  void pack(Window& window, std::size_t region, Packing& packing);
  /// Inserts `rest` after the block, which keeps its first `size` bytes.
  static void split(Block* block, std::size_t size, Block* rest) noexcept;

  std::atomic<const Window*> newest_window_ = nullptr;
};

}  // namespace poolgrad
