#include "allocator/heap/bucket_index.h"

namespace poolgrad {

namespace {

// Each bucket is a treap.
constexpr auto before = [](const Block* a, const Block* b) {
  return a->size != b->size ? a->size < b->size : a->address < b->address;
};

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
  tree_insert(&roots_[major * minors + minor], block, before);
  minor_map_[major] = static_cast<std::uint16_t>(minor_map_[major] | (1u << minor));
  major_map_ |= std::uint64_t{1} << major;
  bytes_ += block->size;
}

void BucketIndex::remove(Block* block) noexcept {
  const auto [major, minor] = bucket_of(block->size);
  Block*& root = roots_[major * minors + minor];
  tree_remove(&root, block, before);
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
