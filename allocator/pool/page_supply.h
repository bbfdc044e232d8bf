// Provides pages: reserves addresses, commits memory within the budget, and moves free pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/pool/stream_ledger.h"

namespace poolgrad {

/// Requires the pool's mutex. Functions that take the lock may release it meanwhile.
class PageSupply {
 public:
  PageSupply(Ground& ground, Arenas& arenas, StreamLedger& ledger);

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
  std::size_t page_deficit(const Need& need) const;

  /// Commits pages for the request within the limits of the budget and the device. Returns the bytes, with need.block
  /// set; or 0, with need.block set if other threads freed enough.
  std::size_t commit(PoolLock& lock, Need& need);
  /// Bytes that stitch() may move; 0 if new pages are the better choice.
  std::size_t stitchable_bytes(const Need& need) const;
  /// Moves free handles to one range of addresses for the request; returns the bytes moved.
  std::size_t stitch(PoolLock& lock, Need& need);

 private:
  /// Records that the budget or the device refused memory, so that cached memory must be released or moved.
  void note_refused(Need& need) {
    was_short_ = true;
    if (!std::exchange(need.refused, true)) ++ground_.accounts.num_alloc_retries;
  }
  bool add_window(PoolLock& lock, Arena& arena, Need& need);
  /// Returns addresses without memory to the device; false if there are none.
  bool remove_empty_windows(PoolLock& lock);
  /// The unit to which the end of a growth is rounded up.
  std::size_t growth_step(const Need& need) const;
  std::size_t largest_handle(const Need& need) const;
  /// Returns false, or throws, if the device does not commit all of them; then releases the `committed` bytes.
  bool commit_handles(std::uintptr_t address, const std::vector<std::size_t>& sizes, std::size_t& committed);
  /// Commits the planned pages and frees them. Returns false if the device has no memory.
  bool commit_growth(PoolLock& lock, Need& need, Arena& arena, const Arena::Growth& growth);
  /// Starts the age of the block's new pages now.
  void start_age(Block* block) noexcept;
  /// Moves free handles of at most `bytes` to the address `to` inside `target`; returns the bytes moved. Skips streams
  /// that refuse waits.
  std::size_t move_handles(PoolLock& lock, std::uintptr_t to, std::size_t bytes, const Block* target, Streams& refused);

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  std::size_t budget_;
  bool was_short_ = false;
  bool can_move_ = true;  // until the device refuses to move memory
};

}  // namespace poolgrad
