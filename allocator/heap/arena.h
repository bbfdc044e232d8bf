// The free blocks of a tiling, and the pages behind it. An arena knows geometry only: coalescing, searching, where to
// grow and what to give back. It never talks to the device about memory behind addresses, holds no lock and
// keeps no statistics: the pool does that around it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/heap/bucket_index.h"
#include "allocator/heap/first_fit_index.h"
#include "allocator/heap/handle_index.h"
#include "allocator/heap/tiling.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

/// A few streams. As `without`: their free blocks are passed over, as if they were in use.
using Streams = std::vector<std::uint64_t>;
inline bool contains(const Streams& streams, std::uint64_t stream) {
  return std::ranges::find(streams, stream) != streams.end();
}

/// A function that throws, for want of memory, has changed nothing.
class Arena : public Tiling {
 public:
  /// Blocks are multiples of `granule`; memory comes in multiples of `page`, both powers of two, and goes in the same
  /// or, where it is not `divisible`, in the handles in which it came.
  Arena(BlockStore& store, std::size_t granule, std::size_t page, bool divisible)
      : Tiling(store, granule), page_(page), divisible_(divisible) {}

  /// Takes over a reserved address range, all of it uncommitted.
  void add_window(std::uintptr_t address, std::size_t bytes);
  /// Gives up an address range behind all of which there is no memory: where it started, and its bytes. Nothing if
  /// there is none.
  std::optional<std::pair<std::uintptr_t, std::size_t>> remove_empty_window();

  /// Whether a block is large and fills its last page nearly: such blocks start at pages, and leave whole pages behind
  /// when they go.
  bool fills_pages(std::size_t size) const;
  /// At least `alignment`, and a page for blocks that fill their pages. A wish, not a condition.
  std::size_t preferred_alignment(std::size_t size, std::size_t alignment) const;
  /// The last free block of a window counts as the largest of all from now on, whatever its size: then earlier growth
  /// has no influence on places.
  void ignore_growth(bool ignored) { last_is_largest_ = ignored; }
  /// Best fit among the free blocks of `stream`, cut to `size`; busy. nullptr if none fits.
  Block* take(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// Best fit among the free blocks of all other streams, whole, busy, still theirs. Those that `ready(block)` says can
  /// be had without waiting come first. nullptr if none fits.
  Block* take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream,
                                 const std::function<bool(const Block*)>& ready, const Streams& without = {});
  /// The smallest run of free neighbours, whatever their streams, that holds `size` bytes; busy. Empty if there is
  /// none.
  std::vector<Block*> take_across_streams(std::size_t size, std::size_t alignment, const Streams& without = {});
  /// The run of free neighbours of several streams with at least one whole handle that was given back longest ago;
  /// busy.
  std::vector<Block*> take_mixed_handles(const Streams& without = {});
  /// Makes a busy block free for its stream, which take() or expect() have named before, and coalesces it with its
  /// neighbours; the free block that it is part of then.
  Block* put(Block* block) noexcept;
  /// Blocks of the stream may be put here.
  void expect(std::uint64_t stream) { index(stream); }
  /// Cuts a busy block to `size` at `alignment`; what is left over becomes free for its stream.
  Block* carve(Block* block, std::size_t size, std::size_t alignment);
  /// Bytes by which a live block could grow at its end.
  static std::size_t free_after(const Block* block) noexcept;
  /// Makes a live block one of `size` bytes, with room from its free neighbour. What is cut off, if anything, is busy.
  Block* resize(Block* block, std::size_t size);

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

  /// Calls visit(Block*) for the free blocks that may have a whole handle, in no useful order.
  template <class Visit>
  void for_each_free_page_run(Visit visit, const Streams& without = {}) const {
    for (const StreamIndex& entry : indices_) {
      if (!contains(without, entry.stream)) entry.free->by_size.for_each_from(page_, visit);
    }
  }
  /// Whole handles, next to each other in a free block, that were given back before the tick `limit`, as far as
  /// PageAges knows; busy. nullptr if there are none: then `oldest` is at most when the oldest of the others were.
  Block* take_old_handles(std::uint64_t limit, std::uint64_t& oldest, const Streams& without = {});
  /// Cuts whole handles of `bytes` or, if that is not possible, a little more out of a free block, from its upper end;
  /// busy.
  Block* take_handles(Block* block, std::size_t bytes);
  /// Cuts whole handles of at most `bytes` out of a free block, but for the neighbours of `hole`: those with the most
  /// bytes for a call to the device, of equals those given back longest ago; busy. nullptr if there are none.
  Block* take_movable_handles(std::size_t bytes, const Block* hole, const Streams& without = {});

  std::size_t free_bytes() const;
  std::size_t free_bytes(std::uint64_t stream) const;
  /// Free bytes in whole handles, whatever their streams: what a release could return; or at least `enough`.
  std::size_t releasable_bytes(std::size_t enough = SIZE_MAX) const;
  /// The size of the largest free block of one stream, or of all.
  std::size_t largest_free(std::optional<std::uint64_t> stream = std::nullopt) const;

  /// What the arena takes of the program's heap.
  std::size_t bookkeeping_bytes() const noexcept;

  /// Blocks that are not free but share handles with free bytes, with their shares of these bytes.
  std::vector<std::pair<LiveBlock, std::size_t>> pinners() const;

  /// Everything that is of stream `from`, free or not, is of stream `to`, which was expected.
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept;
  bool knows_stream(std::uint64_t stream) const;
  /// How often a block became free or stopped being free.
  std::uint64_t changes() const { return changes_; }
  /// Makes the Blocks of free and of packed blocks anew that few others lie beside, so that the memory around them can
  /// go. Only while nobody knows one of them.
  void gather();

 private:
  struct FreeBlocks {
    explicit FreeBlocks(std::size_t granule) : by_size(granule) {}
    BucketIndex by_size;
    HandleIndex by_handles;  // all of a page or more
  };
  struct StreamIndex {
    std::uint64_t stream;
    std::unique_ptr<FreeBlocks> free;
  };

  FreeBlocks& index(std::uint64_t stream) {
    return latest_index_ != nullptr && latest_stream_ == stream ? *latest_index_ : find_or_make_index(stream);
  }
  FreeBlocks& find_or_make_index(std::uint64_t stream);
  void remove_free(Block* block) noexcept;
  /// Notes them in a free block. Divisible memory moves at once, as if it were one.
  void count_whole_handles(Block* block) const;
  /// Cuts [begin, end) out of a free block; busy.
  Block* cut_out(Block* block, std::uintptr_t begin, std::uintptr_t end);
  /// Whether free blocks may be neighbours, which those of one stream never are.
  bool several_streams_have_free_blocks() const;
  /// Calls visit(first, last) for each longest run of free neighbours.
  template <class Visit>
  void for_each_free_run(Visit visit, const Streams& without = {}) const {
    const auto is_free = [&](const Block* block) {
      return block != nullptr && block->state == BlockState::free && !contains(without, block->stream);
    };
    for (const auto& window : windows_) {
      Block* first = nullptr;
      for (Block* block = window->first; block != nullptr; block = block->next) {
        if (!is_free(block)) continue;
        if (!is_free(block->previous)) first = block;
        if (!is_free(block->next)) visit(first, block);
      }
    }
  }
  /// Makes the blocks of the run busy whose cost(first, last) is least, and below UINT64_MAX; none if there is none.
  template <class Cost>
  std::vector<Block*> take_cheapest_run(Cost cost, const Streams& without);

  std::size_t page_;
  bool divisible_;
  bool last_is_largest_ = false;
  std::uint64_t changes_ = 0;
  std::vector<StreamIndex> indices_;
  std::uint64_t latest_stream_ = 0;  // whose index was asked for last
  FreeBlocks* latest_index_ = nullptr;
  FirstFitIndex holes_{granule_};
};

/// Where the blocks of a pool lie: two arenas, so that what lives long does not pin the pages of what does not, and the
/// Block objects of both. Guarded by the pool's mutex but for what says otherwise.
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
  /// Packed blocks that came out so far, and in whose place there is none that was packed again.
  std::size_t unpacked_blocks() const { return unpacked_blocks_; }
  /// Packs the live blocks that may be. During a standstill.
  Tiling::Packed pack(const std::function<bool(const Block*)>& may_pack) noexcept;
  /// The same for the live block of this number at the address, if it is in the place of a packed one: see
  /// Tiling::pack_again().
  bool pack_again(std::uintptr_t address, std::uint64_t number,
                  const std::function<bool(const Block*)>& may_pack) noexcept;

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
