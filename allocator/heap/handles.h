// Which handle of physical memory is behind which addresses. Memory that is not divisible, a GPU's, comes in handles of
// any number of pages, and goes only as whole ones. Pools see to it with a HandleMap; the devices look every range up
// in their MappedHandles before they touch it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace poolgrad {

/// The handles in which `bytes` are committed: of `most` bytes, the last of what is left. All are multiples of a page.
std::vector<std::size_t> handle_sizes(std::size_t bytes, std::size_t most);

/// The handle behind each page of an address window. Divisible memory is the special case where every page is its own
/// handle.
class HandleMap {
 public:
  /// For addresses in [address, address + bytes), nothing behind them. `page` is a power of two.
  HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible);

  /// Handles of these sizes now start at `address`, one after the other.
  void set(std::uintptr_t address, const std::vector<std::size_t>& sizes);
  /// Nothing is behind [address, address + bytes) any more.
  void clear(std::uintptr_t address, std::size_t bytes);
  /// The memory at [from, from + bytes), whole handles, is now at `to` of the window of `target`.
  void move(std::uintptr_t from, HandleMap& target, std::uintptr_t to, std::size_t bytes);
  /// Where the handle starts that holds a committed address, and where it ends.
  std::uintptr_t start_of(std::uintptr_t address) const { return address_of(last_start(page_of(address))); }
  std::uintptr_t end_of(std::uintptr_t address) const { return address_of(next_start(page_of(address) + 1)); }
  /// The lowest start of a handle at `address` or above it, where the byte at `address` is committed.
  std::uintptr_t round_up(std::uintptr_t address) const {
    return address_of(next_start(page_of(address + (std::uintptr_t{1} << page_bits_) - 1)));
  }
  /// The highest end of a handle at `address` or below it, where the byte before `address` is committed.
  std::uintptr_t round_down(std::uintptr_t address) const { return address_of(last_start(page_of(address))); }
  /// Bytes held.
  std::size_t bytes() const { return starts_.capacity() * sizeof(std::uint64_t); }

 private:
  /// The pages nearest to this one, or itself, where something starts; the ends of handles are among them.
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
  // A bit for each page where a handle starts, and for each without memory; empty where memory is divisible.
  std::vector<std::uint64_t> starts_;
};

/// The handles of a device. Not synchronised. Throws DeviceError `[operation] reason` and changes nothing where a range
/// is not what it must be. Taking and moving handles needs no memory.
class MappedHandles {
 public:
  struct Handle {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::uint64_t id = 0;
  };
  using Handles = std::map<std::uintptr_t, Handle>;  // by address

  /// A handle is now behind its addresses; nothing else may be.
  void add(const Handle& handle, const char* operation);
  /// Throws unless nothing is behind [address, address + bytes).
  void check_free(std::uintptr_t address, std::size_t bytes, const char* operation) const;
  /// The handles behind [address, address + bytes), lowest first. Throws if there is a gap, or if a handle reaches
  /// beyond the range.
  std::vector<Handle> whole(std::uintptr_t address, std::size_t bytes, const char* operation) const;
  /// The handles that have a part of [address, address + bytes), lowest first. Throws if there is a gap.
  std::vector<Handle> behind(std::uintptr_t address, std::size_t bytes, const char* operation) const;
  /// All of them.
  const Handles& all() const { return handles_; }
  /// As whole(), and they are gone from here.
  Handles take(std::uintptr_t address, std::size_t bytes, const char* operation);
  /// Those behind [from, from + bytes) are now behind the same range at `to`, where nothing may be.
  void move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes, const char* operation);
  /// A handle that covers `address` becomes two of the same id, the second from `address` on: for memory that is
  /// divisible.
  void split(std::uintptr_t address);

  std::size_t count() const { return handles_.size(); }

 private:
  void check_whole(std::uintptr_t address, std::size_t bytes, const char* operation) const;

  Handles handles_;
};

}  // namespace poolgrad
