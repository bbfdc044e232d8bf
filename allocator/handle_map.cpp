#include "allocator/handle_map.h"

#include <algorithm>
#include <bit>

namespace poolgrad {

std::vector<std::size_t> handle_sizes(std::uintptr_t address, std::size_t bytes, std::size_t page) {
  constexpr std::size_t largest = std::size_t{64} << 20;
  constexpr std::size_t share = 16;
  const std::size_t most = std::max(page, std::min(largest, std::bit_floor(bytes / share)));
  std::vector<std::size_t> sizes;
  while (bytes != 0) {
    const std::size_t natural = address & -address;
    sizes.push_back(std::min({most, natural, std::bit_floor(bytes)}));
    address += sizes.back();
    bytes -= sizes.back();
  }
  return sizes;
}

HandleMap::HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible)
    : address_(address),
      page_(page),
      logs_(divisible ? 0 : bytes / page, static_cast<std::uint8_t>(std::countr_zero(page))) {}

void HandleMap::set(std::uintptr_t address, const std::vector<std::size_t>& sizes) {
  if (logs_.empty()) return;
  for (const std::size_t size : sizes) {
    const auto first = logs_.begin() + static_cast<std::ptrdiff_t>((address - address_) / page_);
    std::fill_n(first, size / page_, static_cast<std::uint8_t>(std::countr_zero(size)));
    address += size;
  }
}

void HandleMap::move(std::uintptr_t from, HandleMap& target, std::uintptr_t to, std::size_t bytes) {
  if (logs_.empty()) return;
  for (std::size_t offset = 0; offset < bytes; offset += page_) {
    target.logs_[(to + offset - target.address_) / page_] = logs_[(from + offset - address_) / page_];
  }
}

std::uintptr_t HandleMap::round_up(std::uintptr_t address) const {
  const std::size_t size = size_at(address);
  return (address + size - 1) & ~(size - 1);
}

std::uintptr_t HandleMap::round_down(std::uintptr_t address) const { return address & ~(size_at(address - 1) - 1); }

}  // namespace poolgrad
