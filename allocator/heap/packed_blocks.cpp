#include "allocator/heap/packed_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <ranges>
#include <vector>

namespace poolgrad {

namespace {

// Thread and count in a number: see RequestSequence. Numbers of one thread are close together, those of two are far
// apart.
constexpr unsigned count_bits = 40;
constexpr std::uint64_t count_mask = (std::uint64_t{1} << count_bits) - 1;

// A field of up to 57 bits at any bit offset lies within the eight bytes from its first byte.
constexpr std::size_t word = sizeof(std::uint64_t);
static_assert(std::endian::native == std::endian::little);

std::uint64_t read(const unsigned char* bits, std::size_t at, unsigned width) {
  std::uint64_t found = 0;
  std::memcpy(&found, bits + at / 8, word);
  return found >> at % 8 & ((std::uint64_t{1} << width) - 1);
}

// Requires zero bits there.
void write(unsigned char* bits, std::size_t at, std::uint64_t value) {
  std::uint64_t there = 0;
  std::memcpy(&there, bits + at / 8, word);
  there |= value << at % 8;
  std::memcpy(bits + at / 8, &there, word);
}

// Replaces any bits there.
void overwrite(unsigned char* bits, std::size_t at, unsigned width, std::uint64_t value) {
  std::uint64_t there = 0;
  std::memcpy(&there, bits + at / 8, word);
  there &= ~(((std::uint64_t{1} << width) - 1) << at % 8);
  there |= value << at % 8;
  std::memcpy(bits + at / 8, &there, word);
}

constexpr unsigned at_once = 56;  // bits per step

// Moves the bits from `from` to `to` up by fewer than a step's bits.
void move_up(unsigned char* bits, std::size_t from, std::size_t to, unsigned by) {
  while (to > from) {
    const auto some = static_cast<unsigned>(std::min<std::size_t>(at_once, to - from));
    to -= some;
    overwrite(bits, to + by, some, read(bits, to, some));
  }
}

}  // namespace

PackedBlocks::Values PackedBlocks::values_of(const LiveBlock& block, std::size_t stream, std::uintptr_t region,
                                             unsigned granule_bits) {
  return {(block.address - region) >> granule_bits,
          block.size - block.requested,
          block.number & count_mask,
          block.number >> count_bits,
          static_cast<std::uint64_t>(block.tag.category),
          block.tag.scope,
          stream};
}

PackedBlocks::Values PackedBlocks::values_of(const LiveBlock& block) const noexcept {
  const auto stream = static_cast<std::size_t>(std::ranges::find(streams(), block.stream) - streams().begin());
  return values_of(block, stream, region_, granule_bits_);
}

PackedBlocks::Owner PackedBlocks::make_empty(std::size_t streams, std::size_t bits) {
  const std::size_t bytes = sizeof(PackedBlocks) + streams * sizeof(std::uint64_t) + bits / 8 + word;
  Owner made(new (::operator new(bytes)) PackedBlocks);
  std::memset(static_cast<void*>(made.get() + 1), 0, bytes - sizeof(PackedBlocks));
  made->bytes_ = static_cast<std::uint32_t>(bytes);
  made->streams_ = static_cast<std::uint16_t>(streams);
  return made;
}

PackedBlocks::Numbers PackedBlocks::most_on_a_line(std::span<const LiveBlock> blocks) {
  const std::size_t count = blocks.size();
  const auto number = [&](std::size_t index) { return static_cast<std::int64_t>(blocks[index].number & count_mask); };
  std::vector<std::int64_t> steps(count - 1);
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = number(i + 1) - number(i);
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle);
  Numbers best;
  best.line.slope = static_cast<std::int32_t>(std::clamp<std::int64_t>(*middle, INT32_MIN, INT32_MAX));
  std::vector<std::int64_t> above(count);  // a line through 0
  for (std::size_t i = 0; i < count; ++i) above[i] = number(i) - static_cast<std::int64_t>(best.line.at(i));
  std::ranges::sort(above);
  // Rare numbers take as many bits as their range.
  const auto spread = static_cast<std::uint64_t>(above.back() - above.front());
  const auto span = static_cast<std::uint32_t>(std::bit_width(spread));
  for (std::uint32_t width = 0; width < span; ++width) {
    // Of all ranges of that width, finds the one with the most numbers.
    const std::int64_t reach = (std::int64_t{1} << width) - 1;
    for (std::size_t first = 0, last = 0; last < count; ++last) {
      while (above[last] - above[first] > reach) ++first;
      const std::size_t bits = count * (width + 1) + (count - (last + 1 - first)) * span;
      if (bits >= best.bits) continue;
      best.bits = bits;
      best.line.base = static_cast<std::uint64_t>(above[first]);
      best.line.width = width;
    }
  }
  std::int64_t least = INT64_MAX, most = 0;
  std::size_t rare = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if ((static_cast<std::uint64_t>(number(i)) - best.line.at(i)) >> best.line.width == 0) continue;
    least = std::min(least, number(i));
    most = std::max(most, number(i));
    ++rare;
  }
  if (rare == 0) {
    best.bits = count * best.line.width;
    return best;
  }
  best.rare_base = static_cast<std::uint64_t>(least);
  best.rare_width = std::max(1u, static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint64_t>(most - least))));
  best.bits = count * (best.line.width + 1) + rare * best.rare_width;
  return best;
}

PackedBlocks::Owner PackedBlocks::make(std::span<const LiveBlock> blocks, std::uintptr_t region,
                                       unsigned granule_bits) {
  std::vector<std::uint64_t> streams;
  std::vector<Values> values;
  values.reserve(blocks.size());
  for (std::size_t stream = 0; const LiveBlock& block : blocks) {
    if (stream == streams.size() || streams[stream] != block.stream) {
      stream = static_cast<std::size_t>(std::ranges::find(streams, block.stream) - streams.begin());
      if (stream == streams.size()) streams.push_back(block.stream);
    }
    values.push_back(values_of(block, stream, region, granule_bits));
  }
  const Values& first = values.front();
  const Values& last = values.back();
  // Constant lines, and lines from the first to the last value.
  std::array<std::array<Line, fields>, 2> lines{};
  for (std::size_t i = 0; i < fields; ++i) {
    const auto rise = static_cast<std::int64_t>(last[i] - first[i]);
    const std::int64_t slope = rise / static_cast<std::int64_t>(std::max<std::size_t>(blocks.size() - 1, 1));
    lines[1][i].slope = static_cast<std::int32_t>(std::clamp<std::int64_t>(slope, INT32_MIN, INT32_MAX));
  }
  for (auto& kind : lines) {
    std::array<std::int64_t, fields> least{}, most{};  // relative to the line through the first value
    for (std::size_t i = 0; i < fields; ++i) kind[i].base = first[i];
    for (std::size_t index = 0; index < blocks.size(); ++index) {
      for (std::size_t i = 0; i < fields; ++i) {
        const auto above = static_cast<std::int64_t>(values[index][i] - kind[i].at(index));
        least[i] = std::min(least[i], above);
        most[i] = std::max(most[i], above);
      }
    }
    for (std::size_t i = 0; i < fields; ++i) {
      kind[i].base += static_cast<std::uint64_t>(least[i]);
      kind[i].width = static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint64_t>(most[i] - least[i])));
    }
  }
  for (std::size_t i = 0; i < fields; ++i) {
    if (lines[1][i].width < lines[0][i].width) lines[0][i] = lines[1][i];
  }
  Numbers numbers;
  if (lines[0][number_field].width > 1) numbers = most_on_a_line(blocks);  // costs a bit per block or more
  if (numbers.bits < blocks.size() * lines[0][number_field].width) {
    lines[0][number_field] = numbers.line;
  } else {
    numbers.rare_width = 0;
  }
  std::size_t stride = 0;
  for (const Line& line : lines[0]) stride += line.width;
  std::size_t bits_in_all = blocks.size() * stride;
  if (numbers.rare_width != 0) bits_in_all += numbers.bits - blocks.size() * numbers.line.width;
  Owner packed = make_empty(streams.size(), bits_in_all);
  std::ranges::copy(streams, packed->streams().begin());
  packed->region_ = region;
  packed->lines_ = lines[0];
  packed->rare_base_ = numbers.rare_base;
  packed->rare_width_ = static_cast<std::uint8_t>(numbers.rare_width);
  packed->stride_ = static_cast<std::uint32_t>(stride);
  packed->count_ = packed->left_ = static_cast<std::uint16_t>(blocks.size());
  packed->granule_bits_ = static_cast<std::uint8_t>(granule_bits);
  unsigned char* const bits = packed->bits();
  std::size_t at = 0;
  std::size_t rare_at = packed->rare_bits() + blocks.size();
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    for (std::size_t i = 0; i < fields; ++i) {
      const Line& line = packed->lines_[i];
      const std::uint64_t value = values[index][i];
      const std::uint64_t above = value - line.at(index);
      if (above >> line.width == 0) {
        write(bits, at, above);
      } else {
        write(bits, packed->rare_bits() + index, 1);
        write(bits, rare_at, value - numbers.rare_base);
        rare_at += numbers.rare_width;
        ++packed->rare_;
      }
      at += line.width;
    }
  }
  return packed;
}

std::uint64_t PackedBlocks::value(std::size_t field, std::size_t index, std::size_t at) const noexcept {
  return lines_[field].at(index) + read(bits(), at, lines_[field].width);
}

bool PackedBlocks::is_rare(std::size_t index) const noexcept {
  return rare_width_ != 0 && read(bits(), rare_bits() + index, 1) != 0;
}

std::size_t PackedBlocks::rare_before(std::size_t index) const noexcept {
  std::size_t before = 0;
  for (std::size_t i = 0; i < index; i += at_once) {
    const auto some = static_cast<unsigned>(std::min<std::size_t>(at_once, index - i));
    before += static_cast<std::size_t>(std::popcount(read(bits(), rare_bits() + i, some)));
  }
  return before;
}

std::uint64_t PackedBlocks::rare(std::size_t before) const noexcept {
  return rare_base_ + read(bits(), rare_at(before), rare_width_);
}

bool PackedBlocks::put_rare(std::size_t index, std::uint64_t number) noexcept {
  if (rare_width_ == 0 || (number - rare_base_) >> rare_width_ != 0) return false;
  const std::size_t at = rare_at(rare_before(index));
  if (!is_rare(index)) {
    const auto before_bits = static_cast<std::size_t>(bits() - reinterpret_cast<const unsigned char*>(this));
    if (rare_at(rare_ + std::size_t{1}) > 8 * (bytes_ - before_bits - word)) return false;
    move_up(bits(), at, rare_at(rare_), rare_width_);
    overwrite(bits(), rare_bits() + index, 1, 1);
    ++rare_;
  }
  overwrite(bits(), at, rare_width_, number - rare_base_);
  return true;
}

bool PackedBlocks::is_alike(std::size_t index, const Values& values) const noexcept {
  for (std::size_t i = 0; i < fields; ++i) {
    if (i != number_field && !is_on_line(i, index, values[i])) return false;
  }
  return true;
}

bool PackedBlocks::put(std::size_t index, const LiveBlock& block) noexcept {
  const Values values = values_of(block);
  if (values[stream_field] == streams_) return false;
  const bool rare = is_rare(index) || !is_on_line(number_field, index, values[number_field]);
  if (!is_alike(index, values) || (rare && !put_rare(index, values[number_field]))) return false;
  std::size_t at = index * stride_;
  for (std::size_t i = 0; i < fields; ++i) {
    const Line& line = lines_[i];
    if (i != number_field || !rare) overwrite(bits(), at, line.width, values[i] - line.at(index));
    at += line.width;
  }
  ++left_;
  return true;
}

PackedBlocks::Owner PackedBlocks::with_room_for(std::size_t index, const LiveBlock& block) const {
  const Values values = values_of(block);
  if (values[stream_field] == streams_ || !is_alike(index, values)) return nullptr;
  std::uint64_t least = values[number_field], most = least;
  for (std::size_t i = 0; i < rare_; ++i) {
    least = std::min(least, rare(i));
    most = std::max(most, rare(i));
  }
  constexpr std::uint32_t least_width = 10;  // numbers of later blocks are larger
  const std::uint32_t width = std::max(least_width, static_cast<std::uint32_t>(std::bit_width(most - least)));
  const std::size_t room = rare_ + rare_ / 16 + std::size_t{4};
  const std::size_t flags = rare_bits() + count_;
  Owner copy = make_empty(streams_, flags + room * width);
  std::ranges::copy(streams(), copy->streams().begin());
  copy->nodes = nodes;
  copy->region_ = region_;
  copy->lines_ = lines_;
  copy->rare_base_ = least;
  copy->stride_ = stride_;
  copy->count_ = count_;
  copy->left_ = left_;
  copy->rare_ = rare_;
  copy->granule_bits_ = granule_bits_;
  copy->rare_width_ = static_cast<std::uint8_t>(width);
  const std::size_t same = rare_width_ != 0 ? flags : rare_bits();
  std::memcpy(copy->bits(), bits(), same / 8);
  write(copy->bits(), same / 8 * 8, read(bits(), same / 8 * 8, same % 8));
  for (std::size_t i = 0; i < rare_; ++i) write(copy->bits(), copy->rare_at(i), rare(i) - least);
  return copy;
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
  if (is_rare(index)) values[number_field] = rare_number(index);
  LiveBlock block;
  block.address = region_ + (values[0] << granule_bits_);
  block.size = (index + 1 < count_ ? std::min(address(index + 1), node->end()) : node->end()) - block.address;
  block.requested = block.size - values[1];
  block.number = values[2] | values[3] << count_bits;
  block.tag = {static_cast<Category>(values[4]), static_cast<std::uint32_t>(values[5])};
  block.stream = streams()[values[stream_field]];
  return block;
}

}  // namespace poolgrad
