// The free blocks of a tiling, and its pages. An arena handles only geometry: coalescing, searching, choosing pages to
// commit and to release. It makes no device calls, takes no locks and keeps no statistics: the pool does.
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

/// A few streams. As `without`: skips their free blocks, as if they were in use.
using Streams = std::vector<std::uint64_t>;
inline bool contains(const Streams& streams, std::uint64_t stream) {
  return std::ranges::find(streams, stream) != streams.end();
}

/// A function that throws for lack of memory has changed nothing.
class Arena : public Tiling {
 public:
  /// Block sizes are multiples of `granule`. Memory is committed in multiples of `page`, and released in the same, or,
  /// if not `divisible`, in the committed handles. Both are powers of two.
  Arena(BlockStore& store, std::size_t granule, std::size_t page, bool divisible)
      : Tiling(store, granule), page_(page), divisible_(divisible) {}

  /// Adds a reserved address range, all of it uncommitted.
  void add_window(std::uintptr_t address, std::size_t bytes);
  /// Removes a window without committed memory; returns its address and bytes. None if there is no such window.
  std::optional<std::pair<std::uintptr_t, std::size_t>> remove_empty_window();

  /// Whether a block is large and nearly fills its last page: such blocks start at a page, so that a free leaves whole
  /// pages.
  bool fills_pages(std::size_t size) const;
  /// At least `alignment`, and a page for blocks that fill their pages. A preference, not a requirement. If growth is
  /// ignored, there is none: whether a last block has room from a page on depends on its size.
  std::size_t preferred_alignment(std::size_t size, std::size_t alignment) const;
  /// If `ignored`, the last free block of a window is taken after all others, so that earlier growth does not affect
  /// addresses.
  void ignore_growth(bool ignored) { last_comes_last_ = ignored; }
  /// Best fit among the free blocks of `stream`, cut to `size`; busy. nullptr if none fits.
  Block* take(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// Takes the best fit among the free blocks of all other streams, whole; busy, and still of its stream. Prefers
  /// blocks for which `ready(block)` says that there is no wait. nullptr if none fits.
  Block* take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream,
                                 const std::function<bool(const Block*)>& ready, const Streams& without = {});
  /// The smallest run of free neighbors of any streams that holds `size` bytes; busy. Empty if there is none.
  std::vector<Block*> take_across_streams(std::size_t size, std::size_t alignment, const Streams& without = {});
  /// The oldest run of free neighbors of several streams with at least one whole handle; busy.
  std::vector<Block*> take_mixed_handles(const Streams& without = {});
  /// Frees a busy block for its stream, which an earlier take() or expect() must have named, and coalesces it with its
  /// neighbors. Returns the resulting free block.
  Block* put(Block* block) noexcept;
  /// Prepares for put() of blocks of the stream.
  void expect(std::uint64_t stream) { index(stream); }
  /// Cuts a busy block to `size` at `alignment`; the rest becomes free for its stream.
  Block* carve(Block* block, std::size_t size, std::size_t alignment);
  /// Bytes by which a live block could grow at its end.
  static std::size_t free_after(const Block* block) noexcept;
  /// Resizes a live block to `size` bytes, with room from its free neighbor. Returns the busy rest, if any.
  Block* resize(Block* block, std::size_t size);

  /// The growth for `size` bytes at `alignment` for `stream` with the fewest new pages.
  struct Growth {
    Block* hole = nullptr;   // uncommitted; nullptr if no hole is large enough
    std::size_t offset = 0;  // in the hole, of the pages to commit
    std::size_t bytes = 0;   // to commit there
  };
  /// The pages end at a multiple of `step` if the hole allows it.
  Growth plan_growth(std::size_t size, std::size_t alignment, std::uint64_t stream, std::size_t step) const;
  /// Cuts the planned pages off their hole, as a busy block.
  Block* begin_growth(const Growth& growth, std::uint64_t stream);
  /// Turns a block without memory into a hole.
  void uncommit(Block* block) noexcept;

  /// Calls visit(Block*) for the free blocks that may contain a whole handle, in unspecified order.
  template <class Visit>
  void for_each_free_page_run(Visit visit, const Streams& without = {}) const {
    for (const StreamIndex& entry : indices_) {
      if (!contains(without, entry.stream)) entry.free->by_size.for_each_from(page_, visit);
    }
  }
  /// Takes adjacent whole handles of a free block that were freed before the tick `limit`, by PageAges; busy. If there
  /// are none, returns nullptr and lowers `oldest` to a bound on the age of the others.
  Block* take_old_handles(std::uint64_t limit, std::uint64_t& oldest, const Streams& without = {});
  /// Cuts whole handles of `bytes`, or a little more if necessary, from the upper end of a free block; busy.
  Block* take_handles(Block* block, std::size_t bytes);
  /// Cuts whole handles of at most `bytes` out of a free block that is not a neighbor of `hole`; busy. Prefers the most
  /// bytes per device call, then the oldest free. nullptr if there are none.
  Block* take_movable_handles(std::size_t bytes, const Block* hole, const Streams& without = {});

  std::size_t free_bytes() const;
  std::size_t free_bytes(std::uint64_t stream) const;
  /// Free bytes in whole handles of all streams, the bytes that a release could return; or at least `enough`.
  std::size_t releasable_bytes(std::size_t enough = SIZE_MAX) const;
  /// The size of the largest free block of one stream, or of all.
  std::size_t largest_free(std::optional<std::uint64_t> stream = std::nullopt) const;

  /// Heap memory of the arena's bookkeeping.
  std::size_t bookkeeping_bytes() const noexcept;

  /// Blocks that are not free but share handles with free bytes, with their shares of these bytes.
  std::vector<std::pair<const Block*, std::size_t>> pinners() const;

  /// Renames a stream in all blocks, free or not; `to` was passed to expect().
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept;
  bool knows_stream(std::uint64_t stream) const;
  /// Number of times that a block became free or stopped being free.
  std::uint64_t changes() const { return changes_; }

 private:
  struct FreeBlocks {
    explicit FreeBlocks(std::size_t granule) : by_size(granule) {}
    BucketIndex by_size;
    HandleIndex by_handles;  // all of at least a page
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
  /// Counts a free block's whole handles. Treats divisible memory as one handle, because it moves at once.
  void count_whole_handles(Block* block) const;
  /// Cuts [begin, end) out of a free block; busy.
  Block* cut_out(Block* block, std::uintptr_t begin, std::uintptr_t end);
  /// Whether free blocks may be neighbors, which requires two streams.
  bool several_streams_have_free_blocks() const;
  /// Calls visit(first, last) for each maximal run of free neighbors.
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
  /// Takes the run with the least cost(first, last) below UINT64_MAX, as busy blocks; none if there is none.
  template <class Cost>
  std::vector<Block*> take_cheapest_run(Cost cost, const Streams& without);

  std::size_t page_;
  bool divisible_;
  bool last_comes_last_ = false;
  std::uint64_t changes_ = 0;
  std::vector<StreamIndex> indices_;
  std::uint64_t latest_stream_ = 0;  // the last requested index
  FreeBlocks* latest_index_ = nullptr;
  FirstFitIndex holes_{granule_};
};

/// All blocks of a pool: two arenas, so that long-lived blocks do not pin the pages of transient ones, and the Block
/// objects of both. Guarded by the pool's mutex unless noted.
class Arenas {
 public:
  Arenas(std::size_t granule, std::size_t page, bool divisible)
      : both_{Arena(store_, granule, page, divisible), Arena(store_, granule, page, divisible)} {}

  Arena& of(Tag tag) { return both_[is_long_lived(tag.category) ? 1 : 0]; }
  const Arena& of(Tag tag) const { return both_[is_long_lived(tag.category) ? 1 : 0]; }
  Arena& other_than(Tag tag) { return both_[is_long_lived(tag.category) ? 0 : 1]; }
  /// The arena of the block.
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
  /// The live block that starts there; nullptr if there is none. Needs no lock for a block owned by the caller.
  Block* live(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    Block* block = both_[0].live(address);
    if (block == nullptr) block = both_[1].live(address);
    return block != nullptr && block->state == BlockState::live ? block : nullptr;
  }
  /// Frees unused memory of the bookkeeping. Requires all threads stopped.
  void tidy() noexcept;

  /// Prepares both arenas for put() of blocks of the stream.
  void expect(std::uint64_t stream);
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept;
  bool knows_stream(std::uint64_t stream) const;
  /// Number of times that a block became free or stopped being free.
  std::uint64_t changes() const { return both_[0].changes() + both_[1].changes(); }

  std::size_t free_bytes() const { return both_[0].free_bytes() + both_[1].free_bytes(); }
  /// Free bytes of all other streams.
  std::size_t free_elsewhere(std::uint64_t stream) const;
  /// Free bytes in whole handles, the bytes that a release could return; or at least `enough`.
  std::size_t releasable_bytes(std::size_t enough = SIZE_MAX) const;
  /// All bookkeeping bytes.
  std::size_t bookkeeping_bytes() const;

 private:
  BlockStore store_;
  std::array<Arena, 2> both_;  // transients; long-lived
};

}  // namespace poolgrad
