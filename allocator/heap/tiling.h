// Address windows tiled by blocks: splits and joins, and the live map. The arena tracks free blocks and pages.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/base/rounding.h"
#include "allocator/heap/block.h"
#include "allocator/heap/handles.h"
#include "allocator/heap/page_ages.h"
#include "allocator/heap/pointer_table.h"

namespace poolgrad {

/// Maps an address to the live block that starts there. One writer at a time; concurrent readers may look for blocks,
/// see PointerTable::find(). Keys are offsets in one address window. Adds its bytes to `held`.
class LiveMap {
 public:
  LiveMap(std::size_t granule, std::size_t& held)
      : granule_bits_(static_cast<unsigned>(std::countr_zero(granule))), blocks_(held) {}

  /// nullptr if no live block starts in the granule of `offset`.
  Block* find(std::size_t offset) const noexcept { return blocks_.find(offset >> granule_bits_); }
  /// See PointerTable.
  bool expect() { return blocks_.expect(); }
  void forget_former() noexcept { blocks_.forget_former(); }
  void set(std::size_t offset, Block* block) { blocks_.set(offset >> granule_bits_, block); }
  void clear(std::size_t offset) noexcept { blocks_.erase(offset >> granule_bits_); }
  /// Frees unused memory. Requires that there are no concurrent readers.
  void trim() noexcept { blocks_.trim(); }

 private:
  unsigned granule_bits_;
  PointerTable<Block> blocks_;
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

  /// Reserves memory for mark_live() of the block. Returns whether its window's map has former slots to forget.
  static bool expect_live(const Block* block) { return block->window->live.expect(); }
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
  /// The block of any state that contains `address`; nullptr outside all windows. Slow.
  const Block* containing(std::uintptr_t address) const;
  bool owns(std::uintptr_t address) const noexcept { return window_of(address) != nullptr; }

  /// Frees unused memory of the live map. Requires that there are no concurrent readers.
  void trim() noexcept {
    for (const auto& window : windows_) window->live.trim();
    for (const auto& window : former_windows_) window->live.trim();
  }
  /// Calls visit(const Block&) for all live blocks.
  template <class Visit>
  void for_each_live(Visit visit) const {
    for (const auto& window : windows_) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state == BlockState::live) visit(*block);
      }
    }
  }
  /// Whether any live or busy block has a stream id of at least this value.
  bool has_live_block_from(std::uint64_t stream) const;
  /// Bytes held for the live map.
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

  std::atomic<const Window*> newest_window_ = nullptr;
};

}  // namespace poolgrad
