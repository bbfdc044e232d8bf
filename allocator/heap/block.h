// One contiguous range of a pool's addresses, what owns such blocks, and trees of them. Blocks tile each address window
// without gaps.
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
class PackedBlocks;

/// Handles of physical memory that lie in a block as a whole.
struct WholeHandles {
  static constexpr std::uint32_t unknown = UINT32_MAX;
  std::uint32_t count;
  std::uint32_t most_pages;  // of one
};

// What allocating and freeing through a magazine touches comes first and fills one cache line.
struct alignas(64) Block {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  // Whose queued work may still use the memory. Hot paths look at it while the stream of others' blocks is renamed.
  Relaxed<std::uint64_t> stream = 0;
  // Of a live block, and of a free one in the place of it.
  union {
    std::uint64_t number = 0;    // allocations are counted from 1; see RequestSequence for scratch of kernels
    WholeHandles whole_handles;  // see HandleIndex
  };
  union {
    std::size_t requested = 0;
    std::size_t whole_bytes;  // in these handles
  };
  union {
    Tag tag{};
    Block* better;  // a child in a HandleIndex
  };
  // Children in a tree: of a bucket, while free, or of those that stand for packed blocks of one region. `left` is the
  // next block while in a magazine.
  Block* left = nullptr;
  Relaxed<BlockState> state = BlockState::busy;  // neighbours look at it
  bool used_elsewhere = false;                   // by other streams too, see StreamLedger

  Block* right = nullptr;
  // Neighbours by address in the same window; never two free blocks of one stream, never two uncommitted ones.
  Block* previous = nullptr;
  Block* next = nullptr;
  Window* window = nullptr;
  std::uint64_t epoch = 0;   // allocation tick at which it was last given back
  std::uint64_t ticket = 0;  // of `stream` when it was last given back, see StreamOrder
  union {
    PackedBlocks* packed = nullptr;  // has the live blocks, next to each other, of any streams, that this stands for
    Block* worse;                    // of a free block
  };
  BlockChunk* chunk = nullptr;  // where it lies; see BlockStore

  std::uintptr_t end() const { return address + size; }

  /// Puts `rest` behind this block, which keeps its first `bytes`.
  void link_rest(Block* rest, std::size_t bytes) {
    rest->previous = this;
    rest->next = next;
    if (next != nullptr) next->previous = rest;
    next = rest;
    size = bytes;
  }
  /// Adds the next block's bytes and takes it out of the order; returns it.
  Block* absorb_next() {
    Block* gone = next;
    size += gone->size;
    epoch = epoch > gone->epoch ? epoch : gone->epoch;
    next = gone->next;
    if (next != nullptr) next->previous = this;
    return gone;
  }
};

/// Memory for blocks comes in chunks.
struct BlockChunk {
  static constexpr std::size_t size = 32;
  std::array<Block, size> blocks;
  Block* spare = nullptr;
  std::size_t spares = 0;
  BlockChunk* next = nullptr;  // with spare blocks
  bool lasting = false;        // made for blocks that stay, during this pass
};

/// Owns Block objects and reuses them, so that splitting costs no malloc in the steady state. Those of one chunk are
/// handed out before those of the next, so that chunks become empty.
class BlockStore {
 public:
  /// So many are left by whoever can live without memory for more, for those who cannot: see make_last().
  static constexpr std::size_t kept = 2;

  /// The next `count` calls of make() need no memory.
  void reserve(std::size_t count) {
    while (spares_ < count + kept) add_chunk();
  }
  /// The next `count` calls of make() need no memory and give blocks that lie together, in chunks where nothing else
  /// was: those that will stay. Until trim().
  void reserve_together(std::size_t count) {
    std::size_t together = 0;
    for (const BlockChunk* chunk = first_; chunk != nullptr && chunk->lasting; chunk = chunk->next)
      together += chunk->spares;
    for (; together < count; together += BlockChunk::size) {
      BlockChunk* chunk = make_chunk();
      chunk->lasting = true;
      chunk->next = std::exchange(first_, chunk);
      if (chunk->next == nullptr) last_ = chunk;
    }
  }
  Block* make() {
    reserve(1);
    return make_last();
  }
  /// Needs no memory; there must be spare blocks.
  Block* make_last() noexcept {
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

  std::size_t spares() const noexcept { return spares_; }
  /// Bytes held.
  std::size_t bytes() const noexcept {
    return chunks_.size() * sizeof(BlockChunk) + chunks_.capacity() * sizeof(chunks_[0]);
  }
  /// Whether few of the blocks beside it are in use.
  static bool is_lonely(const Block* block) noexcept { return block->chunk->spares >= BlockChunk::size / 2; }
  /// Gives back the memory of chunks that nothing is in, but for one.
  void trim() noexcept {
    BlockChunk* chunk = std::exchange(first_, nullptr);
    std::size_t left = spares_;
    while (chunk != nullptr) {
      BlockChunk* next = chunk->next;
      chunk->lasting = false;
      if (chunk->spares < BlockChunk::size || left < BlockChunk::size + kept) {
        append(chunk);
      } else {
        left -= BlockChunk::size;
        chunk->blocks[0].chunk = nullptr;  // to be erased
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
  void add_chunk() { append(make_chunk()); }
  BlockChunk* make_chunk() {
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
    return chunk;
  }

  // A temporary in its place would be made on the stack each time, which takes longer than all else.
  const Block blank_{};
  std::vector<std::unique_ptr<BlockChunk>> chunks_;
  // Those with spare blocks, in a row.
  BlockChunk* first_ = nullptr;
  BlockChunk* last_ = nullptr;
  std::size_t spares_ = 0;
};

// A treap of blocks (Seidel and Aragon 1996), linked by two members: a search tree in the order of before(a, b)
// that is also a heap by a hash of the address, which keeps it balanced in expectation without stored balance data.

inline std::uint64_t tree_priority(const Block* block) {
  const std::uint64_t mixed = block->address * 0x9E3779B97F4A7C15u;
  return mixed ^ (mixed >> 32);
}

template <Block* Block::*Left = &Block::left, Block* Block::*Right = &Block::right, class Before>
void tree_insert(Block** link, Block* block, Before before) {
  while (*link != nullptr && tree_priority(*link) >= tree_priority(block)) {
    link = before(block, *link) ? &((*link)->*Left) : &((*link)->*Right);
  }
  // What hangs here has lower priority: it is split into the parts before and after the block.
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
