// Which physical handle is behind each page of an address window. Memory that is not divisible comes in handles, and
// goes only as whole ones; they are naturally aligned powers of two, so the size of a page's handle also tells where
// it starts. Divisible memory is the special case where every page is its own handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace poolgrad {

/// The sizes in which [address, address + bytes) is committed, in address order: the largest powers of two that are
/// naturally aligned, at most 64 MiB, and at most 1/16 of `bytes`, so that a block that stays pins little of what was
/// committed with it. `page` is the smallest handle; address and bytes are multiples of it.
std::vector<std::size_t> handle_sizes(std::uintptr_t address, std::size_t bytes, std::size_t page);

class HandleMap {
 public:
  /// For addresses in [address, address + bytes). `page` is a power of two.
  HandleMap(std::uintptr_t address, std::size_t bytes, std::size_t page, bool divisible);

  /// Handles of these sizes now start at `address`, one after the other.
  void set(std::uintptr_t address, const std::vector<std::size_t>& sizes);
  /// The memory at [from, from + bytes), whole handles, is now at `to` of the window of `target`.
  void move(std::uintptr_t from, HandleMap& target, std::uintptr_t to, std::size_t bytes);
  /// Bytes of the handle that holds a committed address.
  std::size_t size_at(std::uintptr_t address) const {
    return logs_.empty() ? page_ : std::size_t{1} << logs_[(address - address_) / page_];
  }
  /// The lowest start of a handle at `address` or above it, where the byte at `address` is committed.
  std::uintptr_t round_up(std::uintptr_t address) const;
  /// The highest end of a handle at `address` or below it, where the byte before `address` is committed.
  std::uintptr_t round_down(std::uintptr_t address) const;

 private:
  std::uintptr_t address_;
  std::size_t page_;
  std::vector<std::uint8_t> logs_;  // by page: log2 of its handle; empty where memory is divisible
};

}  // namespace poolgrad
