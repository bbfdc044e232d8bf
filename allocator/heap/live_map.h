// From an address to the live block that starts there: a page table of two levels, so a lookup is two loads. One thread
// at a time changes it; any may look meanwhile, and sees every block that was handed over to it. Beside it, for the one
// thread alone, what is noted about packed blocks, by region of addresses.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

#include "allocator/base/sparse_array.h"
#include "allocator/heap/packed_blocks.h"

namespace poolgrad {

/// Keyed by the offset into one address window. A leaf exists where a block has started that is not packed. What is
/// held is added to `held`.
class LiveMap {
 public:
  LiveMap(std::size_t window_bytes, std::size_t granule, std::size_t& held)
      : granule_bits_(static_cast<unsigned>(std::countr_zero(granule))),
        leaf_bits_(std::max(granule_bits_, least_leaf_bits)),
        directory_((window_bytes >> leaf_bits_) + leaves_per_region),
        packed_((window_bytes >> region_bits()) + 1),
        held_(held) {
    held_ += directory_.fixed_bytes() + packed_.fixed_bytes();
  }
  ~LiveMap() {
    directory_.for_each_page([&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) delete[] directory_[i];
    });
    packed_.for_each_page([&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) PackedBlocks::Delete()(packed_[i]);
    });
  }
  LiveMap(const LiveMap&) = delete;
  LiveMap& operator=(const LiveMap&) = delete;

  /// nullptr where no live block starts in the granule of `offset`, or a packed one.
  Block* find(std::size_t offset) const noexcept {
    Block** leaf = std::atomic_ref(directory_[offset >> leaf_bits_]).load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : std::atomic_ref(leaf[in_leaf(offset)]).load(std::memory_order_acquire);
  }

  bool expects(std::size_t offset) const noexcept {
    // Looking at a page that was never touched would make one.
    return directory_.is_touched(offset >> leaf_bits_) && directory_[offset >> leaf_bits_] != nullptr;
  }
  /// set() for the offset will need no memory.
  void expect(std::size_t offset) {
    if (expects(offset)) return;
    auto leaf = std::make_unique<Block*[]>(leaf_size());
    touch(directory_, offset >> leaf_bits_);
    held_ += leaf_bytes();
    std::atomic_ref(directory_[offset >> leaf_bits_]).store(leaf.release(), std::memory_order_release);
  }

  void set(std::size_t offset, Block* block) {
    expect(offset);
    Block** leaf = directory_[offset >> leaf_bits_];
    std::atomic_ref(leaf[in_leaf(offset)]).store(block, std::memory_order_release);
  }

  void clear(std::size_t offset) noexcept {
    Block** leaf = directory_[offset >> leaf_bits_];
    if (leaf != nullptr) std::atomic_ref(leaf[in_leaf(offset)]).store(nullptr, std::memory_order_relaxed);
  }

  // Packed blocks. Regions are named by the offset at which they start.
  std::size_t region_of(std::size_t offset) const noexcept { return offset >> region_bits() << region_bits(); }
  unsigned granule_bits() const noexcept { return granule_bits_; }
  std::size_t leaf_bytes() const noexcept { return leaf_size() * sizeof(Block*); }

  /// Of the region that the offset is in; nullptr if there are none.
  PackedBlocks* packed(std::size_t offset) const noexcept { return packed_[offset >> region_bits()]; }
  /// They take the place of those that there were.
  void set_packed(std::size_t offset, PackedBlocks::Owner blocks) noexcept {
    touch(packed_, offset >> region_bits());
    PackedBlocks*& known = packed_[offset >> region_bits()];
    if (known != nullptr) held_ -= known->bytes();
    if (blocks != nullptr) held_ += blocks->bytes();
    PackedBlocks::Delete()(std::exchange(known, blocks.release()));
  }

  /// Calls visit(region) for each that has a leaf.
  template <class Visit>
  void for_each_region(Visit visit) const {
    directory_.for_each_page([&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; i += leaves_per_region) {
        const bool any =
            std::any_of(&directory_[i], &directory_[i] + leaves_per_region, [](auto* leaf) { return leaf; });
        if (any) visit(i << leaf_bits_);
      }
    });
  }
  /// Calls visit(Block*) for what is in the leaves of a region, in address order.
  template <class Visit>
  void for_each_in(std::size_t region, Visit visit) const {
    for (std::size_t i = region >> leaf_bits_; i < (region >> leaf_bits_) + leaves_per_region; ++i) {
      if (directory_[i] == nullptr) continue;
      for (std::size_t j = 0; j < leaf_size(); ++j) {
        if (directory_[i][j] != nullptr) visit(directory_[i][j]);
      }
    }
  }
  /// Gives back the leaves of a region; those that nothing is in. Only while nobody looks.
  void free_leaves(std::size_t region) noexcept {
    free_leaves_if(region, [](Block**) { return true; });
  }
  void free_empty_leaves(std::size_t region) noexcept {
    free_leaves_if(region, [this](Block** leaf) {
      return std::none_of(leaf, leaf + leaf_size(), [](const Block* block) { return block; });
    });
  }
  /// Gives back pages of the directories that nothing is in. Only while nobody looks.
  void trim() noexcept {
    held_ -= directory_.bytes() + packed_.bytes();
    directory_.trim();
    packed_.trim();
    held_ += directory_.bytes() + packed_.bytes();
  }

 private:
  static constexpr unsigned least_leaf_bits = 14;
  static constexpr unsigned leaves_per_region = 4;

  std::size_t leaf_size() const noexcept { return std::size_t{1} << (leaf_bits_ - granule_bits_); }
  unsigned region_bits() const noexcept { return leaf_bits_ + std::countr_zero(leaves_per_region); }
  std::size_t in_leaf(std::size_t offset) const noexcept {
    return (offset & ((std::size_t{1} << leaf_bits_) - 1)) >> granule_bits_;
  }
  template <class Condition>
  void free_leaves_if(std::size_t region, Condition condition) noexcept {
    for (std::size_t i = region >> leaf_bits_; i < (region >> leaf_bits_) + leaves_per_region; ++i) {
      Block** leaf = directory_[i];
      if (leaf == nullptr || !condition(leaf)) continue;
      std::atomic_ref(directory_[i]).store(nullptr, std::memory_order_relaxed);
      delete[] leaf;
      held_ -= leaf_bytes();
    }
  }
  template <class T>
  void touch(SparseArray<T>& array, std::size_t index) noexcept {
    held_ -= array.bytes();
    array.touch(index);
    held_ += array.bytes();
  }

  unsigned granule_bits_;
  unsigned leaf_bits_;
  SparseArray<Block**> directory_;
  SparseArray<PackedBlocks*> packed_;
  std::size_t& held_;
};

}  // namespace poolgrad
