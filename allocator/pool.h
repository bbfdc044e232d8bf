// The inside of CachingAllocator. One mutex guards everything below it and is never held across a call to the device
// or to a client: what a thread takes out of the arenas for such a call is in state `busy`, so nobody else touches it.
//
// Invariant, whenever the mutex is free and no thread is inside a device call:
//   reserved = live + pending + free bytes of all arenas, and reserved <= budget.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "allocator/arena.h"
#include "allocator/caching_allocator.h"
#include "allocator/emergency_ladder.h"
#include "allocator/oom_report.h"

namespace poolgrad {

class Pool {
 public:
  Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::variant<void*, std::string> allocate(const AllocationRequest& request);
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept;
  std::size_t usable_size(const void* pointer) const;
  std::size_t trim(std::size_t bytes);
  void set_budget(std::size_t bytes);
  std::size_t budget() const;
  Statistics statistics() const;
  void reset_peaks();
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();
  std::vector<BlockSnapshot> snapshot() const;
  void add_client(std::weak_ptr<ReclaimClient> client);
  DeviceMemory& memory() { return *memory_; }
  Device device() const { return device_; }
  void use(void* pointer, Stream stream);
  void order(Stream later, Stream earlier);
  void stream_destroyed(Stream stream);
  void set_out_of_memory_callback(OutOfMemoryCallback callback);
  /// As new: no memory held, all counters zero. Returns false, changing nothing, while memory is live.
  bool restart(std::size_t budget);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Pending {
    Block* block;
    Stream stream;  // the one that the block waits for
    EventId event;  // 0: could not be recorded yet
  };

  // pool.cpp: the hot path. Functions that take a Lock may give it up meanwhile, and hold it when they return.
  Arena& arena_for(Tag tag) { return arenas_[is_long_lived(tag.category) ? 1 : 0]; }
  Arena* arena_of(const void* pointer);
  void search(Need& need);
  void* publish(Block* block, std::size_t requested, Tag tag);
  void withdraw(Block* block);
  [[noreturn]] void die(const char* what, const void* pointer, const std::string& detail) const noexcept;
  [[noreturn]] void die_of_bad_pointer(const void* pointer) const noexcept;
  void hash(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }

  // pool_caches.cpp: what threads keep for themselves. Cold paths see it through these.
  /// Gives the blocks of all magazines back to the arenas; the bytes. Takes the mutex.
  std::size_t drain_magazines();
  /// Bytes that drain_magazines() would give now. Needs no lock.
  std::size_t magazine_bytes() const;
  /// Blocks of `bytes` that were pending are free. Called with the mutex held.
  void subtract_active(std::size_t bytes);
  /// Adds to the trace, if one is recorded; fills in the time. With or without the mutex.
  void record(const TraceEvent& event);

  // pool_rungs.cpp: the cold path.
  std::vector<Rung> rungs();
  std::string report(const Need& need, std::vector<Yield> yields);
  std::size_t pending_bytes() const;
  std::size_t poll_pending(bool wait);
  std::size_t take_from_other_streams(Need& need);
  std::size_t take_across_streams(Need& need);
  std::size_t commit(Need& need);
  std::size_t growth_step() const;
  std::size_t release_for(Need& need);
  std::size_t release(Lock& lock, std::size_t bytes);
  bool quiet(Lock& lock, const std::vector<Block*>& blocks);
  bool join_mixed_pages(Lock& lock);
  std::size_t borrow(Need& need);
  std::size_t wait_for_other_threads();
  std::size_t page_deficit(const Need& need) const;
  bool order_after(Stream stream, const std::vector<Block*>& blocks);
  void begin_device_call() { ++device_calls_; }
  void end_device_call();
  bool add_window(Lock& lock, Arena& arena, std::size_t bytes);
  std::size_t other_streams_bytes(const Need& need) const;
  std::size_t searched(const Need& need) const;

  const std::unique_ptr<DeviceMemory> memory_;
  const Device device_;
  const std::size_t granule_;
  const std::size_t page_;
  const std::size_t large_page_;
  const bool poison_;

  mutable std::mutex mutex_;
  std::condition_variable device_calls_done_;
  std::size_t device_calls_ = 0;  // calls under way that may end with more free memory
  std::uint64_t device_calls_ended_ = 0;
  BlockStore store_;
  std::array<Arena, 2> arenas_;  // transients; long-lived
  std::vector<Pending> pending_;
  std::size_t budget_ = 0;
  std::uint64_t tick_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t hash_ = fnv_start;
  std::uint64_t hashed_from_ = 0;  // `number_` when the hash was reset
  Statistics statistics_;
  std::vector<std::weak_ptr<ReclaimClient>> clients_;
  OutOfMemoryCallback out_of_memory_callback_;

  static constexpr std::uint64_t fnv_start = 0xcbf29ce484222325u;
};

}  // namespace poolgrad
