// A map from addresses to values, for blocks that are live at one moment of a trace: a hash table with linear probing
// and no tombstones. The salt (salted_map.h) also randomizes the order of for_each().
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/base/salted_map.h"

namespace poolgrad {

template <typename Value>
class AddressMap {
 public:
  /// Null if absent. Valid until the next change.
  Value* find(std::uint64_t address) {
    if (slots_.empty()) return nullptr;
    for (std::size_t i = home(address); slots_[i].used; i = (i + 1) & mask()) {
      if (slots_[i].address == address) return &slots_[i].value;
    }
    return nullptr;
  }

  /// The address must be absent.
  void insert(std::uint64_t address, Value value) {
    if (2 * (size_ + 1) > slots_.size()) rehash();
    place(address, std::move(value));
    ++size_;
  }

  /// The address must be present.
  void erase(std::uint64_t address) {
    std::size_t hole = home(address);
    while (slots_[hole].address != address) hole = (hole + 1) & mask();
    for (std::size_t i = (hole + 1) & mask(); slots_[i].used; i = (i + 1) & mask()) {
      // An entry whose home lies behind the hole must stay.
      if (((i - home(slots_[i].address)) & mask()) < ((i - hole) & mask())) continue;
      slots_[hole] = std::move(slots_[i]);
      hole = i;
    }
    slots_[hole].used = false;
    --size_;
  }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (slot.used) visit(slot.address, slot.value);
  }

 private:
  struct Slot {
    std::uint64_t address = 0;
    bool used = false;
    Value value{};
  };

  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t home(std::uint64_t address) const { return SaltedHash()(address) & mask(); }
  void place(std::uint64_t address, Value value) {
    std::size_t i = home(address);
    while (slots_[i].used) i = (i + 1) & mask();
    slots_[i] = Slot{address, true, std::move(value)};
  }
  void rehash() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    for (Slot& slot : old)
      if (slot.used) place(slot.address, std::move(slot.value));
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t size_ = 0;
};

}  // namespace poolgrad
