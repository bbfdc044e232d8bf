#include "allocator/handle_map.h"

#include <bit>

namespace poolgrad {

std::vector<std::size_t> handle_sizes(std::size_t bytes, std::size_t most) {
  std::vector<std::size_t> sizes(bytes / most, most);
  if (bytes % most != 0) sizes.push_back(bytes % most);
  return sizes;
}

HandleMap::HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible)
    : address_(address),
      page_(page),
      // With one more, at which the last handle ends.
      starts_(divisible ? 0 : bytes / page / 64 + 1, ~std::uint64_t{0}) {}

void HandleMap::set(std::uintptr_t address, const std::vector<std::size_t>& sizes) {
  if (starts_.empty()) return;
  std::size_t page = page_of(address);
  for (const std::size_t size : sizes) {
    for (const std::size_t end = page + size / page_, first = page; page != end; ++page) {
      set_starts(page, page == first);
    }
  }
}

void HandleMap::clear(std::uintptr_t address, std::size_t bytes) {
  if (starts_.empty()) return;
  const std::size_t end = page_of(address + bytes);
  for (std::size_t page = page_of(address); page != end; ++page) set_starts(page, true);
}

void HandleMap::move(std::uintptr_t from, HandleMap& target, std::uintptr_t to, std::size_t bytes) {
  if (starts_.empty()) return;
  for (std::size_t offset = 0; offset < bytes; offset += page_) {
    target.set_starts(target.page_of(to + offset), starts(page_of(from + offset)));
  }
}

std::uintptr_t HandleMap::start_of(std::uintptr_t address) const {
  std::size_t page = page_of(address);
  if (starts_.empty()) return address_ + page * page_;
  std::uint64_t word = starts_[page / 64] << (63 - page % 64) >> (63 - page % 64);  // up to this page
  while (word == 0) word = starts_[(page = page / 64 * 64 - 1) / 64];
  return address_ + (page / 64 * 64 + 63 - static_cast<std::size_t>(std::countl_zero(word))) * page_;
}

std::uintptr_t HandleMap::end_of(std::uintptr_t address) const {
  std::size_t page = page_of(address) + 1;
  if (starts_.empty()) return address_ + page * page_;
  std::uint64_t word = starts_[page / 64] >> (page % 64) << (page % 64);  // from this page on
  while (word == 0) word = starts_[(page = (page / 64 + 1) * 64) / 64];
  return address_ + (page / 64 * 64 + static_cast<std::size_t>(std::countr_zero(word))) * page_;
}

}  // namespace poolgrad
