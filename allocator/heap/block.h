// A contiguous range of a pool's addresses, the owner of Block objects, and trees of blocks. Blocks tile each address
// window without gaps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/base/relaxed.h"
#include "allocator/memory_scope.h"
#include "allocator/report/snapshot.h"

namespace poolgrad {

struct Window;
struct BlockChunk;

/// The whole handles inside a block.
struct WholeHandles {
  static constexpr std::uint32_t unknown = UINT32_MAX;
  std::uint32_t count;
  std::uint32_t most_pages;  // of one
};

// The fields of the magazine path come first and fill one cache line.
struct alignas(64) Block {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  // The stream that may still use the memory. Hot paths read it during a rename of other blocks' stream.
  Relaxed<std::uint64_t> stream = 0;
  // For a live block, or a free one.
  union {
    std::uint64_t number = 0;    // allocations are counted from 1; see RequestSequence for scratch of kernels
    WholeHandles whole_handles;  // see HandleIndex
  };
  union {
    std::size_t requested = 0;
    std::size_t whole_bytes;  // in whole handles
  };
  union {
    Tag tag{};
    Block* better;  // a child in a HandleIndex
  };
  // Children in the tree of a bucket while free. `left` links the blocks of a magazine.
  Block* left = nullptr;
  Relaxed<BlockState> state = BlockState::busy;  // neighbors read it
  bool used_elsewhere = false;                   // also used by other streams, see StreamTracker

  Block* right = nullptr;
  // Neighbors by address in the same window; two neighbors are never both free blocks of one stream, nor both
  // uncommitted.
  Block* previous = nullptr;
  Block* next = nullptr;
  Window* window = nullptr;
  std::uint64_t epoch = 0;      // allocation tick of its last free
  std::uint64_t ticket = 0;     // of `stream` at its last free, see StreamOrder
  Block* worse = nullptr;       // the other child in a HandleIndex
  BlockChunk* chunk = nullptr;  // its owner; see BlockStore

  std::uintptr_t end() const { return address + size; }

  /// Inserts `rest` after this block, which keeps its first `bytes`.
  void link_rest(Block* rest, std::size_t bytes) {
    rest->previous = this;
    rest->next = next;
    if (next != nullptr) next->previous = rest;
    next = rest;
    size = bytes;
  }
  /// Absorbs the next block and unlinks it; returns it.
  Block* absorb_next() {
    Block* gone = next;
    size += gone->size;
    epoch = epoch > gone->epoch ? epoch : gone->epoch;
    next = gone->next;
    if (next != nullptr) next->previous = this;
    return gone;
  }
};

/// Blocks are allocated in chunks.
struct BlockChunk {
  static constexpr std::size_t size = 32;
  std::array<Block, size> blocks;
  Block* spare = nullptr;
  std::size_t spares = 0;
  BlockChunk* next = nullptr;  // with spare blocks
};

/// Owns Block objects and reuses them, so that splits need no malloc in the steady state. Hands out the blocks of one
/// chunk before the next, so that chunks become empty.
class BlockStore {
 public:
  /// The next `count` calls of make() need no memory.
  void reserve(std::size_t count) {
    while (spares_ < count) add_chunk();
  }
  Block* make() {
    reserve(1);
    BlockChunk* chunk = first_;
    Block* block = std::exchange(chunk->spare, chunk->spare->next);
    if (--chunk->spares == 0) first_ = chunk->next;
    --spares_;
    *block = blank_;
    block->chunk = chunk;
    return block;
  }
  void recycle(Block* block) noexcept {
    BlockChunk* chunk = block->chunk;
    block->next = std::exchange(chunk->spare, block);
    if (chunk->spares++ == 0) append(chunk);
    ++spares_;
  }

  /// Bytes held.
  std::size_t bytes() const noexcept {
    return chunks_.size() * sizeof(BlockChunk) + chunks_.capacity() * sizeof(chunks_[0]);
  }
  /// Frees empty chunks, except one.
  void trim() noexcept {
    BlockChunk* chunk = std::exchange(first_, nullptr);
    std::size_t left = spares_;
    while (chunk != nullptr) {
      BlockChunk* next = chunk->next;
      if (chunk->spares < BlockChunk::size || left < 2 * BlockChunk::size) {
        append(chunk);
      } else {
        left -= BlockChunk::size;
        chunk->blocks[0].chunk = nullptr;  // allow erase()
      }
      chunk = next;
    }
    spares_ = left;
    std::erase_if(chunks_, [](const auto& known) { return known->blocks[0].chunk == nullptr; });
    chunks_.shrink_to_fit();
  }

 private:
  void append(BlockChunk* chunk) noexcept {
    chunk->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = chunk;
    last_ = chunk;
  }
  void add_chunk() {
    auto made = std::make_unique<BlockChunk>();
    BlockChunk* chunk = made.get();
    chunks_.push_back(std::move(made));
    for (std::size_t i = BlockChunk::size; i-- > 0;) {
      Block& block = chunk->blocks[i];
      block.chunk = chunk;
      block.next = std::exchange(chunk->spare, &block);
    }
    chunk->spares = BlockChunk::size;
    spares_ += BlockChunk::size;
    append(chunk);
  }

  // A constant, because a temporary would be built on the stack each time, which dominates the cost.
  const Block blank_{};
  std::vector<std::unique_ptr<BlockChunk>> chunks_;
  // A list of chunks with spare blocks.
  BlockChunk* first_ = nullptr;
  BlockChunk* last_ = nullptr;
  std::size_t spares_ = 0;
};

// A treap of blocks (Seidel and Aragon 1996), linked by two members: a search tree in the order of before(a, b) that is
// also a heap by a hash of the address. Balanced in expectation, without stored balance data.

inline std::uint64_t tree_priority(const Block* block) {
  const std::uint64_t mixed = block->address * 0x9E3779B97F4A7C15u;
  return mixed ^ (mixed >> 32);
}

template <Block* Block::*Left = &Block::left, Block* Block::*Right = &Block::right, class Before>
void tree_insert(Block** link, Block* block, Before before) {
  while (*link != nullptr && tree_priority(*link) >= tree_priority(block)) {
    link = before(block, *link) ? &((*link)->*Left) : &((*link)->*Right);
  }
  // Splits the lower-priority subtree into the parts before and after the block.
  Block* rest = *link;
  *link = block;
  Block** smaller = &(block->*Left);
  Block** larger = &(block->*Right);
  while (rest != nullptr) {
    if (before(rest, block)) {
      *smaller = rest;
      smaller = &(rest->*Right);
      rest = rest->*Right;
    } else {
      *larger = rest;
      larger = &(rest->*Left);
      rest = rest->*Left;
    }
  }
  *smaller = nullptr;
  *larger = nullptr;
}

template <Block* Block::*Left = &Block::left, Block* Block::*Right = &Block::right, class Before>
void tree_remove(Block** link, Block* block, Before before) {
  while (*link != block) link = before(block, *link) ? &((*link)->*Left) : &((*link)->*Right);
  Block* smaller = block->*Left;
  Block* larger = block->*Right;
  while (smaller != nullptr && larger != nullptr) {
    if (tree_priority(smaller) >= tree_priority(larger)) {
      *link = smaller;
      link = &(smaller->*Right);
      smaller = smaller->*Right;
    } else {
      *link = larger;
      link = &(larger->*Left);
      larger = larger->*Left;
    }
  }
  *link = smaller != nullptr ? smaller : larger;
}

/// Calls visit(Block*) for all, in order.
template <class Visit>
void tree_walk(Block* tree, Visit& visit) {
  if (tree == nullptr) return;
  tree_walk(tree->left, visit);
  visit(tree);
  tree_walk(tree->right, visit);
}

}  // namespace poolgrad
