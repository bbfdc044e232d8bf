#include "allocator/heap/packed_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <ranges>

namespace poolgrad {

namespace {

// Thread and count in a number: see RequestSequence. Numbers of one thread are close to each other, those of two are
// not.
constexpr unsigned count_bits = 40;
constexpr std::uint64_t count_mask = (std::uint64_t{1} << count_bits) - 1;

void write(unsigned char*& to, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) *to++ = static_cast<unsigned char>(value >> (8 * i));
}

std::uint64_t read(const unsigned char*& from, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::uint64_t{*from++} << (8 * i);
  return value;
}

}  // namespace

PackedBlocks::Values PackedBlocks::values_of(const LiveBlock& block) {
  return {block.size - block.requested, block.number & count_mask, block.number >> count_bits,
          static_cast<std::uint64_t>(block.tag.category), block.tag.scope};
}

PackedBlocks::Owner PackedBlocks::make(std::span<const LiveBlock> blocks, std::uintptr_t region,
                                       unsigned granule_bits) {
  Values least = values_of(blocks.front());
  Values most = least;
  for (const LiveBlock& block : blocks) {
    const Values values = values_of(block);
    for (std::size_t i = 0; i < fields; ++i) {
      least[i] = std::min(least[i], values[i]);
      most[i] = std::max(most[i], values[i]);
    }
  }
  std::array<std::uint8_t, fields> width{};
  std::size_t stride = offset_bytes;
  for (std::size_t i = 0; i < fields; ++i) {
    width[i] = static_cast<std::uint8_t>((std::bit_width(most[i] - least[i]) + 7) / 8);
    stride += width[i];
  }
  const std::size_t bytes = sizeof(PackedBlocks) + blocks.size() * stride;
  Owner packed(new (::operator new(bytes)) PackedBlocks);
  packed->region_ = region;
  packed->least_ = least;
  packed->width_ = width;
  packed->granule_bits_ = static_cast<std::uint8_t>(granule_bits);
  packed->count_ = static_cast<std::uint16_t>(blocks.size());
  packed->stride_ = static_cast<std::uint32_t>(stride);
  packed->bytes_ = static_cast<std::uint32_t>(bytes);
  unsigned char* to = packed->entry(0);
  for (const LiveBlock& block : blocks) {
    write(to, (block.address - region) >> granule_bits, offset_bytes);
    const Values values = values_of(block);
    for (std::size_t i = 0; i < fields; ++i) write(to, values[i] - least[i], width[i]);
  }
  return packed;
}

std::uintptr_t PackedBlocks::address(std::size_t index) const noexcept {
  const unsigned char* from = entry(index);
  return region_ + (read(from, offset_bytes) << granule_bits_);
}

std::size_t PackedBlocks::lower_bound(std::uintptr_t wanted) const noexcept {
  const auto all = std::views::iota(std::uint32_t{0}, std::uint32_t{count_});
  return *std::ranges::partition_point(all, [&](std::uint32_t index) { return address(index) < wanted; });
}

LiveBlock PackedBlocks::at(std::size_t index, const Block* node) const noexcept {
  const unsigned char* from = entry(index) + offset_bytes;
  Values values;
  for (std::size_t i = 0; i < fields; ++i) values[i] = least_[i] + read(from, width_[i]);
  LiveBlock block;
  block.address = address(index);
  block.size = (index + 1 < count_ ? std::min(address(index + 1), node->end()) : node->end()) - block.address;
  block.requested = block.size - values[0];
  block.number = values[1] | values[2] << count_bits;
  block.tag = {static_cast<Category>(values[3]), static_cast<std::uint32_t>(values[4])};
  return block;
}

void PackedBlocks::erase(std::size_t index) noexcept {
  std::memmove(entry(index), entry(index + 1), (count_ - index - 1) * stride_);
  --count_;
}

}  // namespace poolgrad
