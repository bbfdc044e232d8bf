// The inside of CachingAllocator: the parts of a pool, and how a request, a free and what a user asks for go through
// them. In front, each thread has a cache of its own, where most requests end (hot_path.cpp). Behind it, one mutex
// guards all parts and is given up for calls to the device alone (pool_mutex.h). Each part knows those above it:
//
//   Ground        what the pool is, its device, mutex, accounts and recorder of traces
//   Arenas        where blocks lie
//   StreamLedger  which stream may have them when
//   PageSupply    getting pages
//   Releaser      giving them back
//   Front         what threads keep for themselves
//   Plan          mode `planned`
//   BlockPacker   live blocks that cost few bytes
//   Ladder        what is tried when no block fits
//   Inspector     what can be seen from outside
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
#include "allocator/front/front.h"
#include "allocator/pool/block_packer.h"
#include "allocator/pool/ladder.h"
#include "allocator/report/inspector.h"

namespace poolgrad {

class Pool {
 public:
  Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// hot_path.cpp: allocates from the calling thread's magazine, or frees into it. Returns nullptr or false, and
  /// changes nothing, if it cannot.
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
  bool hand_on(void* pointer, Stream stream);
  void order(Stream later, Stream earlier);
  void stream_destroyed(Stream stream);
  /// As new: no memory held, all counters zero. Returns false, changing nothing, while memory is live.
  bool restart(std::size_t budget);

  const PoolSettings& settings() const { return ground_.settings; }
  DeviceMemory& memory() { return *ground_.memory; }
  Front& front() { return front_; }
  Ladder& ladder() { return ladder_; }
  Inspector& inspector() { return inspector_; }
  /// Around fork(): no thread is inside the pool or one of its device calls, until it goes on.
  void hold_still() { held_still_.emplace(*this); }
  void go_on(bool in_child) noexcept;

 private:
  /// What a search has found is free again unless it was handed on. Takes the mutex.
  class Found {
   public:
    Found(Pool& pool, Need& need) : pool_(pool), need_(need) {}
    ~Found() {
      if (need_.block == nullptr) return;
      const PoolLock lock(pool_.ground_.mutex);
      pool_.plan_.put_back(need_.block);
    }
    Found(const Found&) = delete;
    Found& operator=(const Found&) = delete;

   private:
    Pool& pool_;
    Need& need_;
  };

  /// While the process forks. What is locked last is unlocked first.
  struct HeldStill {
    explicit HeldStill(Pool& pool)
        : lock(PoolLock::between_calls(pool.ground_.mutex)),
          standstill(pool.front_),
          caches(pool.front_.hold_still()),
          trace(pool.ground_.recorder.hold_still()),
          memory(*pool.ground_.memory) {}
    PoolLock lock;
    Standstill standstill;
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

  /// A block of the plan, or one that the stream has cached. With the mutex held.
  Block* take(const Need& need, ThreadCache* cache);
  /// Hands a busy block out. If it throws, for want of memory, the block is still busy. With the mutex held.
  void publish(Block* block, const AllocationRequest& request, Tag tag, ThreadCache* cache);
  /// What the request is about may be used from now on. If it throws, it is not to be handed out.
  void make_ready(void* pointer, const AllocationRequest& request);
  /// What comes back, and is nobody's yet, may not be used any more.
  void spoil(PoolLock& lock, std::uintptr_t address, std::size_t bytes, Stream stream) noexcept;
  /// resize.cpp: as expand_in_place(), but what is added is not made ready.
  bool resize(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream);
  /// With the mutex held: the block is given back, as far as it is counted, hashed and recorded.
  void withdraw(const Block* block, Stream stream, ThreadCache* cache, bool completed);
  void give_back(void* pointer, std::size_t bytes, Stream stream) noexcept;
  [[noreturn]] void die_of_bad_pointer(const void* pointer) const noexcept;
  bool has_stream(Stream stream) const { return stream.device == settings().device && stream.id < StreamOrder::idle; }
  void check_stream(const char* function, Stream stream) const {
    if (!has_stream(stream)) refuse_stream(function, stream);
  }
  [[noreturn]] void refuse_stream(const char* function, Stream stream) const;
  /// The calling thread's, see ThreadCaches::make_own().
  ThreadCache* own_cache() noexcept {
    ThreadCache* known = settings().own_cache();
    return known != nullptr ? known : ThreadCaches::make_own(*this);
  }
  std::size_t release_cached(std::size_t bytes);

  Ground ground_;
  Arenas arenas_;
  StreamLedger ledger_;
  PageSupply pages_;
  Releaser releaser_;
  Front front_;
  Plan plan_;
  BlockPacker packer_;
  Ladder ladder_;
  Inspector inspector_;
  std::optional<HeldStill> held_still_;
};

}  // namespace poolgrad
