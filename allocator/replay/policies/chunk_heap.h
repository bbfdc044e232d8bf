// Segments of memory, cut into blocks that tile them. A free block is in the list that its `stream` names; free
// neighbours merge if their `stream` and their `number` are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/heap/bucket_index.h"
#include "allocator/replay/policies/first_fit_index.h"

namespace poolgrad {

/// `Index` finds a free block of a list: BucketIndex the best fit by (size, address), FirstFitIndex the lowest address.
template <class Index>
class BasicChunkHeap {
 public:
  /// All sizes are multiples of `granule`, a power of two.
  explicit BasicChunkHeap(std::size_t granule) : granule_(granule) {}

  /// A new segment: one live block without neighbours.
  Block* add(std::uintptr_t address, std::size_t size, std::uint64_t list);
  /// Forgets a live block. What is left of its segment no longer tiles it.
  void remove(Block* block);

  /// A block of a list that fits; nullptr if there is none.
  Block* find(std::uint64_t list, std::size_t size) const;
  /// A free block becomes live.
  void take(Block* block);
  /// find() and take().
  Block* take_fit(std::uint64_t list, std::size_t size);
  /// Cuts a live block in two live ones, and returns the rest.
  Block* split(Block* block, std::size_t size);
  /// Keeps `size` of a live block; the rest, if any, becomes free.
  void trim(Block* block, std::size_t size);
  /// A live block becomes free; returns what it has merged into.
  Block* put(Block* block);
  /// Joins a block with its next neighbour, neither of them in a list.
  void absorb_next(Block* block);

  std::uint64_t lists() const { return lists_.size(); }
  /// nullptr if no block was ever in this list.
  const Index* index(std::uint64_t list) const { return list < lists_.size() ? lists_[list].get() : nullptr; }
  /// The free blocks of a list by address; a copy, so that they can be taken and merged on the way.
  std::vector<Block*> blocks(std::uint64_t list) const;
  /// Takes all free blocks that are whole segments, calls visit(address, size) for each, and forgets them.
  template <class Visit>
  void remove_whole_segments(Visit visit) {
    for (std::uint64_t list = 0; list < lists(); ++list) {
      for (Block* block : blocks(list)) {
        if (block->previous != nullptr || block->next != nullptr) continue;
        take(block);
        visit(block->address, block->size);
        remove(block);
      }
    }
  }

 private:
  Index& list(std::uint64_t index);

  std::size_t granule_;
  std::vector<std::unique_ptr<Index>> lists_;
  BlockStore store_;
};

using ChunkHeap = BasicChunkHeap<BucketIndex>;
using FirstFitHeap = BasicChunkHeap<FirstFitIndex>;

}  // namespace poolgrad
