// One contiguous range of a pool's addresses. Blocks tile each address window without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "allocator/memory_scope.h"
#include "allocator/relaxed.h"
#include "allocator/snapshot.h"

namespace poolgrad {

struct Window;

// What allocating and freeing through a magazine touches comes first and fills one cache line.
struct alignas(64) Block {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  // Whose queued work may still use the memory. Hot paths look at it while the stream of others' blocks is renamed.
  Relaxed<std::uint64_t> stream = 0;
  std::uint64_t number = 0;  // allocations are counted from 1; see Pool::publish for scratch of kernels
  std::size_t requested = 0;
  Tag tag;
  // Children in the tree of a bucket, while free; `left` is the next block while in a magazine.
  Block* left = nullptr;
  Relaxed<BlockState> state = BlockState::busy;  // neighbours look at it
  bool used_elsewhere = false;                   // by other streams too, see Pool::use

  Block* right = nullptr;
  // Neighbours by address in the same window; never two free blocks of one stream, never two uncommitted ones.
  Block* previous = nullptr;
  Block* next = nullptr;
  Window* window = nullptr;
  std::uint64_t epoch = 0;   // allocation tick at which it was last given back
  std::uint64_t ticket = 0;  // of `stream` when it was last given back, see StreamOrder

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

/// Owns Block objects and reuses them, so that splitting costs no malloc in the steady state.
class BlockStore {
 public:
  /// The next `count` calls of make() need no memory.
  void reserve(std::size_t count) {
    while (spares_ < count) recycle(&blocks_.emplace_back());
  }

  Block* make() {
    reserve(1);
    Block* block = spare_;
    spare_ = block->next;
    --spares_;
    *block = Block{};
    return block;
  }

  void recycle(Block* block) noexcept {
    block->next = spare_;
    spare_ = block;
    ++spares_;
  }

 private:
  std::deque<Block> blocks_;
  Block* spare_ = nullptr;
  std::size_t spares_ = 0;
};

}  // namespace poolgrad
