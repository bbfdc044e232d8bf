#include "allocator/bucket_index.h"

namespace poolgrad {

namespace {

// Each bucket is a treap (Seidel and Aragon 1996): a search tree by (size, address) that is also a heap by a hash of
// the address, which keeps it balanced in expectation without stored balance data.

bool before(const Block* a, const Block* b) { return a->size != b->size ? a->size < b->size : a->address < b->address; }

std::uint64_t priority(const Block* block) {
  const std::uint64_t mixed = block->address * 0x9E3779B97F4A7C15u;
  return mixed ^ (mixed >> 32);
}

void tree_insert(Block** link, Block* block) {
  while (*link != nullptr && priority(*link) >= priority(block)) {
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

void tree_remove(Block** link, Block* block) {
  while (*link != block) link = before(block, *link) ? &(*link)->left : &(*link)->right;
  Block* smaller = block->left;
  Block* larger = block->right;
  while (smaller != nullptr && larger != nullptr) {
    if (priority(smaller) >= priority(larger)) {
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

Block* tree_lower_bound(Block* tree, std::size_t size) {
  Block* best = nullptr;
  while (tree != nullptr) {
    if (tree->size >= size) {
      best = tree;
      tree = tree->left;
    } else {
      tree = tree->right;
    }
  }
  return best;
}

}  // namespace

void BucketIndex::insert(Block* block) noexcept {
  const auto [major, minor] = bucket_of(block->size);
  tree_insert(&roots_[major * minors + minor], block);
  minor_map_[major] = static_cast<std::uint16_t>(minor_map_[major] | (1u << minor));
  major_map_ |= std::uint64_t{1} << major;
  bytes_ += block->size;
}

void BucketIndex::remove(Block* block) noexcept {
  const auto [major, minor] = bucket_of(block->size);
  Block*& root = roots_[major * minors + minor];
  tree_remove(&root, block);
  bytes_ -= block->size;
  if (root != nullptr) return;
  minor_map_[major] = static_cast<std::uint16_t>(minor_map_[major] & ~(1u << minor));
  if (minor_map_[major] == 0) major_map_ &= ~(std::uint64_t{1} << major);
}

Block* BucketIndex::find(std::size_t size) const noexcept {
  const auto [major, minor] = bucket_of(size);
  if (Block* block = tree_lower_bound(roots_[major * minors + minor], size)) return block;
  // Every block of a later bucket fits; the first non-empty one holds the best.
  if (const unsigned later = minor_map_[major] & ~((2u << minor) - 1); later != 0) {
    return tree_lower_bound(roots_[major * minors + static_cast<std::size_t>(std::countr_zero(later))], 0);
  }
  const std::uint64_t later = major_map_ & ~((std::uint64_t{2} << major) - 1);
  if (later == 0) return nullptr;
  const auto next = static_cast<std::size_t>(std::countr_zero(later));
  return tree_lower_bound(roots_[next * minors + static_cast<std::size_t>(std::countr_zero(minor_map_[next]))], 0);
}

}  // namespace poolgrad
