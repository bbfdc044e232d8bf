// From an address to the live block that starts there: a page table of two levels, so a lookup is two loads. One thread
// at a time changes it; any may look meanwhile, and sees every block that was handed over to it.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace poolgrad {

struct Block;

/// Keyed by the offset into one address window. The directory comes from calloc, which hands out large arrays as pages
/// that cost nothing until touched; a leaf exists where a block has started.
class LiveMap {
 public:
  LiveMap(std::size_t window_bytes, std::size_t granule)
      : granule_bits_(static_cast<unsigned>(std::countr_zero(granule))),
        leaf_bits_(std::max(granule_bits_, least_leaf_bits)),
        directory_(static_cast<Block***>(std::calloc((window_bytes >> leaf_bits_) + 1, sizeof(Block**)))) {
    if (directory_ == nullptr) throw std::bad_alloc();
  }

  /// nullptr where no live block starts in the granule of `offset`.
  Block* find(std::size_t offset) const noexcept {
    Block** leaf = std::atomic_ref(directory_.get()[offset >> leaf_bits_]).load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : std::atomic_ref(leaf[in_leaf(offset)]).load(std::memory_order_acquire);
  }

  /// set() for the offset will need no memory.
  void expect(std::size_t offset) {
    Block**& leaf = directory_.get()[offset >> leaf_bits_];
    if (leaf != nullptr) return;
    leaves_.push_back(nullptr);
    leaves_.back() = std::make_unique<Block*[]>(std::size_t{1} << (leaf_bits_ - granule_bits_));
    std::atomic_ref(leaf).store(leaves_.back().get(), std::memory_order_release);
  }

  void set(std::size_t offset, Block* block) {
    expect(offset);
    Block** leaf = directory_.get()[offset >> leaf_bits_];
    std::atomic_ref(leaf[in_leaf(offset)]).store(block, std::memory_order_release);
  }

  void clear(std::size_t offset) noexcept {
    Block** leaf = directory_.get()[offset >> leaf_bits_];
    std::atomic_ref(leaf[in_leaf(offset)]).store(nullptr, std::memory_order_relaxed);
  }

 private:
  static constexpr unsigned least_leaf_bits = 14;

  struct Free {
    void operator()(Block*** directory) const { std::free(static_cast<void*>(directory)); }
  };

  std::size_t in_leaf(std::size_t offset) const noexcept {
    return (offset & ((std::size_t{1} << leaf_bits_) - 1)) >> granule_bits_;
  }

  unsigned granule_bits_;
  unsigned leaf_bits_;
  std::unique_ptr<Block**, Free> directory_;
  std::vector<std::unique_ptr<Block*[]>> leaves_;
};

}  // namespace poolgrad
