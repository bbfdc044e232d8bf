// Provides pages: reserves addresses, commits memory within the budget, and moves free pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/pool/stream_tracker.h"

namespace poolgrad {

/// Requires the pool's mutex. Functions that take the lock may release it meanwhile.
class PageProvider {
 public:
  PageProvider(PoolContext& context, Arenas& arenas, StreamTracker& tracker);

  /// The limit of reserved bytes.
  std::size_t budget() const { return budget_; }
  void set_budget(std::size_t bytes) {
    budget_ = bytes;
    was_short_ = false;
  }
  /// Whether, since the budget was set, the budget or the device refused or shortened a commit.
  bool was_short() const { return was_short_; }
  std::size_t unused_budget() const;
  /// Bytes of new pages that the request needs.
  std::size_t page_deficit(const AllocationAttempt& attempt) const;

  /// Commits pages for the request within the limits of the budget and the device. Returns the bytes, with
  /// attempt.block set; or 0, with attempt.block set if other threads freed enough.
  std::size_t commit(PoolLock& lock, AllocationAttempt& attempt);
  /// Bytes that stitch() may move; 0 if new pages are the better choice.
  std::size_t stitchable_bytes(const AllocationAttempt& attempt) const;
  /// Moves free handles to one range of addresses for the request; returns the bytes moved.
  std::size_t stitch(PoolLock& lock, AllocationAttempt& attempt);

 private:
  /// Records that the budget or the device refused memory, so that cached memory must be released or moved.
  void note_refused(AllocationAttempt& attempt) {
    was_short_ = true;
    if (!std::exchange(attempt.refused, true)) ++context_.accounts.num_alloc_retries;
  }
  bool add_window(PoolLock& lock, Arena& arena, AllocationAttempt& attempt);
  /// Returns addresses without memory to the device; false if there are none.
  bool remove_empty_windows(PoolLock& lock);
  /// The unit to which the end of a growth is rounded up.
  std::size_t growth_step(const AllocationAttempt& attempt) const;
  std::size_t largest_handle(const AllocationAttempt& attempt) const;
  /// Returns false, or throws, if the device does not commit all of them; then releases the `committed` bytes.
  bool commit_handles(std::uintptr_t address, const std::vector<std::size_t>& sizes, std::size_t& committed);
  /// Commits the planned pages and frees them. Returns false if the device has no memory.
  bool commit_growth(PoolLock& lock, AllocationAttempt& attempt, Arena& arena, const Arena::Growth& growth);
  /// Starts the age of the block's new pages now.
  void start_age(Block* block) noexcept;
  /// Moves free handles of at most `bytes` to the address `to` inside `target`; returns the bytes moved. Skips streams
  /// that refuse waits.
  std::size_t move_handles(PoolLock& lock, std::uintptr_t to, std::size_t bytes, const Block* target, Streams& refused);

  PoolContext& context_;
  Arenas& arenas_;
  StreamTracker& tracker_;
  std::size_t budget_;
  bool was_short_ = false;
  bool can_move_ = true;  // until the device refuses to move memory
};

}  // namespace poolgrad
