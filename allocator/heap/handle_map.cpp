#include "allocator/heap/handle_map.h"

#include <algorithm>

namespace poolgrad {

std::vector<std::size_t> handle_sizes(std::size_t bytes, std::size_t most) {
  std::vector<std::size_t> sizes(bytes / most, most);
  if (bytes % most != 0) sizes.push_back(bytes % most);
  return sizes;
}

HandleMap::HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible)
    : address_(address),
      page_bits_(static_cast<unsigned>(std::countr_zero(page))),
      // With one more, at which the last handle ends.
      starts_(divisible ? 0 : bytes / page / 64 + 1, ~std::uint64_t{0}) {}

void HandleMap::set_starts(std::size_t page, std::size_t end, bool value) {
  while (page < end) {
    const std::size_t count = std::min(end - page, 64 - page % 64);
    const std::uint64_t bits = ~std::uint64_t{0} >> (64 - count) << (page % 64);
    starts_[page / 64] = value ? starts_[page / 64] | bits : starts_[page / 64] & ~bits;
    page += count;
  }
}

void HandleMap::set(std::uintptr_t address, const std::vector<std::size_t>& sizes) {
  if (starts_.empty()) return;
  std::size_t page = page_of(address);
  for (const std::size_t size : sizes) {
    const std::size_t end = page + (size >> page_bits_);
    set_starts(page, page + 1, true);
    set_starts(page + 1, end, false);
    page = end;
  }
}

void HandleMap::clear(std::uintptr_t address, std::size_t bytes) {
  if (!starts_.empty()) set_starts(page_of(address), page_of(address + bytes), true);
}

void HandleMap::move(std::uintptr_t from, HandleMap& target, std::uintptr_t to, std::size_t bytes) {
  if (starts_.empty()) return;
  const std::size_t target_begin = target.page_of(to);
  const std::size_t end = page_of(from + bytes);
  target.set_starts(target_begin, target.page_of(to + bytes), false);
  for (std::size_t begin = page_of(from), page = begin; page < end; page = next_start(page + 1)) {
    target.set_starts(target_begin + (page - begin), target_begin + (page - begin) + 1, true);
  }
}

}  // namespace poolgrad
