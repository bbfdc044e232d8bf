// The free blocks of one stream, ordered by the bytes that a device call for their handles would move. Counts and sorts
// only on demand, which most pools never need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/heap/block.h"

namespace poolgrad {

class HandleIndex {
 public:
  void insert(Block* block) noexcept {
    block->whole_handles.count = WholeHandles::unknown;
    block->better = nullptr;
    block->worse = fresh_;
    if (fresh_ != nullptr) fresh_->better = block;
    fresh_ = block;
  }
  void remove(Block* block) noexcept {
    if (block->whole_handles.count == WholeHandles::unknown) {
      (block->better != nullptr ? block->better->worse : fresh_) = block->worse;
      if (block->worse != nullptr) block->worse->better = block->better;
    } else if (block->whole_handles.count != 0) {
      tree_remove<&Block::better, &Block::worse>(&tree_, block, before);
    }
  }
  /// Calls count(Block*) for new blocks, to count their whole handles.
  template <class Count>
  void update(Count count) {
    while (fresh_ != nullptr) {
      Block* block = fresh_;
      fresh_ = block->worse;
      count(block);
      if (block->whole_handles.count != 0) tree_insert<&Block::better, &Block::worse>(&tree_, block, before);
    }
  }
  /// Calls visit(Block*) for the blocks with whole handles at the last update, best first, until it returns false.
  template <class Visit>
  void for_each_best_first(Visit visit) const {
    walk(tree_, visit);
  }

  /// Whether the handles of `a` move more bytes per call than those of `b`; ties: the block freed first, then the
  /// smallest, then the lowest.
  static bool before(const Block* a, const Block* b) {
    const std::size_t own = a->whole_bytes * b->whole_handles.count, others = b->whole_bytes * a->whole_handles.count;
    if (own != others) return own > others;
    if (a->epoch != b->epoch) return a->epoch < b->epoch;
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }

 private:
  template <class Visit>
  static bool walk(Block* tree, Visit& visit) {
    return tree == nullptr || (walk(tree->better, visit) && visit(tree) && walk(tree->worse, visit));
  }

  Block* tree_ = nullptr;
  Block* fresh_ = nullptr;  // a list linked by `worse`, back by `better`
};

}  // namespace poolgrad
