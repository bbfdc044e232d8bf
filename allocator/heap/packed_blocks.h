// Compact records of long-lived live blocks: a few bytes each, instead of hundreds for a Block and its entry in the
// live map.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "allocator/heap/block.h"

namespace poolgrad {

/// A live block, packed or not.
struct LiveBlock {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  std::uint64_t number = 0;
  Tag tag;
  std::uint64_t stream = 0;

  std::uintptr_t end() const { return address + size; }
  static LiveBlock of(const Block& block) {
    return {block.address, block.size, block.requested, block.number, block.tag, block.stream};
  }
};

/// Live blocks that start in one address region, in address order. Each field stores differences to a straight line
/// below all values, in as many bits as the largest difference needs (Goldstein et al. 1998, "frame of reference"), so
/// constant or steadily growing fields take no bits. Sizes follow from the next block's start, or the end of the Block
/// that represents the run. Numbers far off the line, as of blocks that replaced others, are stored separately, with a
/// bit per block (Zukowski et al. 2006, "patched frame of reference"). Streams are numbered by first appearance and
/// stored once.
class PackedBlocks {
 public:
  struct Delete {
    void operator()(PackedBlocks* blocks) const noexcept { ::operator delete(static_cast<void*>(blocks)); }
  };
  using Owner = std::unique_ptr<PackedBlocks, Delete>;

  /// `blocks`, at least one and less than 2^16, start above `region`, at multiples of 2^granule_bits bytes from there.
  static Owner make(std::span<const LiveBlock> blocks, std::uintptr_t region, unsigned granule_bits);
  PackedBlocks(const PackedBlocks&) = delete;
  PackedBlocks& operator=(const PackedBlocks&) = delete;

  /// The number of packed blocks; removed ones keep their index.
  std::size_t size() const noexcept { return count_; }
  /// Bytes held.
  std::size_t bytes() const noexcept { return bytes_; }
  std::uintptr_t address(std::size_t index) const noexcept;
  /// The index of the first block at or above `address`; size() if there is none.
  std::size_t lower_bound(std::uintptr_t address) const noexcept;
  /// The block at the index, which `node` must represent.
  LiveBlock at(std::size_t index, const Block* node) const noexcept;
  /// Whether the block has the size and address of the one at the index.
  bool has_place_for(const Block& block, std::size_t index) const noexcept {
    return index < count_ && address(index) == block.address &&
           (index + 1 == count_ || address(index + 1) == block.end());
  }
  /// Stores a block in place of the removed one at the index. Returns false if its values need too many bits.
  bool put(std::size_t index, const LiveBlock& block) noexcept;
  /// A copy with enough bits for put() of this block and of some later ones; nullptr if the block is too different.
  /// Takes over the nodes, which still point to this object.
  Owner with_room_for(std::size_t index, const LiveBlock& block) const;
  /// The common stream of all blocks, if there is one.
  std::optional<std::uint64_t> only_stream() const noexcept {
    return streams_ == 1 ? std::optional(streams().front()) : std::nullopt;
  }
  /// Renames a stream.
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept { std::ranges::replace(streams(), from, to); }
  /// Removes a block and its node; returns false if it was the last one.
  bool forget_one() noexcept { return --left_ != 0; }

  /// The Blocks that represent runs: a tree by address.
  Block* nodes = nullptr;
  void add_node(Block* node) noexcept { tree_insert(&nodes, node, before); }
  void remove_node(Block* node) noexcept { tree_remove(&nodes, node, before); }
  /// The node that represents the block at `address`; nullptr if it was removed.
  Block* node_of(std::uintptr_t address) const noexcept {
    Block* node = nodes;
    while (node != nullptr && (address < node->address || address >= node->end()))
      node = address < node->address ? node->left : node->right;
    return node;
  }

 private:
  static constexpr std::size_t fields = 7;
  static constexpr std::size_t number_field = 2;
  static constexpr std::size_t stream_field = 6;
  using Values = std::array<std::uint64_t, fields>;
  /// Predicts base + index * slope for a field; the difference takes this many bits.
  struct Line {
    std::uint64_t base = 0;
    std::int32_t slope = 0;
    std::uint32_t width = 0;

    std::uint64_t at(std::size_t index) const { return base + index * static_cast<std::uint64_t>(std::int64_t{slope}); }
  };

  /// Most numbers are on the line; rare ones are stored relative to `rare_base`, in `rare_width` bits.
  struct Numbers {
    Line line;
    std::uint64_t rare_base = 0;
    std::uint32_t rare_width = 0;  // 0: no rare numbers
    std::size_t bits = SIZE_MAX;   // total size
  };
  static Numbers most_on_a_line(std::span<const LiveBlock> blocks);

  PackedBlocks() = default;
  static bool before(const Block* a, const Block* b) { return a->address < b->address; }
  /// `stream` is the index of the block's stream.
  static Values values_of(const LiveBlock& block, std::size_t stream, std::uintptr_t region, unsigned granule_bits);
  /// With space for this many streams and bits.
  static Owner make_empty(std::size_t streams, std::size_t bits);
  // The streams follow this object, then the bits.
  std::span<std::uint64_t> streams() noexcept { return {reinterpret_cast<std::uint64_t*>(this + 1), streams_}; }
  std::span<const std::uint64_t> streams() const noexcept {
    return {reinterpret_cast<const std::uint64_t*>(this + 1), streams_};
  }
  unsigned char* bits() noexcept { return reinterpret_cast<unsigned char*>(streams().data() + streams_); }
  const unsigned char* bits() const noexcept {
    return reinterpret_cast<const unsigned char*>(streams().data() + streams_);
  }
  /// The values of a block to add; an invalid stream index if its stream is not stored here.
  Values values_of(const LiveBlock& block) const noexcept;
  /// The value of a field whose bits start at `at`, if it is on the line.
  std::uint64_t value(std::size_t field, std::size_t index, std::size_t at) const noexcept;
  /// Start of the rare numbers' bits: one bit for each block, then these numbers.
  std::size_t rare_bits() const noexcept { return std::size_t{count_} * stride_; }
  bool is_rare(std::size_t index) const noexcept;
  std::size_t rare_before(std::size_t index) const noexcept;
  /// Start of the bits of a rare number with this many before it.
  std::size_t rare_at(std::size_t before) const noexcept { return rare_bits() + count_ + before * rare_width_; }
  std::uint64_t rare(std::size_t before) const noexcept;
  std::uint64_t rare_number(std::size_t index) const noexcept { return rare(rare_before(index)); }
  bool put_rare(std::size_t index, std::uint64_t number) noexcept;
  bool is_on_line(std::size_t field, std::size_t index, std::uint64_t value) const noexcept {
    return (value - lines_[field].at(index)) >> lines_[field].width == 0;
  }
  /// Whether the block's values, except its number, fit at the index.
  bool is_alike(std::size_t index, const Values& values) const noexcept;

  std::uintptr_t region_ = 0;
  std::array<Line, fields> lines_{};
  std::uint64_t rare_base_ = 0;
  std::uint32_t stride_ = 0;  // bits for each block
  std::uint32_t bytes_ = 0;
  std::uint16_t count_ = 0;
  std::uint16_t left_ = 0;  // not removed
  std::uint16_t rare_ = 0;  // numbers
  std::uint16_t streams_ = 0;
  std::uint8_t granule_bits_ = 0;
  std::uint8_t rare_width_ = 0;  // 0: no rare numbers
};

}  // namespace poolgrad
