// What is noted about live blocks that nobody has touched for a while: a few bytes for each, where a Block and its
// entry in the live map take hundreds.
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

/// A live block, wherever it is noted.
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

/// Live blocks that start in one region of addresses, in address order. Each field is kept as the difference to a
/// straight line over the blocks, which starts so low that no difference is negative, in as many bits as the largest
/// one needs (Goldstein et al. 1998, "frame of reference"): of what is alike, or grows steadily, nothing is left. Sizes
/// are not noted, for a block ends where the next one starts or where the Block that stands for them ends. Numbers that
/// are far off the line of most, as those of blocks that came in the place of others, are noted apart, and a bit says
/// of which blocks they are (Zukowski et al. 2006, "patched frame of reference"). Streams are counted in the order in
/// which they come, and named once.
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

  /// Of blocks that went in; those that are gone keep their index.
  std::size_t size() const noexcept { return count_; }
  /// Bytes held.
  std::size_t bytes() const noexcept { return bytes_; }
  std::uintptr_t address(std::size_t index) const noexcept;
  /// The index of the first block at `address` or above it; size() if there is none.
  std::size_t lower_bound(std::uintptr_t address) const noexcept;
  /// The block at the index, one of those that `node` stands for.
  LiveBlock at(std::size_t index, const Block* node) const noexcept;
  /// Whether the block is as long as the one at the index was, and in its place.
  bool has_place_for(const Block& block, std::size_t index) const noexcept {
    return index < count_ && address(index) == block.address &&
           (index + 1 == count_ || address(index + 1) == block.end());
  }
  /// Notes a block in the place of the one at the index, which is gone. False if its bits are too few for that.
  bool put(std::size_t index, const LiveBlock& block) noexcept;
  /// The same blocks in memory where put() of this one is possible, and of some after it; nullptr if the block is too
  /// unlike the others. The nodes are in it, too, but still know this.
  Owner with_room_for(std::size_t index, const LiveBlock& block) const;
  /// That of all blocks that went in, if it is one.
  std::optional<std::uint64_t> only_stream() const noexcept {
    return streams_ == 1 ? std::optional(streams().front()) : std::nullopt;
  }
  /// What is of stream `from` is of stream `to`.
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept { std::ranges::replace(streams(), from, to); }
  /// One of them is gone, and its node; false if it was the last one.
  bool forget_one() noexcept { return --left_ != 0; }

  /// Those that stand for the blocks: a tree by address.
  Block* nodes = nullptr;
  void add_node(Block* node) noexcept { tree_insert(&nodes, node, before); }
  void remove_node(Block* node) noexcept { tree_remove(&nodes, node, before); }
  /// The one that stands for the block at `address`; nullptr if that is gone.
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
  /// Of the value at an index, base + index * slope is known, and the rest takes so many bits.
  struct Line {
    std::uint64_t base = 0;
    std::int32_t slope = 0;
    std::uint32_t width = 0;

    std::uint64_t at(std::size_t index) const { return base + index * static_cast<std::uint64_t>(std::int64_t{slope}); }
  };

  /// Most numbers are on the line; the others, if there are any, are those above `rare_base`, in `rare_width` bits.
  struct Numbers {
    Line line;
    std::uint64_t rare_base = 0;
    std::uint32_t rare_width = 0;  // 0: all are on the line
    std::size_t bits = SIZE_MAX;   // that all of this takes
  };
  static Numbers most_on_a_line(std::span<const LiveBlock> blocks);

  PackedBlocks() = default;
  static bool before(const Block* a, const Block* b) { return a->address < b->address; }
  /// `stream` is the index of the block's.
  static Values values_of(const LiveBlock& block, std::size_t stream, std::uintptr_t region, unsigned granule_bits);
  /// For so many streams and bits.
  static Owner make_empty(std::size_t streams, std::size_t bits);
  // The streams follow, then the bits.
  std::span<std::uint64_t> streams() noexcept { return {reinterpret_cast<std::uint64_t*>(this + 1), streams_}; }
  std::span<const std::uint64_t> streams() const noexcept {
    return {reinterpret_cast<const std::uint64_t*>(this + 1), streams_};
  }
  unsigned char* bits() noexcept { return reinterpret_cast<unsigned char*>(streams().data() + streams_); }
  const unsigned char* bits() const noexcept {
    return reinterpret_cast<const unsigned char*>(streams().data() + streams_);
  }
  /// The values of a block that may come in; of a stream that is none of these, an index that is none.
  Values values_of(const LiveBlock& block) const noexcept;
  /// The value of a field whose bits start at `at`, if it is on the line.
  std::uint64_t value(std::size_t field, std::size_t index, std::size_t at) const noexcept;
  /// Where the bits for rare numbers start: one for each block, then these numbers.
  std::size_t rare_bits() const noexcept { return std::size_t{count_} * stride_; }
  bool is_rare(std::size_t index) const noexcept;
  std::size_t rare_before(std::size_t index) const noexcept;
  /// Where the bits of a rare number start, by how many there are before it.
  std::size_t rare_at(std::size_t before) const noexcept { return rare_bits() + count_ + before * rare_width_; }
  std::uint64_t rare(std::size_t before) const noexcept;
  std::uint64_t rare_number(std::size_t index) const noexcept { return rare(rare_before(index)); }
  bool put_rare(std::size_t index, std::uint64_t number) noexcept;
  bool is_on_line(std::size_t field, std::size_t index, std::uint64_t value) const noexcept {
    return (value - lines_[field].at(index)) >> lines_[field].width == 0;
  }
  /// Whether a block could be at the index, if its number is no obstacle.
  bool is_alike(std::size_t index, const Values& values) const noexcept;

  std::uintptr_t region_ = 0;
  std::array<Line, fields> lines_{};
  std::uint64_t rare_base_ = 0;
  std::uint32_t stride_ = 0;  // bits for each block
  std::uint32_t bytes_ = 0;
  std::uint16_t count_ = 0;
  std::uint16_t left_ = 0;  // that are not gone
  std::uint16_t rare_ = 0;  // numbers
  std::uint16_t streams_ = 0;
  std::uint8_t granule_bits_ = 0;
  std::uint8_t rare_width_ = 0;  // 0: no number is rare
};

}  // namespace poolgrad
