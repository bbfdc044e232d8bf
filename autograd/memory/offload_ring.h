// Which part of a buffer holds what: a ring that grows and shrinks at both ends.
#pragma once

#include <cstddef>
#include <list>
#include <optional>

namespace poolgrad {

/// Slots in the order in which their contents will be left behind: a forward pass adds new ones at the end, and may
/// take room from the oldest; its backward uses them up from that end, and reads ahead at the other. Slots are
/// contiguous and aligned to 64 bytes; together they are one window that may wrap around the end of the buffer.
/// Bookkeeping alone.
template <class Owner>
class OffloadRing {
 public:
  struct Slot {
    std::size_t offset, bytes;
    Owner* owner;  // nullptr: given back, but neither end of the window
  };
  using Place = typename std::list<Slot>::iterator;

  explicit OffloadRing(std::size_t capacity) : capacity_(capacity) {}

  std::size_t capacity() const { return capacity_; }
  bool empty() const { return slots_.empty(); }
  Slot& oldest() { return slots_.front(); }

  /// Behind the newest slot; nothing where there is no room.
  std::optional<Place> add_newest(std::size_t bytes, Owner* owner) {
    const std::size_t needed = rounded(bytes), head = slots_.empty() ? 0 : slots_.back().offset + slots_.back().bytes;
    const std::size_t tail = slots_.empty() ? 0 : slots_.front().offset;
    const std::size_t end = wraps() ? tail : capacity_;
    if (needed <= end - head) return slots_.insert(slots_.end(), {head, needed, owner});
    if (wraps() || needed > tail) return std::nullopt;
    return slots_.insert(slots_.end(), {0, needed, owner});
  }
  /// Before the oldest slot; nothing where there is no room.
  std::optional<Place> add_oldest(std::size_t bytes, Owner* owner) {
    const std::size_t needed = rounded(bytes), head = slots_.empty() ? 0 : slots_.back().offset + slots_.back().bytes;
    const std::size_t tail = slots_.empty() ? 0 : slots_.front().offset;
    const std::size_t begin = wraps() ? head : 0;
    if (needed <= tail - begin) return slots_.insert(slots_.begin(), {tail - needed, needed, owner});
    if (wraps() || needed > capacity_ - head) return std::nullopt;
    return slots_.insert(slots_.begin(), {capacity_ - needed, needed, owner});
  }
  void give_back(Place place) {
    place->owner = nullptr;
    while (!slots_.empty() && slots_.front().owner == nullptr) slots_.pop_front();
    while (!slots_.empty() && slots_.back().owner == nullptr) slots_.pop_back();
  }

 private:
  static std::size_t rounded(std::size_t bytes) { return (bytes / 64 + (bytes % 64 != 0 || bytes == 0 ? 1 : 0)) * 64; }
  bool wraps() const { return !slots_.empty() && slots_.back().offset < slots_.front().offset; }

  std::size_t capacity_;
  std::list<Slot> slots_;
};

}  // namespace poolgrad
