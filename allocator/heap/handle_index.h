// The free blocks of one stream, found by what moving their handles of physical memory is worth: the bytes that a call
// to the device moves. Nothing is counted or sorted before somebody asks, which most pools never do.
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
  /// Calls count(Block*) for the blocks that are new, which notes their whole handles.
  template <class Count>
  void update(Count count) {
    while (fresh_ != nullptr) {
      Block* block = fresh_;
      fresh_ = block->worse;
      count(block);
      if (block->whole_handles.count != 0) tree_insert<&Block::better, &Block::worse>(&tree_, block, before);
    }
  }
  /// Calls visit(Block*) for those that had whole handles at the last update, the best first, until it returns false.
  template <class Visit>
  void for_each_best_first(Visit visit) const {
    walk(tree_, visit);
  }

  /// Whether all handles of `a` together move more bytes with a call than those of `b`; of equals the block that was
  /// given back first does, then the smallest, then the lowest.
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
  Block* fresh_ = nullptr;  // a list from `worse` to `worse`, back by `better`
};

}  // namespace poolgrad
