// Finds the lowest block that is large enough. A search tree by address with the largest size below each node, balanced
// as a treap (Seidel and Aragon 1996) by a hash of the address.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "allocator/heap/block.h"

namespace poolgrad {

/// While a block is in the index, its `requested` is the largest size in its subtree.
class FirstFitIndex {
 public:
  explicit FirstFitIndex(std::size_t /*granule*/) {}

  void insert(Block* block) {
    Block** link = &root_;
    while (*link != nullptr && priority(*link) >= priority(block)) {
      (*link)->requested = std::max((*link)->requested, block->size);
      link = block->address < (*link)->address ? &(*link)->left : &(*link)->right;
    }
    std::tie(block->left, block->right) = split(*link, block->address);
    *link = updated(block);
  }

  void remove(Block* block) { root_ = without(root_, block); }

  /// Extends a block by adjacent free memory.
  void enlarge(Block* block, std::uintptr_t address, std::size_t size) {
    for (Block* node = root_; node != block; node = address < node->address ? node->left : node->right) {
      node->requested = std::max(node->requested, size);
    }
    block->address = address;
    block->size = size;
    block->requested = std::max(block->requested, size);
  }

  Block* find(std::size_t size) const {
    if (largest(root_) < size) return nullptr;
    for (Block* node = root_;;) {
      if (largest(node->left) >= size) {
        node = node->left;
      } else if (node->size >= size) {
        return node;
      } else {
        node = node->right;
      }
    }
  }

  /// Calls visit(Block*) for every block, by address.
  template <class Visit>
  void for_each_from(std::size_t /*size*/, Visit visit) const {
    walk(root_, visit);
  }

  /// Calls visit(Block*) for the blocks of at least `size` bytes (not 0), by address, until it returns false.
  template <class Visit>
  void for_each_fit(std::size_t size, Visit visit) const {
    walk_fits(root_, size, visit);
  }

 private:
  static std::size_t largest(const Block* node) { return node == nullptr ? 0 : node->requested; }
  static std::uint64_t priority(const Block* node) {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(node) * 0x9E3779B97F4A7C15u;
    return mixed ^ (mixed >> 32);
  }
  static Block* updated(Block* node) {
    node->requested = std::max({node->size, largest(node->left), largest(node->right)});
    return node;
  }

  // The blocks below and above an address between blocks.
  static std::pair<Block*, Block*> split(Block* node, std::uintptr_t address) {
    if (node == nullptr) return {nullptr, nullptr};
    if (node->address < address) {
      const auto [lower, higher] = split(node->right, address);
      node->right = lower;
      return {updated(node), higher};
    }
    const auto [lower, higher] = split(node->left, address);
    node->left = higher;
    return {lower, updated(node)};
  }

  static Block* merge(Block* lower, Block* higher) {
    if (lower == nullptr) return higher;
    if (higher == nullptr) return lower;
    if (priority(lower) >= priority(higher)) {
      lower->right = merge(lower->right, higher);
      return updated(lower);
    }
    higher->left = merge(lower, higher->left);
    return updated(higher);
  }

  static Block* without(Block* node, const Block* block) {
    if (node == block) return merge(node->left, node->right);
    Block*& child = block->address < node->address ? node->left : node->right;
    child = without(child, block);
    return updated(node);
  }

  template <class Visit>
  static void walk(Block* node, Visit& visit) {
    if (node == nullptr) return;
    walk(node->left, visit);
    visit(node);
    walk(node->right, visit);
  }

  template <class Visit>
  static bool walk_fits(Block* node, std::size_t size, Visit& visit) {
    return largest(node) < size || (walk_fits(node->left, size, visit) && (node->size < size || visit(node)) &&
                                    walk_fits(node->right, size, visit));
  }

  Block* root_ = nullptr;
};

}  // namespace poolgrad
