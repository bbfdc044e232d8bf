// Segments of memory, tiled by blocks. A free block is in the list numbered `stream`; free neighbors merge if their
// `stream` and their `number` are equal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/heap/bucket_index.h"
#include "allocator/heap/first_fit_index.h"

namespace poolgrad {

/// `Index` searches a list: BucketIndex for the best fit by (size, address), FirstFitIndex for the lowest address.
template <class Index>
class BasicChunkHeap {
 public:
  /// All sizes are multiples of `granule`, a power of two.
  explicit BasicChunkHeap(std::size_t granule) : granule_(granule) {}

  /// Adds a segment: one live block without neighbors.
  Block* add(std::uintptr_t address, std::size_t size, std::uint64_t list) {
    Block* block = store_.make();
    block->address = address;
    block->size = size;
    block->stream = list;
    block->state = BlockState::live;
    return block;
  }

  /// Removes a block. The rest of its segment is no longer contiguous.
  void remove(Block* block) {
    if (block->state == BlockState::free) take(block);
    if (block->previous != nullptr) block->previous->next = block->next;
    if (block->next != nullptr) block->next->previous = block->previous;
    store_.recycle(block);
  }

  /// A block of the list that fits; nullptr if there is none.
  Block* find(std::uint64_t list, std::size_t size) const {
    const Index* free = index(list);
    return free != nullptr ? free->find(size) : nullptr;
  }

  /// Allocates a free block.
  void take(Block* block) {
    lists_[block->stream]->remove(block);
    block->state = BlockState::live;
  }

  /// find() and take().
  Block* take_fit(std::uint64_t list, std::size_t size) {
    Block* block = find(list, size);
    if (block != nullptr) take(block);
    return block;
  }

  /// Splits a live block in two, and returns the rest.
  Block* split(Block* block, std::size_t size) {
    Block* rest = add(block->address + size, block->size - size, block->stream);
    rest->number = block->number;
    rest->epoch = block->epoch;
    block->link_rest(rest, size);
    return rest;
  }

  /// Keeps `size` of a live block and frees the rest, if any.
  void trim(Block* block, std::size_t size) {
    if (block->size != size) put(split(block, size));
  }

  /// Frees a live block; returns the merged block.
  Block* put(Block* block) {
    Block* next = merges(block, block->next) ? block->next : nullptr;
    Block* previous = merges(block, block->previous) ? block->previous : nullptr;
    if (previous != nullptr && next != nullptr) {
      take(next);
      absorb_next(block);
    }
    if (Block* neighbour = previous != nullptr ? previous : next) {
      enlarge(list(block->stream), neighbour, std::min(neighbour->address, block->address),
              neighbour->size + block->size);
      neighbour->epoch = std::max(neighbour->epoch, block->epoch);
      remove(block);
      return neighbour;
    }
    block->state = BlockState::free;
    list(block->stream).insert(block);
    return block;
  }

  /// Puts a free block into another list, where it merges with its neighbors of that `number`.
  void move(Block* block, std::uint64_t list, std::uint64_t number) {
    take(block);
    block->stream = list;
    block->number = number;
    put(block);
  }

  /// Merges a block with its next neighbor; neither may be in a list.
  void absorb_next(Block* block) { store_.recycle(block->absorb_next()); }

  std::uint64_t lists() const { return lists_.size(); }
  /// nullptr if the list never had a block.
  const Index* index(std::uint64_t list) const { return list < lists_.size() ? lists_[list].get() : nullptr; }

  /// The free blocks of a list by address; a copy, so that the caller can take and merge them.
  std::vector<Block*> blocks(std::uint64_t list) const {
    std::vector<Block*> found;
    if (const Index* free = index(list)) free->for_each_from(0, [&](Block* block) { found.push_back(block); });
    std::ranges::sort(found, {}, &Block::address);
    return found;
  }

  /// The same, of the blocks that are whole segments.
  std::vector<Block*> whole_segments(std::uint64_t list) const {
    std::vector<Block*> found = blocks(list);
    std::erase_if(found, [](const Block* block) { return block->previous != nullptr || block->next != nullptr; });
    return found;
  }

 private:
  static bool merges(const Block* block, const Block* neighbour) {
    return neighbour != nullptr && neighbour->state == BlockState::free && neighbour->stream == block->stream &&
           neighbour->number == block->number;
  }

  // Extends a free block by adjacent memory.
  static void enlarge(Index& index, Block* block, std::uintptr_t address, std::size_t size) {
    if constexpr (requires { index.enlarge(block, address, size); }) {
      index.enlarge(block, address, size);
    } else {
      index.remove(block);
      block->address = address;
      block->size = size;
      index.insert(block);
    }
  }

  Index& list(std::uint64_t index) {
    if (index >= lists_.size()) lists_.resize(index + 1);
    if (lists_[index] == nullptr) lists_[index] = std::make_unique<Index>(granule_);
    return *lists_[index];
  }

  std::size_t granule_;
  std::vector<std::unique_ptr<Index>> lists_;
  BlockStore store_;
};

using ChunkHeap = BasicChunkHeap<BucketIndex>;
using FirstFitHeap = BasicChunkHeap<FirstFitIndex>;

}  // namespace poolgrad
