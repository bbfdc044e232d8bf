// Getting pages: addresses, memory behind them as the budget allows, and free pages moved to where they are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/pool/stream_ledger.h"

namespace poolgrad {

/// Called with the pool's mutex held. Functions that take the lock may give it up meanwhile.
class PageSupply {
 public:
  PageSupply(Ground& ground, Arenas& arenas, StreamLedger& ledger);

  /// Reserved bytes never become more.
  std::size_t budget() const { return budget_; }
  void set_budget(std::size_t bytes) {
    budget_ = bytes;
    was_short_ = false;
  }
  /// Whether the budget or the device has refused anything since the budget was set, or given less than was planned.
  bool was_short() const { return was_short_; }
  std::size_t unused_budget() const;
  /// Bytes of new pages that the need would take.
  std::size_t page_deficit(const Need& need) const;

  /// Commits pages for the need, as far as the budget and the device allow. The bytes, with need.block set; or 0, where
  /// others had freed what is needed with need.block set, too.
  std::size_t commit(PoolLock& lock, Need& need);
  /// Bytes that stitch() may move; 0 where new pages are the better choice.
  std::size_t stitchable_bytes(const Need& need) const;
  /// Moves free handles behind one run of addresses for the need; the bytes moved.
  std::size_t stitch(PoolLock& lock, Need& need);

 private:
  /// The budget or the device refuses new memory to the need, so what is cached has to go or to move.
  void note_refused(Need& need) {
    was_short_ = true;
    if (!std::exchange(need.refused, true)) ++ground_.accounts.num_alloc_retries;
  }
  bool add_window(PoolLock& lock, Arena& arena, Need& need);
  /// Gives addresses back to the device that no memory is behind; false if there are none.
  bool remove_empty_windows(PoolLock& lock);
  /// What the end of a growth is rounded up to.
  std::size_t growth_step(const Need& need) const;
  std::size_t largest_handle(const Need& need) const;
  /// False, or an exception, where the device does not give all of them: then it has back the `committed` bytes.
  bool commit_handles(std::uintptr_t address, const std::vector<std::size_t>& sizes, std::size_t& committed);
  /// Memory behind the planned pages, which are free then. False if the device has none.
  bool commit_growth(PoolLock& lock, Need& need, Arena& arena, const Arena::Growth& growth);
  /// The block's new pages are as if given back now.
  void start_age(Block* block) noexcept;
  /// Moves free handles of at most `bytes` to the address `to` inside `target`; the bytes moved. Streams whose work
  /// cannot be waited for are refused.
  std::size_t move_handles(PoolLock& lock, std::uintptr_t to, std::size_t bytes, const Block* target, Streams& refused);

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  std::size_t budget_;
  bool was_short_ = false;
  bool can_move_ = true;  // the device has not refused to move memory yet
};

}  // namespace poolgrad
