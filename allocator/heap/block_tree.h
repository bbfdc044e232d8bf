// A treap of blocks (Seidel and Aragon 1996), linked by `left` and `right`: a search tree in the order of before(a, b)
// that is also a heap by a hash of the address, which keeps it balanced in expectation without stored balance data.
#pragma once

#include <cstdint>

#include "allocator/heap/block.h"

namespace poolgrad {

inline std::uint64_t tree_priority(const Block* block) {
  const std::uint64_t mixed = block->address * 0x9E3779B97F4A7C15u;
  return mixed ^ (mixed >> 32);
}

template <class Before>
void tree_insert(Block** link, Block* block, Before before) {
  while (*link != nullptr && tree_priority(*link) >= tree_priority(block)) {
    link = before(block, *link) ? &(*link)->left : &(*link)->right;
  }
  // What hangs here has lower priority: it is split into the parts before and after the block.
  Block* rest = *link;
  *link = block;
  Block** smaller = &block->left;
  Block** larger = &block->right;
  while (rest != nullptr) {
    if (before(rest, block)) {
      *smaller = rest;
      smaller = &rest->right;
      rest = rest->right;
    } else {
      *larger = rest;
      larger = &rest->left;
      rest = rest->left;
    }
  }
  *smaller = nullptr;
  *larger = nullptr;
}

template <class Before>
void tree_remove(Block** link, Block* block, Before before) {
  while (*link != block) link = before(block, *link) ? &(*link)->left : &(*link)->right;
  Block* smaller = block->left;
  Block* larger = block->right;
  while (smaller != nullptr && larger != nullptr) {
    if (tree_priority(smaller) >= tree_priority(larger)) {
      *link = smaller;
      link = &smaller->right;
      smaller = smaller->right;
    } else {
      *link = larger;
      link = &larger->left;
      larger = larger->left;
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
