// The handles of physical memory behind addresses. Indivisible memory, as on a GPU, comes in handles of any number of
// pages, which are released only as a whole. Pools use a HandleMap for this; devices check every range against their
// MappedHandles.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace poolgrad {

/// The handle sizes for a commit of `bytes`: `most` bytes each, and the rest. All are multiples of a page.
std::vector<std::size_t> handle_sizes(std::size_t bytes, std::size_t most);

/// The handle of each page of an address window. With divisible memory every page is its own handle.
class HandleMap {
 public:
  /// For addresses in [address, address + bytes), without memory. `page` is a power of two.
  HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible);

  /// Sets handles of these sizes from `address` on, one after the other.
  void set(std::uintptr_t address, const std::vector<std::size_t>& sizes);
  /// Removes all handles in [address, address + bytes).
  void clear(std::uintptr_t address, std::size_t bytes);
  /// Moves the whole handles at [from, from + bytes) to `to` in the window of `target`.
  void move(std::uintptr_t from, HandleMap& target, std::uintptr_t to, std::size_t bytes);
  /// Start and end of the handle that contains a committed address.
  std::uintptr_t start_of(std::uintptr_t address) const { return address_of(last_start(page_of(address))); }
  std::uintptr_t end_of(std::uintptr_t address) const { return address_of(next_start(page_of(address) + 1)); }
  /// The lowest handle start at or above `address`; the byte at `address` is committed.
  std::uintptr_t round_up(std::uintptr_t address) const {
    return address_of(next_start(page_of(address + (std::uintptr_t{1} << page_bits_) - 1)));
  }
  /// The highest handle end at or below `address`; the byte before `address` is committed.
  std::uintptr_t round_down(std::uintptr_t address) const { return address_of(last_start(page_of(address))); }
  /// Bytes held.
  std::size_t bytes() const { return starts_.capacity() * sizeof(std::uint64_t); }

 private:
  /// The nearest page with a start bit, at or after (or at or before) `page`. The ends of handles have one too.
  std::size_t next_start(std::size_t page) const {
    if (starts_.empty()) return page;
    std::uint64_t word = starts_[page / 64] >> (page % 64) << (page % 64);
    while (word == 0) word = starts_[(page = (page / 64 + 1) * 64) / 64];
    return page / 64 * 64 + static_cast<std::size_t>(std::countr_zero(word));
  }
  std::size_t last_start(std::size_t page) const {
    if (starts_.empty()) return page;
    std::uint64_t word = starts_[page / 64] << (63 - page % 64) >> (63 - page % 64);
    while (word == 0) word = starts_[(page = page / 64 * 64 - 1) / 64];
    return page / 64 * 64 + 63 - static_cast<std::size_t>(std::countl_zero(word));
  }
  void set_starts(std::size_t page, std::size_t end, bool value);
  std::size_t page_of(std::uintptr_t address) const { return (address - address_) >> page_bits_; }
  std::uintptr_t address_of(std::size_t page) const { return address_ + (page << page_bits_); }

  std::uintptr_t address_;
  unsigned page_bits_;
  // A bit for each page that starts a handle or has no memory; empty for divisible memory.
  std::vector<std::uint64_t> starts_;
};

/// The handles of a device. Not thread-safe. Throws DeviceError `[operation] reason`, changing nothing, for an invalid
/// range. take() and move() allocate no memory.
class MappedHandles {
 public:
  struct Handle {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::uint64_t id = 0;
  };
  using Handles = std::map<std::uintptr_t, Handle>;  // by address

  /// Adds a handle, which must not overlap others.
  void add(const Handle& handle, const char* operation);
  /// Throws if any handle overlaps [address, address + bytes).
  void check_free(std::uintptr_t address, std::size_t bytes, const char* operation) const;
  /// The handles of [address, address + bytes), lowest first. Throws if there is a gap, or if a handle exceeds the
  /// range.
  std::vector<Handle> whole(std::uintptr_t address, std::size_t bytes, const char* operation) const;
  /// The handles that overlap [address, address + bytes), lowest first. Throws if there is a gap.
  std::vector<Handle> behind(std::uintptr_t address, std::size_t bytes, const char* operation) const;
  /// All of them.
  const Handles& all() const { return handles_; }
  /// As whole(), and removes them.
  Handles take(std::uintptr_t address, std::size_t bytes, const char* operation);
  /// Moves the handles of [from, from + bytes) to `to`, where the range must be empty.
  void move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes, const char* operation);
  /// Splits a handle at `address` into two with the same id, for divisible memory.
  void split(std::uintptr_t address);

  std::size_t count() const { return handles_.size(); }

 private:
  void check_whole(std::uintptr_t address, std::size_t bytes, const char* operation) const;

  Handles handles_;
};

}  // namespace poolgrad
