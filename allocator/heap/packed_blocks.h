// What is noted about live blocks that nobody has touched for a while: a few bytes for each, where a Block and its
// entry in the live map take hundreds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "allocator/heap/block.h"

namespace poolgrad {

/// A live block, wherever it is noted.
struct LiveBlock {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  std::uint64_t number = 0;
  Tag tag;

  std::uintptr_t end() const { return address + size; }
  static LiveBlock of(const Block& block) {
    return {block.address, block.size, block.requested, block.number, block.tag};
  }
};

/// Live blocks that start in one region of addresses, in address order. Each field is kept as the difference to its
/// least value in the region, in as many bytes as the largest difference needs (Goldstein et al. 1998, "frame of
/// reference"): of what is alike, nothing is left. Sizes are not noted, for a block ends where the next one starts or
/// where the Block that stands for them ends.
class PackedBlocks {
 public:
  struct Delete {
    void operator()(PackedBlocks* blocks) const noexcept { ::operator delete(static_cast<void*>(blocks)); }
  };
  using Owner = std::unique_ptr<PackedBlocks, Delete>;

  /// `blocks`, at least one, start in the 2^16 granules of 2^granule_bits bytes from `region`.
  static Owner make(std::span<const LiveBlock> blocks, std::uintptr_t region, unsigned granule_bits);
  PackedBlocks(const PackedBlocks&) = delete;
  PackedBlocks& operator=(const PackedBlocks&) = delete;

  std::size_t size() const noexcept { return count_; }
  /// Bytes held.
  std::size_t bytes() const noexcept { return bytes_; }
  std::uintptr_t address(std::size_t index) const noexcept;
  /// The index of the first block at `address` or above it; size() if there is none.
  std::size_t lower_bound(std::uintptr_t address) const noexcept;
  /// The block at the index, one of those that `node` stands for.
  LiveBlock at(std::size_t index, const Block* node) const noexcept;
  void erase(std::size_t index) noexcept;

  /// Those that stand for the blocks: a tree by address.
  Block* nodes = nullptr;
  void add_node(Block* node) noexcept { tree_insert(&nodes, node, before); }
  void remove_node(Block* node) noexcept { tree_remove(&nodes, node, before); }
  /// The one that stands for the block at `address`, which is one of those here.
  Block* node_of(std::uintptr_t address) const noexcept {
    Block* node = nodes;
    while (address < node->address || address >= node->end()) node = address < node->address ? node->left : node->right;
    return node;
  }

 private:
  static constexpr std::size_t fields = 5;
  static constexpr std::size_t offset_bytes = 2;
  using Values = std::array<std::uint64_t, fields>;

  PackedBlocks() = default;
  static bool before(const Block* a, const Block* b) { return a->address < b->address; }
  static Values values_of(const LiveBlock& block);
  unsigned char* entry(std::size_t index) noexcept {
    return reinterpret_cast<unsigned char*>(this + 1) + index * stride_;
  }
  const unsigned char* entry(std::size_t index) const noexcept {
    return reinterpret_cast<const unsigned char*>(this + 1) + index * stride_;
  }

  std::uintptr_t region_ = 0;
  std::array<std::uint64_t, fields> least_{};
  std::array<std::uint8_t, fields> width_{};
  std::uint8_t granule_bits_ = 0;
  std::uint16_t count_ = 0;
  std::uint32_t stride_ = 0;
  std::uint32_t bytes_ = 0;
};

}  // namespace poolgrad
