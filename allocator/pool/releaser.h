// Giving pages back to the device. The rule is one: of all free blocks of both arenas that have a whole handle, the one
// goes first that was given back longest ago (Releaser::least_recently_used); of it, whole handles from its upper end.
// What goes with age goes by the ages of the pages themselves (PageAges).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/pool/page_supply.h"

namespace poolgrad {

/// Called with the pool's mutex held. Functions that take the lock may give it up meanwhile.
class Releaser {
 public:
  Releaser(Ground& ground, Arenas& arenas, StreamLedger& ledger, const PageSupply& pages)
      : ground_(ground), arenas_(arenas), ledger_(ledger), pages_(pages) {}

  /// Returns cached pages to the device until `bytes` are released or none is left; the bytes released.
  std::size_t release(PoolLock& lock, std::size_t bytes);
  /// As many as the need lacks, by the budget or on the device; all, where addresses are what it lacks.
  std::size_t release_for(PoolLock& lock, const Need& need);
  /// Those that have reached the age of AllocatorConfig::decay or decay_ms, where anything may have.
  void release_decayed(PoolLock& lock) {
    if (ground_.settings.decays && decay_is_due()) release_old(lock);
  }
  /// Claimed, but in no handle that a release could return.
  std::size_t pinned_bytes() const { return ground_.claimed_bytes() - arenas_.releasable_bytes(); }

  /// Bytes of the program's heap; gives back what is not needed now.
  std::size_t bookkeeping_bytes() const { return tick_marks_.capacity() * sizeof(TickMark); }
  void tidy() { tick_marks_.shrink_to_fit(); }
  /// As new.
  void restart();

 private:
  struct TickMark {
    std::chrono::steady_clock::time_point time;
    std::uint64_t tick;
  };

  /// A free block with whole handles.
  struct Candidate {
    Arena* arena;
    Block* block;
    std::size_t bytes;  // in the handles

    static bool goes_before(const Candidate& a, const Candidate& b);
    static bool goes_after(const Candidate& a, const Candidate& b) { return goes_before(b, a); }
  };

  /// Those that go first, as many as hold `bytes`, or all: a heap by goes_after().
  std::vector<Candidate> least_recently_used(std::size_t bytes, const Streams& refused);
  /// Gives busy pages back; their bytes, or 0 if the work on them cannot be waited for: then their stream is refused.
  std::size_t release_pages(PoolLock& lock, Arena& arena, Block* pages, Streams& refused);
  bool join_mixed_handles(PoolLock& lock, Streams& refused);
  bool decay_is_due();
  void release_old(PoolLock& lock);

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  const PageSupply& pages_;
  std::uint64_t decay_due_ = 0;       // the tick before which nothing reaches its age
  std::uint64_t decayed_mark_ = 0;    // what was given back up to this tick has reached its age in milliseconds
  std::vector<TickMark> tick_marks_;  // of the last milliseconds in which pages decay, a sixteenth of these apart
};

}  // namespace poolgrad
