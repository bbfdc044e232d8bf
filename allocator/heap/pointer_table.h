// A map from keys to pointers: a hash table with open addressing and linear probing. A lookup is usually one cache
// miss, and memory is proportional to the number of pointers, for any keys. One writer at a time; concurrent readers
// are allowed.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace poolgrad {

/// Adds its bytes to `held`.
template <class T>
class PointerTable {
 public:
  explicit PointerTable(std::size_t& held) : held_(held), slots_(make(least_bits)) {}
  ~PointerTable() {
    forget_former();
    discard(slots_);
  }

  /// nullptr if absent. A concurrent reader may also get nullptr for an entry that is being moved; a pointer it finds
  /// is right.
  T* find(std::uint64_t key) const noexcept {
    const Slots& slots = *slots_.load(std::memory_order_acquire);
    for (std::size_t i = slots.home(key);; i = slots.after(i)) {
      const Slot& slot = slots[i];
      const std::uint64_t found = slot.key.load(std::memory_order_acquire);
      if (found == key + 1) {
        T* pointer = slot.pointer.load(std::memory_order_acquire);
        // A writer clears the key of a slot before it changes the slot.
        return slot.key.load(std::memory_order_relaxed) == found ? pointer : nullptr;
      }
      if (found == 0) return nullptr;
    }
  }

  std::size_t size() const noexcept { return size_; }
  /// Reserves memory for the next set(), and for later ones up to the largest size since trim(). Returns whether
  /// forget_former() would free memory.
  bool expect() {
    reserve(size_ + 1);
    return slots_.load(std::memory_order_relaxed)->former != nullptr;
  }
  /// Frees the slots from before the table grew. Requires that there are no concurrent readers.
  void forget_former() noexcept {
    Slots*& former = slots_.load(std::memory_order_relaxed)->former;
    while (former != nullptr) discard(std::exchange(former, former->former));
  }
  /// Sets or replaces an entry; replacing needs no memory.
  void set(std::uint64_t key, T* pointer) {
    Slots* slots = slots_.load(std::memory_order_relaxed);
    std::size_t i = slots->place(key);
    if ((*slots)[i].key.load(std::memory_order_relaxed) == 0) {
      if (!holds(slots->bits, size_ + 1)) {
        expect();
        slots = slots_.load(std::memory_order_relaxed);
        i = slots->place(key);
      }
      if (++size_ > most_) most_ = size_;
    }
    slots->put(i, key + 1, pointer);
  }
  /// Removes an entry; returns its pointer, or nullptr if absent.
  T* erase(std::uint64_t key) noexcept {
    Slots& slots = *slots_.load(std::memory_order_relaxed);
    std::size_t gap = slots.place(key);
    if (slots[gap].key.load(std::memory_order_relaxed) == 0) return nullptr;
    T* const gone = slots[gap].pointer.load(std::memory_order_relaxed);
    --size_;
    slots[gap].key.store(0, std::memory_order_release);
    // Moves later entries into the gap if their search would end there (Knuth, volume 3, 6.4, algorithm R).
    for (std::size_t i = slots.after(gap);; i = slots.after(i)) {
      const std::uint64_t follower = slots[i].key.load(std::memory_order_relaxed);
      if (follower == 0) return gone;
      if (slots.distance(slots.home(follower - 1), i) < slots.distance(gap, i)) continue;
      slots.put(gap, follower, slots[i].pointer.load(std::memory_order_relaxed));
      slots[i].key.store(0, std::memory_order_release);
      gap = i;
    }
  }
  /// Frees unused memory. Requires that there are no concurrent readers.
  void trim() noexcept {
    forget_former();
    most_ = size_;
    const unsigned bits = bits_for(size_);
    if (bits >= slots_.load(std::memory_order_relaxed)->bits) return;
    try {
      move_to(make(bits));
    } catch (const std::bad_alloc&) {
      return;
    }
    forget_former();
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> key{0};  // key + 1; 0: empty
    std::atomic<T*> pointer{nullptr};
  };
  // Followed by the array of slots.
  struct Slots {
    explicit Slots(unsigned its_bits) : bits(its_bits), mask((std::size_t{1} << its_bits) - 1) {
      std::uninitialized_value_construct_n(begin(), mask + 1);
    }
    std::size_t bytes() const { return bytes_for(bits); }
    Slot* begin() { return reinterpret_cast<Slot*>(this + 1); }
    Slot& operator[](std::size_t i) { return begin()[i]; }
    const Slot& operator[](std::size_t i) const { return reinterpret_cast<const Slot*>(this + 1)[i]; }
    std::size_t home(std::uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> (64 - bits); }
    std::size_t after(std::size_t i) const { return (i + 1) & mask; }
    std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & mask; }
    /// The slot of the key, or the empty slot for it.
    std::size_t place(std::uint64_t key) const {
      std::size_t i = home(key);
      while (true) {
        const std::uint64_t found = (*this)[i].key.load(std::memory_order_relaxed);
        if (found == 0 || found == key + 1) return i;
        i = after(i);
      }
    }
    void put(std::size_t i, std::uint64_t key_and_one, T* pointer) {
      (*this)[i].pointer.store(pointer, std::memory_order_release);
      (*this)[i].key.store(key_and_one, std::memory_order_release);
    }

    const unsigned bits;
    const std::size_t mask;
    Slots* former = nullptr;  // concurrent readers may still use it
  };

  static constexpr unsigned least_bits = 5;

  static std::size_t bytes_for(unsigned bits) { return sizeof(Slots) + (sizeof(Slot) << bits); }
  /// At most three quarters of the slots are in use.
  static bool holds(unsigned bits, std::size_t count) { return 4 * count <= (std::size_t{3} << bits); }
  static unsigned bits_for(std::size_t count) {
    unsigned bits = least_bits;
    while (!holds(bits, count)) ++bits;
    return bits;
  }
  Slots* make(unsigned bits) {
    auto* slots = new (::operator new(bytes_for(bits))) Slots(bits);
    held_ += slots->bytes();
    return slots;
  }
  void discard(Slots* slots) noexcept {
    held_ -= slots->bytes();
    ::operator delete(static_cast<void*>(slots));
  }
  void reserve(std::size_t count) {
    if (holds(slots_.load(std::memory_order_relaxed)->bits, count)) return;
    move_to(make(bits_for(count)));
  }
  void move_to(Slots* slots) noexcept {
    Slots* const former = slots_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i <= former->mask; ++i) {
      const std::uint64_t key = (*former)[i].key.load(std::memory_order_relaxed);
      if (key == 0) continue;
      slots->put(slots->place(key - 1), key, (*former)[i].pointer.load(std::memory_order_relaxed));
    }
    slots->former = former;
    slots_.store(slots, std::memory_order_release);
  }

  std::size_t& held_;
  std::atomic<Slots*> slots_;
  std::size_t size_ = 0;
  std::size_t most_ = 0;  // largest size since trim(), or reserved
};

}  // namespace poolgrad
