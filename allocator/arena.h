// Address windows of one device, tiled by blocks. An arena knows geometry only: splitting, coalescing, searching,
// where to grow and what to give back. It never talks to the device about memory behind addresses, holds no lock and
// keeps no statistics: the pool does that around it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "allocator/block.h"
#include "allocator/bucket_index.h"
#include "allocator/live_map.h"

namespace poolgrad {

/// One reserved address range.
struct Window {
  std::uintptr_t address;
  std::size_t size;
  Block* first;
  LiveMap live;
  const Window* older = nullptr;  // of the same arena
};

class Arena {
 public:
  /// Blocks are multiples of `granule`; memory comes and goes in multiples of `page`. Both are powers of two.
  Arena(BlockStore& store, std::size_t granule, std::size_t page) : store_(store), granule_(granule), page_(page) {}

  /// Takes over a reserved address range, all of it uncommitted.
  void add_window(std::uintptr_t address, std::size_t bytes);
  const std::vector<std::unique_ptr<Window>>& windows() const { return windows_; }

  /// Best fit among the free blocks of `stream`, cut to `size`; busy. nullptr if none fits.
  Block* take(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// The same among the free blocks of all other streams. The block keeps its stream.
  Block* take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// The smallest run of free neighbours, whatever their streams, that holds `size` bytes; busy. Empty if there is
  /// none.
  std::vector<Block*> take_across_streams(std::size_t size);
  /// The run of free neighbours of several streams with at least one whole page that was given back longest ago; busy.
  std::vector<Block*> take_mixed_pages();
  /// Joins busy neighbours, in address order, into one block.
  Block* join(const std::vector<Block*>& blocks);
  /// Makes a busy block free for its stream and coalesces it with its neighbours.
  void put(Block* block);
  /// Cuts a busy block to `size` at `alignment`; what is left over becomes free for its stream.
  Block* carve(Block* block, std::size_t size, std::size_t alignment);

  /// Where `size` bytes for `stream` cost the fewest new pages.
  struct Growth {
    Block* hole = nullptr;  // uncommitted; nullptr if no hole is large enough
    std::size_t bytes = 0;  // to commit at the hole's start
  };
  /// The pages end at a multiple of `step` where the hole allows it.
  Growth plan_growth(std::size_t size, std::uint64_t stream, std::size_t step) const;
  /// Cuts the planned pages off their hole; busy, and no longer part of any hole.
  Block* begin_growth(const Growth& growth, std::uint64_t stream);
  /// The pages could not be had: they are a hole again.
  void uncommit(Block* block);

  /// The free block with at least one whole page that was given back longest ago; nullptr if there is none.
  Block* least_recently_used() const;
  /// Cuts up to `bytes` (rounded up to pages) of whole pages out of a free block, from its upper end; busy.
  Block* take_pages(Block* block, std::size_t bytes);

  static void mark_live(Block* block) {
    block->window->live.set(block->address - block->window->address, block);
    block->state = BlockState::live;
  }
  static void clear_live(Block* block) noexcept { block->window->live.clear(block->address - block->window->address); }
  /// The live block that starts at `address`; nullptr if there is none. The only function that needs no lock: windows
  /// stay as long as the arena, and whoever asks about a block of his own sees it in the map.
  Block* live(std::uintptr_t address) const noexcept;
  /// The block of any state that contains `address`; nullptr outside every window. Slow.
  const Block* containing(std::uintptr_t address) const;
  bool owns(std::uintptr_t address) const noexcept { return window_of(address) != nullptr; }

  std::size_t free_bytes() const;
  std::size_t free_bytes(std::uint64_t stream) const;
  /// Free bytes in whole pages, whatever their streams: what a release could return.
  std::size_t releasable_bytes() const;
  std::size_t largest_free() const;

 private:
  struct StreamIndex {
    std::uint64_t stream;
    std::unique_ptr<BucketIndex> free;
  };
  struct ByAddress {
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
  };

  BucketIndex& index(std::uint64_t stream);
  const BucketIndex* find_index(std::uint64_t stream) const;
  const Window* window_of(std::uintptr_t address) const noexcept;
  void remove_free(Block* block) { index(block->stream).remove(block); }
  /// Bytes of whole pages inside [begin, end).
  std::size_t whole_pages(std::uintptr_t begin, std::uintptr_t end) const;
  std::size_t whole_pages(const Block* block) const { return whole_pages(block->address, block->end()); }
  /// Calls visit(first, last) for each longest run of free neighbours.
  template <class Visit>
  void for_each_free_run(Visit visit) const;
  /// Makes the free blocks from `first` to `last` busy; none if `first` is nullptr.
  std::vector<Block*> take_run(Block* first, Block* last);
  /// Cuts `block` after `size` bytes and returns the rest, which has its stream, epoch and state.
  Block* split(Block* block, std::size_t size);
  /// Adds the right neighbour's bytes to `block` and forgets the neighbour.
  void absorb_next(Block* block);

  BlockStore& store_;
  std::size_t granule_;
  std::size_t page_;
  std::vector<std::unique_ptr<Window>> windows_;
  std::atomic<const Window*> newest_window_ = nullptr;
  std::vector<StreamIndex> indices_;
  std::set<Block*, ByAddress> holes_;
};

}  // namespace poolgrad
