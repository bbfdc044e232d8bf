// The thread caches of a pool. Other parts of the pool access them only while all threads are stopped (StopTheWorld).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/pool/stream_tracker.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

/// Requires the pool's mutex unless noted.
class ThreadCaches final {
 public:
  ThreadCaches(PoolContext& context, Arenas& arenas, StreamTracker& tracker)
      : context_(context), arenas_(arenas), tracker_(tracker) {}

  /// Creates a cache for the calling thread; takes back the blocks of an ending thread's cache. Both take the pool's
  /// mutex.
  std::unique_ptr<ThreadCache> make_cache(Pool& pool);
  void retire(ThreadCache& cache) noexcept;
  const std::vector<ThreadCache*>& caches() const { return caches_; }
  /// Detaches the existing caches, which from now on belong to their threads alone. Takes the pool's mutex.
  std::vector<ThreadCache*> forget_caches() noexcept;
  /// In the child of a fork: reclaims the caches of all other threads.
  void keep_only_own() noexcept;
  /// While the lock is held, no cache is added or removed, and other threads do not look at the list.
  std::unique_lock<std::mutex> hold_still() { return std::unique_lock(caches_mutex_); }

  // Magazines.
  /// Caches a live block that its thread frees; returns false if the block must go to the arena.
  bool keep(ThreadCache* cache, Block* block);
  /// Takes a block of a chain in the depot for the request, busy; the rest of the chain goes to the thread's magazine.
  /// nullptr if there is none.
  Block* take(ThreadCache* cache, std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// Frees the blocks in the depot and in the magazines of a thread, or of all threads, to the arenas; returns the
  /// bytes.
  std::size_t drain(ThreadCache* cache);
  std::size_t drain_all();
  /// See CachingAllocator::begin_phase(): contents of magazines depend on earlier phases.
  void begin_phase();
  /// Drains the magazines of a stream whose id will be reused. Requires all threads stopped.
  void drain_stream(std::uint64_t stream);
  /// Bytes in all magazines and the depot. Needs no lock.
  std::size_t magazine_bytes() const;
  /// Tells magazines the current ticket of their stream, for traces.
  void set_ticket(std::uint64_t stream, std::uint64_t ticket);

  // Accounting.
  /// Marks the block live, with this number; neither records nor hashes it.
  void hand_out(Block* block, std::size_t bytes, Tag tag, std::uint64_t number) {
    block->requested = bytes;
    block->tag = tag;
    block->number = number;
    block->used_elsewhere = false;
    Arena::mark_live(block);
    context_.accounts.handed_out(*block);
  }
  RequestSequence& sequence_of(ThreadCache* cache) { return cache != nullptr ? cache->sequence : sequence_; }
  /// Adds the thread's hot-path counters to the accounts.
  void add_up(ThreadCache* cache) const {
    if (cache != nullptr) context_.accounts.add_up(cache->recent);
  }
  /// Over all threads. This and the functions below require all threads stopped.
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();
  /// Start and end the trace rings of all threads; at the end the recorder takes over the rings.
  void start_recording();
  void stop_recording();
  std::vector<const TraceRing*> rings() const;
  std::size_t bookkeeping_bytes() const;
  /// Releases unused memory.
  void tidy() noexcept;

 private:
  friend class StopTheWorld;

  /// Reclaims the cache of a thread that has exited.
  void absorb(ThreadCache& cache) noexcept;
  void return_from_cache(Block* block);
  /// The thread's magazine of the stream, made if needed; nullptr if out of memory.
  Magazine* magazine_of(ThreadCache& cache, std::uint64_t stream) noexcept;
  std::size_t drain_magazines(ThreadCache& cache);

  PoolContext& context_;
  Arenas& arenas_;
  StreamTracker& tracker_;
  RequestSequence sequence_{RequestSequence::no_cache};  // of threads without a cache
  std::uint64_t retired_hash_ = RequestSequence::start;  // of threads that have exited
  std::uint64_t next_cache_ = 0;
  Depot depot_;
  mutable std::mutex caches_mutex_;  // taken last; both mutexes guard the caches
  std::vector<ThreadCache*> caches_;
};

/// Stops all threads: for its lifetime no thread's cache changes, and the accounts are complete. Requires the pool's
/// mutex.
class StopTheWorld {
 public:
  explicit StopTheWorld(const ThreadCaches& caches);
  ~StopTheWorld();
  StopTheWorld(const StopTheWorld&) = delete;
  StopTheWorld& operator=(const StopTheWorld&) = delete;

 private:
  const ThreadCaches& caches_;
  const ThreadCache* own_;
};

}  // namespace poolgrad
