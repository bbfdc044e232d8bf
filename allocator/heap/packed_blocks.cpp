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

// Up to 57 bits anywhere: all are in the eight bytes from the one in which they start.
constexpr std::size_t word = sizeof(std::uint64_t);
static_assert(std::endian::native == std::endian::little);

std::uint64_t read(const unsigned char* bits, std::size_t at, unsigned width) {
  std::uint64_t found = 0;
  std::memcpy(&found, bits + at / 8, word);
  return found >> at % 8 & ((std::uint64_t{1} << width) - 1);
}

// Where there is zero.
void write(unsigned char* bits, std::size_t at, std::uint64_t value) {
  std::uint64_t there = 0;
  std::memcpy(&there, bits + at / 8, word);
  there |= value << at % 8;
  std::memcpy(bits + at / 8, &there, word);
}

}  // namespace

PackedBlocks::Values PackedBlocks::values_of(const LiveBlock& block, std::uintptr_t region, unsigned granule_bits) {
  return {(block.address - region) >> granule_bits,
          block.size - block.requested,
          block.number & count_mask,
          block.number >> count_bits,
          static_cast<std::uint64_t>(block.tag.category),
          block.tag.scope};
}

PackedBlocks::Owner PackedBlocks::make(std::span<const LiveBlock> blocks, std::uintptr_t region,
                                       unsigned granule_bits) {
  const Values first = values_of(blocks.front(), region, granule_bits);
  const Values last = values_of(blocks.back(), region, granule_bits);
  // Level lines, and those from the first to the last value.
  std::array<std::array<Line, fields>, 2> lines{};
  for (std::size_t i = 0; i < fields; ++i) {
    const auto rise = static_cast<std::int64_t>(last[i] - first[i]);
    const std::int64_t slope = rise / static_cast<std::int64_t>(std::max<std::size_t>(blocks.size() - 1, 1));
    lines[1][i].slope = static_cast<std::int32_t>(std::clamp<std::int64_t>(slope, INT32_MIN, INT32_MAX));
  }
  for (auto& kind : lines) {
    std::array<std::int64_t, fields> least{}, most{};  // from the line through the first value
    for (std::size_t i = 0; i < fields; ++i) kind[i].base = first[i];
    for (std::size_t index = 0; index < blocks.size(); ++index) {
      const Values values = values_of(blocks[index], region, granule_bits);
      for (std::size_t i = 0; i < fields; ++i) {
        const auto above = static_cast<std::int64_t>(values[i] - kind[i].at(index));
        least[i] = std::min(least[i], above);
        most[i] = std::max(most[i], above);
      }
    }
    for (std::size_t i = 0; i < fields; ++i) {
      kind[i].base += static_cast<std::uint64_t>(least[i]);
      kind[i].width = static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint64_t>(most[i] - least[i])));
    }
  }
  std::size_t stride = 0;
  for (std::size_t i = 0; i < fields; ++i) {
    if (lines[1][i].width < lines[0][i].width) lines[0][i] = lines[1][i];
    stride += lines[0][i].width;
  }
  const std::size_t bytes = sizeof(PackedBlocks) + blocks.size() * stride / 8 + word;
  Owner packed(new (::operator new(bytes)) PackedBlocks);
  packed->region_ = region;
  packed->lines_ = lines[0];
  packed->stride_ = static_cast<std::uint32_t>(stride);
  packed->bytes_ = static_cast<std::uint32_t>(bytes);
  packed->count_ = packed->left_ = static_cast<std::uint16_t>(blocks.size());
  packed->granule_bits_ = static_cast<std::uint8_t>(granule_bits);
  unsigned char* const bits = packed->bits();
  std::memset(bits, 0, bytes - sizeof(PackedBlocks));
  std::size_t at = 0;
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    const Values values = values_of(blocks[index], region, granule_bits);
    for (std::size_t i = 0; i < fields; ++i) {
      const Line& line = packed->lines_[i];
      write(bits, at, values[i] - line.at(index));
      at += line.width;
    }
  }
  return packed;
}

std::uint64_t PackedBlocks::value(std::size_t field, std::size_t index, std::size_t at) const noexcept {
  return lines_[field].at(index) + read(bits(), at, lines_[field].width);
}

std::uintptr_t PackedBlocks::address(std::size_t index) const noexcept {
  return region_ + (value(0, index, index * stride_) << granule_bits_);
}

std::size_t PackedBlocks::lower_bound(std::uintptr_t wanted) const noexcept {
  const auto all = std::views::iota(std::uint32_t{0}, std::uint32_t{count_});
  return *std::ranges::partition_point(all, [&](std::uint32_t index) { return address(index) < wanted; });
}

LiveBlock PackedBlocks::at(std::size_t index, const Block* node) const noexcept {
  Values values;
  std::size_t at = index * stride_;
  for (std::size_t i = 0; i < fields; ++i) {
    values[i] = value(i, index, at);
    at += lines_[i].width;
  }
  LiveBlock block;
  block.address = region_ + (values[0] << granule_bits_);
  block.size = (index + 1 < count_ ? std::min(address(index + 1), node->end()) : node->end()) - block.address;
  block.requested = block.size - values[1];
  block.number = values[2] | values[3] << count_bits;
  block.tag = {static_cast<Category>(values[4]), static_cast<std::uint32_t>(values[5])};
  return block;
}

}  // namespace poolgrad
