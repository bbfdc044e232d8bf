#include "allocator/mapped_handles.h"

#include <string>

#include "allocator/error.h"

namespace poolgrad {

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
  if (meets_next || meets_previous) fail(operation, "memory is already behind a part of the range", address, bytes);
}

void MappedHandles::add(const Handle& handle, const char* operation) {
  check_free(handle.address, handle.bytes, operation);
  handles_.emplace(handle.address, handle);
}

std::vector<MappedHandles::Handle> MappedHandles::whole(std::uintptr_t address, std::size_t bytes,
                                                        const char* operation) const {
  std::vector<Handle> found;
  std::size_t covered = 0;
  for (auto entry = handles_.find(address); covered < bytes; ++entry) {
    if (entry == handles_.end() || entry->first - address != covered) {
      fail(operation, "no handle starts where the range does, or memory is missing inside it", address, bytes);
    }
    if (entry->second.bytes > bytes - covered) {
      fail(operation, "the range ends inside a handle of " + std::to_string(entry->second.bytes) + " bytes", address,
           bytes);
    }
    covered += entry->second.bytes;
    found.push_back(entry->second);
  }
  return found;
}

void MappedHandles::remove(const std::vector<Handle>& handles) {
  for (const Handle& handle : handles) handles_.erase(handle.address);
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
