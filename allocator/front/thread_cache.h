// What the hot path of every pool needs of the calling thread, in one place that a shared library reaches with one
// addition: initial-exec thread-local storage. Small, since such storage is scarce in libraries loaded at run time.
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
#include "allocator/front/magazine.h"
#include "allocator/memory_scope.h"
#include "allocator/report/statistics.h"
#include "allocator/stream.h"
#include "allocator/trace/trace_ring.h"

namespace poolgrad {

class StreamCapture;
class ThreadCache;

/// Trivially destructible: it may still be looked at while the thread's other objects are being destroyed.
struct ThreadState {
  struct KnownCache {
    std::uint64_t pool = 0;  // PoolSettings::id, never used twice
    ThreadCache* cache = nullptr;
  };
  /// By the pools' places: those of the first ones here, the others in memory of ThreadCaches.
  std::array<KnownCache, 4> caches{};
  const KnownCache* more_caches = nullptr;
  std::size_t more = 0;
  /// What pools call this thread's own stream, see ThreadCaches::named(); 0: it has no name yet.
  std::uint64_t own_stream = 0;
  /// See current_tag().
  Tag tag{};
  /// See CallSite: the line that counts, and the operator whose backward runs.
  std::source_location call_site{};
  const std::string* backward_of = nullptr;
  /// See StreamCapture: what this thread records.
  StreamCapture* capture = nullptr;
  /// The caches have been given back and no new ones may be made.
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

// What one thread keeps for itself of one pool: magazines, its share of the statistics, the hash of its requests and
// its trace. The hot path touches nothing else, so threads do not meet there.
//
// The fields may be used by (1) the owner, between flag.enter() and flag.leave(); (2) the owner, with the pool's mutex
// held; (3) another thread, with the pool's mutex held, after it took the flag away. (2) and (3) exclude each other by
// the mutex, (1) and (3) by the flag.

class Pool;

/// Numbers a thread's allocations and hashes the sequence of its requests and frees: FNV-1a, 64 bits at a time. A bit
/// reaches those above it alone, so what takes few values is in the low ones.
class RequestSequence {
 public:
  static constexpr std::uint64_t start = 0xcbf29ce484222325u;
  /// Scratch of kernels is counted apart and not hashed: it differs with the back end and the number of threads,
  /// tensors do not. Its numbers have this bit.
  static constexpr std::uint64_t scratch_bit = std::uint64_t{1} << 62;

  /// The index that all threads share which have no cache.
  static constexpr std::uint64_t no_cache = (std::uint64_t{1} << 22) - 1;

  /// Numbers are unique in a pool that has had fewer than 2^22 caches of threads: the cache's index (22 bits), then its
  /// own count (40 bits), from 1.
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
  std::uint64_t hashed_from_ = 0;  // `count_` when the hash was reset
  std::uint64_t first_;
  std::uint64_t count_ = 0;
  std::uint64_t scratch_ = 0;
};

class alignas(64) ThreadCache {
 public:
  explicit ThreadCache(Pool& pool, std::uint64_t index) : sequence(index), pool_(&pool) {}
  ~ThreadCache();

  /// Whose this is, while it lives.
  Pool& pool() const noexcept { return *pool_; }
  /// The magazine of a stream; nullptr if there is none.
  Magazine* find(std::uint64_t stream) noexcept {
    Magazine* known = recent_[slot(stream)];
    if (known != nullptr && known->stream() == stream) [[likely]]
      return known;
    return find_other(stream);
  }
  /// Takes over a magazine of a stream that has none yet.
  Magazine* add(std::unique_ptr<Magazine> magazine) noexcept;
  /// Forgets the magazine of a stream, which must be empty; all empty ones.
  void erase(std::uint64_t stream) noexcept;
  void erase_empty() noexcept;
  template <class Visit>
  void for_each_magazine(Visit visit) const {
    for (Magazine* magazine = newest_.load(std::memory_order_acquire); magazine != nullptr; magazine = magazine->older)
      visit(*magazine);
  }

  OwnerFlag flag;
  /// What the hot path has done since this was last added to the pool's statistics.
  StatisticsDelta recent;
  RequestSequence sequence;
  /// Requests on the hot path; counted where pages decay, by the owner alone.
  std::size_t hits = 0;
  /// Where this thread records; nullptr while nothing is recorded.
  std::unique_ptr<TraceRing> ring;

 private:
  friend class ThreadCaches;

  static std::size_t slot(std::uint64_t stream) noexcept { return (stream * 0x9E3779B97F4A7C15u) >> 59; }
  Magazine* find_other(std::uint64_t stream) noexcept;

  std::array<Magazine*, 32> recent_{};
  std::atomic<Magazine*> newest_ = nullptr;
  Pool* pool_;  // nullptr once the pool is gone; guarded by the mutex of ThreadCaches
};

/// All caches of the calling thread. They end with the thread, which gives what they hold back to the pools that still
/// live then.
class ThreadCaches {
 public:
  /// A cache of a pool for the calling thread, which has none. nullptr if there is no memory for it, or if the thread
  /// is already ending. Takes the pool's mutex.
  static ThreadCache* make_own(Pool& pool) noexcept;
  /// The calling thread's cache of a pool, if it has one; nullptr otherwise.
  static ThreadCache* known(std::uint64_t pool_id, std::size_t place) noexcept {
    const ThreadState::KnownCache& known = thread_state.cache_of(place);
    return known.pool == pool_id ? known.cache : nullptr;
  }
  /// What pools call a stream, whichever thread asks: itself, but for per_thread_stream, which has a name for each
  /// thread. When the thread ends, what is left of its own stream goes to a retired one, and the name to a new thread.
  static Stream named(Stream stream) noexcept {
    if (stream.id != per_thread_stream || !stream.device.is_cuda()) [[likely]]
      return stream;
    return {stream.device, thread_state.own_stream != 0 ? thread_state.own_stream : name_own_stream()};
  }
  /// The driver's handle of a stream that named() has returned. Only its own thread can name a per-thread stream; the
  /// others have the legacy default stream, which waits for all of them and they for it.
  static std::uint64_t handle_of(Stream stream) noexcept {
    if ((stream.id & own_stream_bit) == 0) [[likely]]
      return stream.id;
    return stream.id == thread_state.own_stream ? per_thread_stream : 0;
  }
  /// A new pool; its place is the lowest that no pool has, so that a thread finds its cache without a search.
  static std::size_t enter(Pool& pool);
  /// Cuts the caches of all threads off a pool that is being destroyed.
  static void forget(Pool& pool) noexcept;
  /// Around fork(), see fork.cpp: all pools hold still, and go on. In the child, what other threads kept for themselves
  /// comes back to the pools.
  static void hold_still();
  static void go_on(bool in_child) noexcept;

  ThreadCaches() = default;
  ~ThreadCaches();
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

 private:
  static constexpr std::uint64_t own_stream_bit = std::uint64_t{1} << 62;  // handles are addresses, which lack it

  /// Those of the calling thread, which must not have ended.
  static ThreadCaches& mine();
  static std::uint64_t name_own_stream() noexcept;
  static void give_up_own_stream() noexcept;
  ThreadCache* make(Pool& pool);
  void remember(const Pool& pool, ThreadCache* cache);

  std::vector<std::unique_ptr<ThreadCache>> caches_;
  std::vector<ThreadState::KnownCache> more_known_;
};

}  // namespace poolgrad
