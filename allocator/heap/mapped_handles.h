// Which handle of physical memory is behind which addresses. A GPU gives and takes memory in whole handles, so the
// devices that come in handles look every range up here before they touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace poolgrad {

/// Not synchronised. Throws DeviceError `[operation] reason` and changes nothing where a range is not what it must be.
/// Taking and moving handles needs no memory.
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
  /// The same, and they are gone from here.
  Handles take(std::uintptr_t address, std::size_t bytes, const char* operation);
  /// Those behind [from, from + bytes) are now behind the same range at `to`, where nothing may be.
  void move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes, const char* operation);
  /// A handle that covers `address` becomes two of the same id, the second from `address` on: for memory that is
  /// divisible.
  void split(std::uintptr_t address);

  bool empty() const { return handles_.empty(); }
  std::size_t count() const { return handles_.size(); }

 private:
  void check_whole(std::uintptr_t address, std::size_t bytes, const char* operation) const;

  Handles handles_;
};

}  // namespace poolgrad
