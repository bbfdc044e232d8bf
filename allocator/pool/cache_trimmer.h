// Releases pages to the device. There is one rule: of all free blocks of both arenas with a whole handle, the oldest
// free goes first (CacheTrimmer::least_recently_used), by whole handles from its upper end. Decay uses the ages of the
// pages themselves (PageAges).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/pool/page_provider.h"

namespace poolgrad {

/// Requires the pool's mutex. Functions that take the lock may release it meanwhile.
class CacheTrimmer {
 public:
  CacheTrimmer(PoolContext& context, Arenas& arenas, StreamTracker& tracker, const PageProvider& pages)
      : context_(context), arenas_(arenas), tracker_(tracker), pages_(pages) {}

  /// Releases cached pages to the device until `bytes` are released or none is left; returns the bytes released.
  std::size_t release(PoolLock& lock, std::size_t bytes);
  /// Releases the bytes that the request lacks, by the budget or on the device; all, if it lacks addresses.
  std::size_t release_for(PoolLock& lock, const AllocationAttempt& attempt);
  /// Releases pages older than AllocatorConfig::decay or decay_ms, if there can be any.
  void release_decayed(PoolLock& lock) {
    if (context_.settings.decays && decay_is_due()) release_old(lock);
  }
  /// Reserved bytes in handles that a release cannot return.
  std::size_t pinned_bytes() const { return context_.claimed_bytes() - arenas_.releasable_bytes(); }

  /// Heap bytes; frees unused memory.
  std::size_t bookkeeping_bytes() const { return tick_marks_.capacity() * sizeof(TickMark); }
  void tidy() { tick_marks_.shrink_to_fit(); }
  /// Resets all state.
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
    std::size_t bytes;  // in whole handles

    static bool goes_before(const Candidate& a, const Candidate& b);
    static bool goes_after(const Candidate& a, const Candidate& b) { return goes_before(b, a); }
  };

  /// The oldest candidates that hold `bytes`, or all: a heap by goes_after().
  std::vector<Candidate> least_recently_used(std::size_t bytes, const Streams& refused);
  /// Releases busy pages; returns their bytes, or 0, adding their stream to `refused`, if the device refuses to wait
  /// for it.
  std::size_t release_pages(PoolLock& lock, Arena& arena, Block* pages, Streams& refused);
  bool join_mixed_handles(PoolLock& lock, Streams& refused);
  bool decay_is_due();
  void release_old(PoolLock& lock);

  PoolContext& context_;
  Arenas& arenas_;
  StreamTracker& tracker_;
  const PageProvider& pages_;
  std::uint64_t decay_due_ = 0;       // no page is old enough before this tick
  std::uint64_t decayed_mark_ = 0;    // frees up to this tick are old enough in milliseconds
  std::vector<TickMark> tick_marks_;  // of the last milliseconds in which pages decay, a sixteenth of these apart
};

}  // namespace poolgrad
