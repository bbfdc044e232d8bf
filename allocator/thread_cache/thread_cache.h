// The thread-local state of the hot path, for all pools together, so that a shared library reaches it with one addition
// (initial-exec thread-local storage). Small, because such storage is scarce in libraries loaded at run time.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "allocator/base/owner_flag.h"
#include "allocator/memory_scope.h"
#include "allocator/report/statistics.h"
#include "allocator/stream.h"
#include "allocator/thread_cache/magazine.h"
#include "allocator/trace/trace_ring.h"

namespace poolgrad {

class StreamCapture;
class ThreadCache;

/// Trivially destructible: it remains accessible while the thread's other objects are destroyed.
struct ThreadState {
  struct KnownCache {
    std::uint64_t pool = 0;  // PoolSettings::id, never used twice
    ThreadCache* cache = nullptr;
  };
  /// Indexed by the pools' places: the first ones are here, the others on the heap in ThreadCacheTable.
  std::array<KnownCache, 4> caches{};
  const KnownCache* more_caches = nullptr;
  std::size_t more = 0;
  /// The pools' id of this thread's own stream, see ThreadCacheTable::named(); 0: none yet.
  std::uint64_t own_stream = 0;
  /// See current_tag().
  Tag tag{};
  /// See CallSite: the effective line, and the operator whose backward runs.
  std::source_location call_site{};
  const std::string* backward_of = nullptr;
  /// The thread's recording; see StreamCapture.
  StreamCapture* capture = nullptr;
  /// The caches have been returned, and the thread must not create new ones.
  bool ended = false;

  const KnownCache& cache_of(std::size_t place) const {
    if (place < caches.size()) [[likely]]
      return caches[place];
    return place - caches.size() < more ? more_caches[place - caches.size()] : none;
  }
  static const KnownCache none;
};

inline constexpr ThreadState::KnownCache ThreadState::none{};

extern constinit thread_local ThreadState thread_state __attribute__((tls_model("initial-exec")));

// The cache of one thread for one pool: magazines, a share of the statistics, the hash of requests and the trace. The
// hot path touches nothing else, so threads do not contend.
//
// The fields may be used by (1) the owner, between flag.enter() and flag.leave(); (2) the owner, with the pool's mutex
// held; (3) another thread, with the pool's mutex held, after it revoked the flag. (2) and (3) exclude each other by
// the mutex, (1) and (3) by the flag.

class Pool;

/// Numbers a thread's allocations and hashes the sequence of its requests and frees: FNV-1a, 64 bits at a time. A bit
/// affects only the bits above it, so small values are placed in the low bits.
class RequestSequence {
 public:
  static constexpr std::uint64_t start = 0xcbf29ce484222325u;
  /// Numbers of kernel scratch have this bit and their own count. They are not hashed, because scratch depends on the
  /// back end and the number of threads.
  static constexpr std::uint64_t scratch_bit = std::uint64_t{1} << 62;

  /// The shared index of all threads without a cache.
  static constexpr std::uint64_t no_cache = (std::uint64_t{1} << 22) - 1;

  /// Numbers are unique in a pool with fewer than 2^22 thread caches: the cache's index (22 bits), then its own count
  /// (40 bits), from 1.
  explicit RequestSequence(std::uint64_t cache = 0) : first_((cache & no_cache) << 40) {}

  void request(std::size_t bytes, Category category) noexcept {
    if (category != Category::workspace) mix(std::uint64_t{0}, bytes, category);
  }
  std::uint64_t number(Category category) noexcept {
    ++(category == Category::workspace ? scratch_ : count_);
    return last(category);
  }
  /// The number of the newest allocation of its kind.
  std::uint64_t last(Category category) const noexcept {
    return first_ + (category == Category::workspace ? scratch_ + scratch_bit : count_);
  }
  void release(std::uint64_t number, Category category) noexcept {
    if (category != Category::workspace) mix(std::uint64_t{1}, (number & count_mask) - hashed_from_, category);
  }
  std::uint64_t hash() const noexcept { return hash_; }
  void reset_hash() noexcept {
    hash_ = start;
    hashed_from_ = count_;
  }

 private:
  static constexpr std::uint64_t count_mask = (std::uint64_t{1} << 40) - 1;

  // `value` is a size or a block number.
  void mix(std::uint64_t kind, std::uint64_t value, Category category) noexcept {
    static_assert(category_count <= 32);
    const std::uint64_t word = value << 6 | static_cast<std::uint64_t>(category) << 1 | kind;
    hash_ = (hash_ ^ word) * 0x100000001b3u;
  }

  std::uint64_t hash_ = start;
  std::uint64_t hashed_from_ = 0;  // `count_` at the last reset of the hash
  std::uint64_t first_;
  std::uint64_t count_ = 0;
  std::uint64_t scratch_ = 0;
};

class alignas(64) ThreadCache {
 public:
  explicit ThreadCache(Pool& pool, std::uint64_t index) : sequence(index), pool_(&pool) {}
  ~ThreadCache();

  /// The pool of this cache, while it lives.
  Pool& pool() const noexcept { return *pool_; }
  /// The magazine of a stream; nullptr if there is none.
  Magazine* find(std::uint64_t stream) noexcept {
    Magazine* known = recent_[slot(stream)];
    if (known != nullptr && known->stream() == stream) [[likely]]
      return known;
    return find_other(stream);
  }
  /// Adds the magazine of a stream that has none yet.
  Magazine* add(std::unique_ptr<Magazine> magazine) noexcept;
  /// Removes the magazine of a stream, which must be empty; removes all empty ones.
  void erase(std::uint64_t stream) noexcept;
  void erase_empty() noexcept;
  template <class Visit>
  void for_each_magazine(Visit visit) const {
    for (Magazine* magazine = newest_.load(std::memory_order_acquire); magazine != nullptr; magazine = magazine->older)
      visit(*magazine);
  }

  OwnerFlag flag;
  /// Changes by the hot path that the pool's statistics do not include yet.
  StatisticsDelta recent;
  RequestSequence sequence;
  /// Requests on the hot path; counted only if pages decay. For the owner only.
  std::size_t hits = 0;
  /// This thread's trace ring; nullptr while there is no recording.
  std::unique_ptr<TraceRing> ring;

 private:
  friend class ThreadCacheTable;

  static std::size_t slot(std::uint64_t stream) noexcept { return (stream * 0x9E3779B97F4A7C15u) >> 59; }
  Magazine* find_other(std::uint64_t stream) noexcept;

  std::array<Magazine*, 32> recent_{};
  std::atomic<Magazine*> newest_ = nullptr;
  Pool* pool_;  // nullptr once the pool is gone; guarded by the mutex of ThreadCacheTable
};

/// All caches of the calling thread. A thread's exit destroys them, which returns their blocks to the pools that still
/// exist.
class ThreadCacheTable {
 public:
  /// Creates the calling thread's cache of a pool. Returns nullptr if out of memory or if the thread is exiting. Takes
  /// the pool's mutex.
  static ThreadCache* make_own(Pool& pool) noexcept;
  /// The calling thread's cache of a pool, if it has one; nullptr otherwise.
  static ThreadCache* known(std::uint64_t pool_id, std::size_t place) noexcept {
    const ThreadState::KnownCache& known = thread_state.cache_of(place);
    return known.pool == pool_id ? known.cache : nullptr;
  }
  /// The pools' id of a stream, for all threads: the stream itself, but a separate id for each thread's
  /// per_thread_stream. When the thread exits, a retired stream takes over the remaining work and a new thread may get
  /// the id.
  static Stream named(Stream stream) noexcept {
    if (stream.id != per_thread_stream || !stream.device.is_cuda()) [[likely]]
      return stream;
    return {stream.device, thread_state.own_stream != 0 ? thread_state.own_stream : name_own_stream()};
  }
  /// The driver's handle of a stream from named(). Only the owner can use a per-thread stream; other threads get the
  /// legacy default stream, which synchronizes with all of them.
  static std::uint64_t handle_of(Stream stream) noexcept {
    if ((stream.id & own_stream_bit) == 0) [[likely]]
      return stream.id;
    return stream.id == thread_state.own_stream ? per_thread_stream : 0;
  }
  /// Registers a new pool at the lowest free place, so that a thread finds its cache without a search.
  static std::size_t enter(Pool& pool);
  /// Detaches the caches of all threads from a pool that is being destroyed.
  static void forget(Pool& pool) noexcept;
  /// Around fork(), see fork.cpp: stops all pools, then lets them go on. In the child, the pools reclaim the caches of
  /// other threads.
  static void hold_still();
  static void go_on(bool in_child) noexcept;

  ThreadCacheTable() = default;
  ~ThreadCacheTable();
  ThreadCacheTable(const ThreadCacheTable&) = delete;
  ThreadCacheTable& operator=(const ThreadCacheTable&) = delete;

 private:
  static constexpr std::uint64_t own_stream_bit = std::uint64_t{1} << 62;  // handles are addresses, which lack it

  /// The caches of the calling thread, which must not have exited.
  static ThreadCacheTable& mine();
  static std::uint64_t name_own_stream() noexcept;
  static void give_up_own_stream() noexcept;
  ThreadCache* make(Pool& pool);
  void remember(const Pool& pool, ThreadCache* cache);

  std::vector<std::unique_ptr<ThreadCache>> caches_;
  std::vector<ThreadState::KnownCache> more_known_;
};

}  // namespace poolgrad
