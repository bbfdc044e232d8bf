#include "allocator/heap/handles.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/error.h"

namespace poolgrad {

std::vector<std::size_t> handle_sizes(std::size_t bytes, std::size_t most) {
  std::vector<std::size_t> sizes(bytes / most, most);
  if (bytes % most != 0) sizes.push_back(bytes % most);
  return sizes;
}

HandleMap::HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible)
    : address_(address),
      page_bits_(static_cast<unsigned>(std::countr_zero(page))),
      // One extra bit, for the end of the last handle.
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

namespace {

[[noreturn]] void fail(const char* operation, const std::string& reason, std::uintptr_t address, std::size_t bytes) {
  throw DeviceError("[" + std::string(operation) + "] " + reason + ": " + std::to_string(bytes) + " bytes at " +
                    std::to_string(address));
}

}  // namespace

void MappedHandles::check_free(std::uintptr_t address, std::size_t bytes, const char* operation) const {
  const auto after = handles_.upper_bound(address);
  const bool meets_next = after != handles_.end() && after->first - address < bytes;
  const bool meets_previous =
      after != handles_.begin() && address - std::prev(after)->first < std::prev(after)->second.bytes;
  if (meets_next || meets_previous) fail(operation, "part of the range is mapped already", address, bytes);
}

void MappedHandles::add(const Handle& handle, const char* operation) {
  check_free(handle.address, handle.bytes, operation);
  handles_.emplace(handle.address, handle);
}

void MappedHandles::check_whole(std::uintptr_t address, std::size_t bytes, const char* operation) const {
  std::size_t covered = 0;
  for (auto entry = handles_.find(address); covered < bytes; ++entry) {
    if (entry == handles_.end() || entry->first - address != covered) {
      fail(operation, "the range does not start at a handle, or part of it is not mapped", address, bytes);
    }
    if (entry->second.bytes > bytes - covered) {
      fail(operation, "the range ends inside a handle of " + std::to_string(entry->second.bytes) + " bytes", address,
           bytes);
    }
    covered += entry->second.bytes;
  }
}

std::vector<MappedHandles::Handle> MappedHandles::whole(std::uintptr_t address, std::size_t bytes,
                                                        const char* operation) const {
  check_whole(address, bytes, operation);
  std::vector<Handle> found;
  auto entry = handles_.find(address);
  for (std::size_t covered = 0; covered < bytes; covered += found.back().bytes) found.push_back((entry++)->second);
  return found;
}

std::vector<MappedHandles::Handle> MappedHandles::behind(std::uintptr_t address, std::size_t bytes,
                                                         const char* operation) const {
  std::vector<Handle> found;
  std::uintptr_t next = address;
  auto entry = handles_.upper_bound(address);
  if (entry != handles_.begin()) --entry;
  for (; next - address < bytes; ++entry) {
    if (entry == handles_.end() || entry->first > next || next - entry->first >= entry->second.bytes)
      fail(operation, "part of the range is not mapped", address, bytes);
    found.push_back(entry->second);
    next = entry->first + entry->second.bytes;
  }
  return found;
}

MappedHandles::Handles MappedHandles::take(std::uintptr_t address, std::size_t bytes, const char* operation) {
  check_whole(address, bytes, operation);
  Handles taken;
  const auto end = handles_.lower_bound(address + bytes);
  for (auto entry = handles_.lower_bound(address); entry != end;) taken.insert(handles_.extract(entry++));
  return taken;
}

void MappedHandles::move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes, const char* operation) {
  check_free(to, bytes, operation);
  check_whole(from, bytes, operation);
  auto entry = handles_.find(from);
  for (std::size_t moved = 0; moved < bytes;) {
    auto node = handles_.extract(entry++);  // the ranges are disjoint, so no handle lies in between
    moved += node.mapped().bytes;
    node.key() += to - from;
    node.mapped().address = node.key();
    handles_.insert(std::move(node));
  }
}

void MappedHandles::split(std::uintptr_t address) {
  const auto after = handles_.lower_bound(address);
  if (after == handles_.begin()) return;
  Handle& first = std::prev(after)->second;
  const std::size_t kept = address - first.address;
  if (kept >= first.bytes) return;
  handles_.emplace_hint(after, address, Handle{address, first.bytes - kept, first.id});
  first.bytes = kept;
}

}  // namespace poolgrad
