// The free blocks of a tiling, and the pages behind it. An arena knows geometry only: coalescing, searching, where to
// grow and what to give back. It never talks to the device about memory behind addresses, holds no lock and
// keeps no statistics: the pool does that around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/heap/bucket_index.h"
#include "allocator/heap/tiling.h"

namespace poolgrad {

/// A function that throws, for want of memory, has changed nothing.
class Arena : public Tiling {
 public:
  /// Blocks are multiples of `granule`; memory comes in multiples of `page`, both powers of two, and goes in the same
  /// or, where it is not `divisible`, in the handles in which it came.
  Arena(BlockStore& store, std::size_t granule, std::size_t page, bool divisible)
      : Tiling(store, granule), page_(page), divisible_(divisible), holes_(page) {}

  /// Takes over a reserved address range, all of it uncommitted.
  void add_window(std::uintptr_t address, std::size_t bytes);

  /// Whether a block is large and fills its last page nearly: such blocks start at pages, and leave whole pages behind
  /// when they go.
  bool fills_pages(std::size_t size) const;
  /// At least `alignment`, and a page for blocks that fill their pages. A wish, not a condition.
  std::size_t preferred_alignment(std::size_t size, std::size_t alignment) const;
  /// Best fit among the free blocks of `stream`, cut to `size`; busy. nullptr if none fits.
  Block* take(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// Best fit among the free blocks of all other streams, whole, busy, still theirs. Those that `ready(block)` says can
  /// be had without waiting come first. nullptr if none fits.
  Block* take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream,
                                 const std::function<bool(const Block*)>& ready);
  /// The smallest run of free neighbours, whatever their streams, that holds `size` bytes; busy. Empty if there is
  /// none.
  std::vector<Block*> take_across_streams(std::size_t size, std::size_t alignment);
  /// The run of free neighbours of several streams with at least one whole handle that was given back longest ago;
  /// busy.
  std::vector<Block*> take_mixed_handles();
  /// Makes a busy block free for its stream, which take() or expect() have named before, and coalesces it with its
  /// neighbours; the free block that it is part of then.
  Block* put(Block* block) noexcept;
  /// Blocks of the stream may be put here.
  void expect(std::uint64_t stream) { index(stream); }
  /// Cuts a busy block to `size` at `alignment`; what is left over becomes free for its stream.
  Block* carve(Block* block, std::size_t size, std::size_t alignment);
  /// Bytes by which a live block could grow at its end.
  static std::size_t free_after(const Block* block) noexcept;
  /// Makes a live block one of `size` bytes, with room from its free neighbour or giving the rest to its stream.
  void resize(Block* block, std::size_t size);

  /// Where `size` bytes at `alignment` for `stream` cost the fewest new pages.
  struct Growth {
    Block* hole = nullptr;   // uncommitted; nullptr if no hole is large enough
    std::size_t offset = 0;  // into the hole, of the pages to commit
    std::size_t bytes = 0;   // to commit there
  };
  /// The pages end at a multiple of `step` where the hole allows it.
  Growth plan_growth(std::size_t size, std::size_t alignment, std::uint64_t stream, std::size_t step) const;
  /// Cuts the planned pages off their hole; busy, and no longer part of any hole.
  Block* begin_growth(const Growth& growth, std::uint64_t stream);
  /// There is no memory behind the block any more, or yet: it is a hole.
  void uncommit(Block* block) noexcept;

  /// The free block with at least one whole handle that was given back longest ago; nullptr if there is none.
  Block* least_recently_used() const;
  /// Cuts whole handles of `bytes` or, if that is not possible, a little more out of a free block, from its upper end;
  /// busy.
  Block* take_handles(Block* block, std::size_t bytes);
  /// Cuts whole handles of at most `bytes` out of a free block, but for the neighbours of `hole`: those with the most
  /// bytes for a call to the device, of equals those given back longest ago; busy. nullptr if there are none.
  Block* take_movable_handles(std::size_t bytes, const Block* hole);

  std::size_t free_bytes() const;
  std::size_t free_bytes(std::uint64_t stream) const;
  /// Free bytes in whole handles, whatever their streams: what a release could return; or at least `enough`.
  std::size_t releasable_bytes(std::size_t enough = SIZE_MAX) const;
  std::size_t largest_free() const;

  /// What the arena takes of the program's heap.
  std::size_t bookkeeping_bytes() const noexcept;

  /// Blocks that are not free but share handles with free bytes, with their shares of these bytes.
  std::vector<std::pair<LiveBlock, std::size_t>> pinners() const;

  /// Everything that is of stream `from`, free or not, is of stream `to`, which was expected.
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept;
  bool knows_stream(std::uint64_t stream) const;
  /// How often a block became free or stopped being free.
  std::uint64_t changes() const { return changes_; }

 private:
  struct StreamIndex {
    std::uint64_t stream;
    std::unique_ptr<BucketIndex> free;
  };

  BucketIndex& index(std::uint64_t stream) {
    return latest_index_ != nullptr && latest_stream_ == stream ? *latest_index_ : find_or_make_index(stream);
  }
  BucketIndex& find_or_make_index(std::uint64_t stream);
  const BucketIndex* find_index(std::uint64_t stream) const;
  void remove_free(Block* block) {
    ++changes_;
    index(block->stream).remove(block);
  }
  /// Best fit, or close to it where the alignment is above the granule.
  static Block* find(const BucketIndex& free, std::size_t size, std::size_t alignment, std::size_t granule);
  /// Bytes of whole handles from the start of `first` to the end of `last`, all committed.
  static std::size_t whole_handles(const Block* first, const Block* last);
  static std::size_t whole_handles(const Block* block) { return whole_handles(block, block); }
  /// Cuts [begin, end) out of a free block; busy.
  Block* cut_out(Block* block, std::uintptr_t begin, std::uintptr_t end);
  /// Calls visit(first, last) for each longest run of free neighbours.
  template <class Visit>
  void for_each_free_run(Visit visit) const {
    for (const auto& window : windows_) {
      Block* first = nullptr;
      for (Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state != BlockState::free) continue;
        if (block->previous == nullptr || block->previous->state != BlockState::free) first = block;
        if (block->next == nullptr || block->next->state != BlockState::free) visit(first, block);
      }
    }
  }
  /// Makes the free blocks from `first` to `last` busy; none if `first` is nullptr.
  std::vector<Block*> take_run(Block* first, Block* last);
  std::size_t page_;
  bool divisible_;
  std::uint64_t changes_ = 0;
  std::vector<StreamIndex> indices_;
  std::uint64_t latest_stream_ = 0;  // whose index was asked for last
  BucketIndex* latest_index_ = nullptr;
  BucketIndex holes_;
};

}  // namespace poolgrad
