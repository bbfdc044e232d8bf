// From an address to the live block that starts there, and to what is noted about packed blocks of its region of
// addresses. One thread at a time changes it; any may look for blocks meanwhile, see PointerTable::find().
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "allocator/heap/packed_blocks.h"
#include "allocator/heap/pointer_table.h"

namespace poolgrad {

/// Keyed by the offset into one address window. What is held is added to `held`.
class LiveMap {
 public:
  LiveMap(std::size_t granule, std::size_t& held)
      : granule_bits_(static_cast<unsigned>(std::countr_zero(granule))),
        region_bits_(std::max(granule_bits_, least_region_bits)),
        held_(held),
        blocks_(held),
        packed_(held) {}
  ~LiveMap() {
    packed_.for_each([this](PackedBlocks* blocks) { discard(blocks); });
  }
  LiveMap(const LiveMap&) = delete;
  LiveMap& operator=(const LiveMap&) = delete;

  /// nullptr where no live block starts in the granule of `offset`, or a packed one.
  Block* find(std::size_t offset) const noexcept { return blocks_.find(offset >> granule_bits_); }
  /// The next set() will need no memory; nor will those that bring back what was here before.
  void expect() { blocks_.expect(); }
  /// The same, once more beside all that was here before.
  void expect_more() { blocks_.expect_more(); }
  void set(std::size_t offset, Block* block) { blocks_.set(offset >> granule_bits_, block); }
  void clear(std::size_t offset) noexcept { blocks_.erase(offset >> granule_bits_); }
  /// About what each block takes.
  static constexpr std::size_t bytes_each = PointerTable<Block>::bytes_each;

  // Packed blocks. Regions are named by the offset at which they start.
  std::size_t region_of(std::size_t offset) const noexcept { return offset >> region_bits_ << region_bits_; }
  unsigned granule_bits() const noexcept { return granule_bits_; }
  /// Of the region that the offset is in; nullptr if there are none.
  PackedBlocks* packed(std::size_t offset) const noexcept { return packed_.find(offset >> region_bits_); }
  /// The next set_packed() will need no memory.
  void expect_packed() { packed_.expect(); }
  /// They, if any, take the place of those that there were.
  void set_packed(std::size_t offset, PackedBlocks::Owner blocks) noexcept {
    if (PackedBlocks* known = packed_.erase(offset >> region_bits_)) discard(known);
    if (blocks == nullptr) return;
    held_ += blocks->bytes();
    packed_.set(offset >> region_bits_, blocks.release());
  }

  /// Gives back what is not needed now. Only while nobody looks.
  void trim() noexcept {
    blocks_.trim();
    packed_.trim();
  }

 private:
  static constexpr unsigned least_region_bits = 16;

  void discard(PackedBlocks* blocks) noexcept {
    held_ -= blocks->bytes();
    PackedBlocks::Delete()(blocks);
  }

  unsigned granule_bits_;
  unsigned region_bits_;
  std::size_t& held_;
  PointerTable<Block> blocks_;
  PointerTable<PackedBlocks> packed_;
};

}  // namespace poolgrad
