// What one thread asks of a pool again and again. A training step makes the same requests in the same order each time,
// and the pool, which places deterministically, gives them the same addresses. Once a sequence of allocations and frees
// has come twice in a row with the same addresses and nothing else has touched the pool meanwhile, the pool is as it
// was before the second time, so the third time will end the same way: the answers are given from memory, of any size,
// without lock, search or bookkeeping. Whoever looks at the pool lets it catch up first (PoolMutex), so that nobody
// can tell the difference; what does not follow the routine ends it.
//
// How it is found: each act is looked up, and those after it are compared with what followed it then. When the last
// `length` acts have all matched those `length` acts before them, the routine is known.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "allocator/memory_scope.h"
#include "allocator/stream.h"

namespace poolgrad {

/// The history of one thread's acts, and the routine in it. Guarded as the fields of ThreadCache.
class Routine {
 public:
  /// An allocation, or the free of a block, of which the alignment says how it was rounded. What is compared with a
  /// request lies apart, so that nothing need be taken to pieces for it.
  struct Act {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::uint32_t alignment = 0;
    std::uint32_t scope = 0;
    std::uint32_t age = 0;  // of a block that is freed: allocations of its kind since its own
    std::uint8_t kind = 0;  // its category, and whether it is a free

    static constexpr std::size_t most_alignment = std::size_t{1} << 31;

    static Act allocation(std::uintptr_t address, std::size_t bytes, std::size_t alignment, Tag tag) {
      return {address,   bytes, static_cast<std::uint32_t>(alignment),
              tag.scope, 0,     static_cast<std::uint8_t>(tag.category)};
    }
    static Act free(std::uintptr_t address, std::size_t bytes, std::size_t alignment, Tag tag, std::uint32_t age) {
      Act act = allocation(address, bytes, alignment, tag);
      act.kind |= free_bit;
      act.age = age;
      return act;
    }
    bool is_free() const { return (kind & free_bit) != 0; }
    Category category() const { return static_cast<Category>(kind & ~free_bit); }
    Tag tag() const { return {category(), scope}; }

    friend bool operator==(const Act&, const Act&) = default;

   private:
    static constexpr std::uint8_t free_bit = 0x80;
  };

  /// While it is followed: the next act, if this is it; nullptr if it is not, or if the pool should catch up.
  const Act* allocation(std::size_t bytes, std::size_t alignment, Stream stream, Tag tag) noexcept {
    const Act& act = *next_;
    const bool same = act.bytes == bytes && act.alignment == alignment &&
                      act.kind == static_cast<std::uint8_t>(tag.category) && act.scope == tag.scope &&
                      stream_ == stream;
    return same ? advance(act) : nullptr;
  }
  const Act* free(const void* pointer, std::size_t bytes, Stream stream) noexcept {
    const Act& act = *next_;
    const bool same = act.address == reinterpret_cast<std::uintptr_t>(pointer) && act.bytes == bytes && act.is_free() &&
                      stream_ == stream;
    return same ? advance(act) : nullptr;
  }

  /// Acts that were answered from memory since the pool last caught up.
  std::uint64_t count_answered() const { return catch_up_after_ - left_; }
  std::uint64_t length() const { return length_; }
  /// Whether there is a routine, or the last acts were those of another time.
  bool repeats() const { return length_ != 0 || run_ >= least_run / 4; }
  Stream stream() const { return stream_; }
  /// The act that was answered `back` acts ago, from 1: the newest.
  const Act& answered(std::uint64_t back) const { return at(first_ + (cursor() + length_ - back % length_) % length_); }
  /// The pool has carried out what was answered. `changes` as for observe().
  void caught_up(std::uint64_t changes) noexcept {
    answered_in_all_ += count_answered();
    left_ = catch_up_after_;
    changes_ = changes;
  }

  /// An act that the pool has carried out. `before` and `after` count all changes of the pool's arenas so far. True if
  /// the acts that follow may be answered from memory.
  bool observe(const Act& act, Stream stream, std::uint64_t before, std::uint64_t after) noexcept;
  /// Something else has changed what is live, or on whose behalf.
  void disturb() noexcept { changes_ = never; }
  /// What the pool kept account with was given back: a routine, for which there must always be enough, is known only
  /// once it has come twice from here on.
  void resettle() noexcept { settled_ = here_; }
  /// Whether it is worth to observe at the allocation tick `now`. What does not repeat itself is left alone for a
  /// while. The history takes at most `bytes`.
  bool attentive(std::uint64_t now, std::size_t bytes) noexcept {
    most_bytes_ = bytes;
    return patience_ > 0 || wakes(now);
  }
  /// Forgets everything and takes no memory.
  void forget() noexcept;
  /// The same, where ticks are counted anew.
  void restart() noexcept {
    forget();
    rests_until_ = 0;
  }
  std::size_t bookkeeping_bytes() const { return size_ * sizeof(Act) + notes_.capacity() * sizeof(std::uint32_t); }

  /// For traces: the stream's index there and its present ticket.
  std::uint32_t trace_stream = 0;
  std::uint64_t ticket = 0;

 private:
  static constexpr std::uint64_t never = UINT64_MAX;
  static constexpr std::uint64_t least_run = 256;  // longer than what a step repeats within itself, mostly
  static constexpr std::uint64_t most_acts = std::uint64_t{1} << 16;
  static constexpr std::uint64_t least_acts = std::uint64_t{1} << 11;

  [[gnu::always_inline]] const Act* advance(const Act& act) noexcept {
    if (left_ == 0) return nullptr;
    --left_;
    step();
    return &act;
  }
  [[gnu::always_inline]] void step() noexcept {
    if (++next_ == ring_end_) next_ = acts_.get();
    if (next_ == end_) next_ = &at(first_);
  }
  /// How much of the routine was followed this time.
  std::uint64_t cursor() const noexcept { return static_cast<std::uint64_t>(next_ - &at(first_)) & (size_ - 1); }
  bool wakes(std::uint64_t now) noexcept;
  Act& at(std::uint64_t position) const noexcept { return acts_.get()[position & (size_ - 1)]; }
  bool is_kept(std::uint64_t position) const noexcept { return position < here_ && here_ - position <= size_; }
  void append(const Act& act) noexcept;
  void leave() noexcept;
  void match(const Act& act) noexcept;
  bool grow() noexcept;

  struct Free {
    void operator()(Act* acts) const { std::free(acts); }
  };

  std::unique_ptr<Act, Free> acts_;  // a ring; at its largest from the start, for the system gives what is touched
  std::uint64_t size_ = 0;           // of the ring, a power of two: the act at position i is at i % size_
  std::uint64_t first_ = 0;          // of the routine
  std::uint64_t length_ = 0;         // 0: there is none
  const Act* next_ = nullptr;        // of the routine; at
  const Act* end_ = nullptr;         // its first follows, at
  const Act* ring_end_ = nullptr;    // the first of the ring
  Stream stream_;
  std::uint64_t left_ = 0;             // acts that may be answered until the pool catches up,
  std::uint64_t catch_up_after_ = 0;   // as it does so often, so that its ages and counts go on
  std::uint64_t answered_in_all_ = 0;  // of this routine

  std::vector<std::uint32_t> notes_;  // by hash of an act, where one in a few was last
  std::uint64_t here_ = 1;            // the next position
  std::uint64_t since_ = 1;           // nothing but acts of one stream happened from here on
  std::uint64_t settled_ = 1;         // and the pool has kept what it needed for them from here on
  std::uint64_t match_ = 0;           // what was there should come next; 0: nothing is expected
  std::uint64_t run_ = 0;             // acts that have matched so far
  std::uint64_t least_run_ = least_run;
  std::uint64_t changes_ = never;
  std::size_t most_bytes_ = 0;
  std::uint64_t capacity_ = least_acts;
  std::int64_t patience_ = 0;  // acts that may still be observed in vain
  std::uint64_t rests_until_ = 0;
};

}  // namespace poolgrad
