// The thread caches of a pool. The parts behind them see them only during a Standstill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/front/thread_cache.h"
#include "allocator/pool/stream_ledger.h"

namespace poolgrad {

/// Called with the pool's mutex held but for what says otherwise.
class Front final {
 public:
  Front(Ground& ground, Arenas& arenas, StreamLedger& ledger) : ground_(ground), arenas_(arenas), ledger_(ledger) {}

  /// A cache for the calling thread; what an ending thread's cache holds comes back. Both take the pool's mutex.
  std::unique_ptr<ThreadCache> make_cache(Pool& pool);
  void retire(ThreadCache& cache) noexcept;
  const std::vector<ThreadCache*>& caches() const { return caches_; }
  /// The caches that there were, which are their threads' alone from now on. Takes the pool's mutex.
  std::vector<ThreadCache*> forget_caches() noexcept;
  /// In the child of a fork: what other threads kept for themselves comes back to the pool.
  void keep_only_own() noexcept;
  /// No cache is added or removed, and nobody looks at them, as long as the lock is held.
  std::unique_lock<std::mutex> hold_still() { return std::unique_lock(caches_mutex_); }

  // Magazines.
  /// Keeps a live block that its thread gives back; false if it should go to the arena.
  bool keep(ThreadCache* cache, Block* block);
  /// Gives the blocks of a thread's magazines back to the arenas; those of all threads; the bytes.
  std::size_t drain(ThreadCache& cache);
  std::size_t drain_all();
  /// See CachingAllocator::begin_phase(): what magazines hold depends on what happened before.
  void begin_phase();
  /// The magazines of a stream whose name will mean another one. During a standstill.
  void drain_stream(std::uint64_t stream);
  /// Bytes that drain_all() would give now. Needs no lock.
  std::size_t magazine_bytes() const;
  /// Magazines know the present ticket of their stream, for traces.
  void set_ticket(std::uint64_t stream, std::uint64_t ticket);

  // What is counted.
  /// The block is live, with this number; nothing is recorded or hashed.
  void hand_out(Block* block, std::size_t bytes, Tag tag, std::uint64_t number) {
    block->requested = bytes;
    block->tag = tag;
    block->number = number;
    block->used_elsewhere = false;
    Arena::mark_live(block);
    ground_.accounts.handed_out(*block);
  }
  RequestSequence& sequence_of(ThreadCache* cache) { return cache != nullptr ? cache->sequence : sequence_; }
  /// Adds what the thread has done on the hot path to the accounts.
  void add_up(ThreadCache* cache) const {
    if (cache != nullptr) ground_.accounts.add_up(cache->recent);
  }
  /// Of all threads. During a standstill, as what follows.
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();
  /// Every thread records, as the recorder does, from now on; gives what it has recorded to the recorder.
  void start_recording();
  void stop_recording();
  std::vector<const TraceRing*> rings() const;
  std::size_t bookkeeping_bytes() const;
  /// Gives back what is not needed now.
  void tidy() noexcept;

 private:
  friend class Standstill;

  /// What a thread that is gone had for itself is the pool's.
  void absorb(ThreadCache& cache) noexcept;
  void return_from_cache(Block* block);

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  RequestSequence sequence_{RequestSequence::no_cache};  // of threads that have no cache
  std::uint64_t retired_hash_ = RequestSequence::start;  // of threads that have ended
  std::uint64_t next_cache_ = 0;
  mutable std::mutex caches_mutex_;  // taken last; the caches are guarded by both mutexes
  std::vector<ThreadCache*> caches_;
};

/// While one lives no thread's cache changes, and the accounts are complete. Made with the pool's mutex held.
class Standstill {
 public:
  explicit Standstill(const Front& front);
  ~Standstill();
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

 private:
  const Front& front_;
  const ThreadCache* own_;
};

}  // namespace poolgrad
