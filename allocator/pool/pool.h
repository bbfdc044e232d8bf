// The implementation of CachingAllocator: the parts of a pool, and the path of requests and frees through them. In
// front, each thread has its own cache, which serves most requests (hot_path.cpp). Behind it, one mutex guards all
// parts and is released only for device calls (pool_mutex.h). Each part knows the parts above it:
//
//   PoolContext    settings, device, mutex, accounts and trace recorder
//   Arenas         addresses and states of blocks
//   StreamTracker  streams that may still use blocks
//   PageProvider   commits and moves pages
//   CacheTrimmer   releases pages
//   ThreadCaches   caches of threads
//   Plan           mode `planned`
//   ReclaimPolicy  stages when no block fits
//   Inspector      statistics, snapshots, traces, reports
//
// Invariant, whenever the mutex is free and no thread is inside a device call:
//   reserved = live + pending + free bytes of all arenas + bytes in magazines, and reserved <= budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <variant>

#include "allocator/caching_allocator.h"
#include "allocator/pool/inspector.h"
#include "allocator/pool/reclaim_policy.h"
#include "allocator/thread_cache/thread_caches.h"

namespace poolgrad {

class Pool {
 public:
  Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// hot_path.cpp: allocates from, or frees into, the calling thread's magazine. Returns nullptr or false, changing
  /// nothing, if it cannot.
  void* allocate_at_once(std::size_t bytes, std::size_t alignment, Stream stream, Tag tag,
                         std::source_location location) noexcept;
  bool deallocate_at_once(void* pointer, std::size_t bytes, Stream stream) noexcept;

  // As in CachingAllocator.
  std::variant<void*, std::string> allocate(const AllocationRequest& request);
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept;
  bool expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream);
  std::size_t usable_size(const void* pointer);
  bool owns(const void* pointer) const noexcept { return arenas_.owns(pointer); }
  std::size_t trim(std::size_t bytes);
  void set_budget(std::size_t bytes);
  std::size_t budget();
  void begin_phase();
  void begin_step();
  void use(void* pointer, Stream stream, Access access, std::source_location location);
  bool transfer_to_stream(void* pointer, Stream stream);
  void order(Stream later, Stream earlier);
  void stream_destroyed(Stream stream);
  /// Resets the pool: no memory held, all counters zero. Returns false, changing nothing, while memory is live.
  bool restart(std::size_t budget);

  const PoolSettings& settings() const { return context_.settings; }
  DeviceMemory& memory() { return *context_.memory; }
  ThreadCaches& thread_caches() { return caches_; }
  ReclaimPolicy& reclaim_policy() { return reclaim_policy_; }
  Inspector& inspector() { return inspector_; }
  /// Around fork(): keeps all threads out of the pool and its device calls until go_on().
  void hold_still() { held_still_.emplace(*this); }
  void go_on(bool in_child) noexcept;

 private:
  /// Frees a found block unless the request took it. Takes the mutex.
  class Found {
   public:
    Found(Pool& pool, AllocationAttempt& attempt) : pool_(pool), attempt_(attempt) {}
    ~Found() {
      if (attempt_.block == nullptr) return;
      const PoolLock lock(pool_.context_.mutex);
      pool_.plan_.put_back(attempt_.block);
    }
    Found(const Found&) = delete;
    Found& operator=(const Found&) = delete;

   private:
    Pool& pool_;
    AllocationAttempt& attempt_;
  };

  /// Held during a fork. Locked last, unlocked first.
  struct HeldStill {
    explicit HeldStill(Pool& pool)
        : lock(PoolLock::between_calls(pool.context_.mutex)),
          stopped(pool.caches_),
          caches(pool.caches_.hold_still()),
          trace(pool.context_.recorder.hold_still()),
          memory(*pool.context_.memory) {}
    PoolLock lock;
    StopTheWorld stopped;
    std::unique_lock<std::mutex> caches;
    std::unique_lock<std::mutex> trace;
    struct HeldMemory {
      explicit HeldMemory(DeviceMemory& held) : memory(held) { memory.hold_still(); }
      ~HeldMemory() { memory.go_on(); }
      HeldMemory(const HeldMemory&) = delete;
      HeldMemory& operator=(const HeldMemory&) = delete;
      DeviceMemory& memory;
    } memory;
  };

  /// A block of the plan, or a cached one of the stream. Requires the mutex.
  Block* take(const AllocationAttempt& attempt, ThreadCache* cache);
  /// Makes a busy block live. If it throws for lack of memory, the block is still busy. Requires the mutex.
  void record_allocation(Block* block, const AllocationRequest& request, Tag tag, ThreadCache* cache);
  /// Prepares memory for use by its caller. If it throws, the block must not be handed out.
  void make_ready(void* pointer, const AllocationRequest& request);
  /// Poisons a freed block.
  void poison(PoolLock& lock, std::uintptr_t address, std::size_t bytes, Stream stream) noexcept;
  /// As expand_in_place(), without preparing added memory.
  bool resize(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream);
  /// Counts, hashes and records a free. Requires the mutex.
  void record_free(const Block* block, Stream stream, ThreadCache* cache, bool completed);
  void give_back(void* pointer, std::size_t bytes, Stream stream) noexcept;
  [[noreturn]] void die_of_bad_pointer(const void* pointer) const noexcept;
  bool has_stream(Stream stream) const { return stream.device == settings().device && stream.id < StreamOrder::idle; }
  void check_stream(const char* function, Stream stream) const {
    if (!has_stream(stream)) refuse_stream(function, stream);
  }
  [[noreturn]] void refuse_stream(const char* function, Stream stream) const;
  /// The calling thread's cache, see ThreadCacheTable::make_own().
  ThreadCache* own_cache() noexcept {
    ThreadCache* known = settings().own_cache();
    return known != nullptr ? known : ThreadCacheTable::make_own(*this);
  }
  std::size_t release_cached(std::size_t bytes);

  PoolContext context_;
  Arenas arenas_;
  StreamTracker tracker_;
  PageProvider pages_;
  CacheTrimmer trimmer_;
  ThreadCaches caches_;
  Plan plan_;
  ReclaimPolicy reclaim_policy_;
  Inspector inspector_;
  std::optional<HeldStill> held_still_;
};

}  // namespace poolgrad
