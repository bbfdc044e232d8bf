// The inside of CachingAllocator. In front, each thread has a cache of its own, where most requests end (hot_path.cpp).
// Behind it, one mutex guards everything and is never held across a call to the device or to a client: what a thread
// takes out of the arenas for such a call is in state `busy`, so nobody else touches it.
//
// Invariant, whenever the mutex is free and no thread is inside a device call:
//   reserved = live + pending + free bytes of all arenas + bytes in magazines, and reserved <= budget.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/front/thread_cache.h"
#include "allocator/heap/arena.h"
#include "allocator/pool/emergency_ladder.h"
#include "allocator/pool/pool_trace.h"
#include "allocator/pool/stream_order.h"
#include "allocator/replay/step_planner.h"
#include "allocator/report/oom_report.h"

namespace poolgrad {

class Pool {
 public:
  Pool(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// hot_path.cpp: by the calling thread's routine or from its magazine; nullptr or false, changing nothing, if neither
  /// is possible.
  void* allocate_at_once(std::size_t bytes, std::size_t alignment, Stream stream, Tag tag,
                         std::source_location location) noexcept;
  bool deallocate_at_once(void* pointer, std::size_t bytes, Stream stream) noexcept;

  std::variant<void*, std::string> allocate(const AllocationRequest& request);
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept;
  bool expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream);
  std::size_t usable_size(const void* pointer) const;
  bool owns(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return arenas_[0].owns(address) || arenas_[1].owns(address);
  }
  std::size_t trim(std::size_t bytes);
  void set_budget(std::size_t bytes);
  std::size_t budget() const;
  Statistics statistics() const;
  void reset_peaks();
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();
  std::vector<BlockSnapshot> snapshot() const;
  void add_client(std::weak_ptr<ReclaimClient> client);
  void start_trace(std::size_t events);
  void stop_trace();
  bool tracing() const;
  Trace trace() const;
  void begin_step();
  const AllocatorConfig& config() const { return config_; }
  DeviceMemory& memory() { return *memory_; }
  Device device() const { return device_; }
  void use(void* pointer, Stream stream);
  void order(Stream later, Stream earlier);
  void stream_destroyed(Stream stream);
  void set_out_of_memory_callback(OutOfMemoryCallback callback);
  /// As new: no memory held, all counters zero. Returns false, changing nothing, while memory is live.
  bool restart(std::size_t budget);

  /// Never the same for two pools.
  std::uint64_t id() const { return id_; }
  /// Never the same for two pools at the same time, and small.
  std::size_t place() const { return place_; }
  /// Around fork(): no thread is inside the pool or one of its device calls, until it goes on.
  void hold_still();
  void go_on(bool in_child) noexcept;
  /// For ThreadCaches: a cache for the calling thread; all caches; what an ending thread's cache holds comes back.
  std::unique_ptr<ThreadCache> make_cache();
  const std::vector<ThreadCache*>& caches() const { return caches_; }
  void retire(ThreadCache& cache) noexcept;

 private:
  /// Whoever takes it finds the arenas and the statistics as they are: what a routine has answered is carried out
  /// first.
  class Mutex {
   public:
    explicit Mutex(Pool& pool) : pool_(pool) {}
    void lock() {
      mutex_.lock();
      if (follower_ != nullptr) pool_.interrupt_routine();
    }
    void unlock() { mutex_.unlock(); }
    /// Gives it up until `event` was notified and ready() is true.
    template <class Ready>
    void wait(std::condition_variable& event, Ready ready) {
      std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
      event.wait(held, ready);
      held.release();
      if (follower_ != nullptr) pool_.interrupt_routine();
    }

   private:
    friend class Pool;
    std::mutex mutex_;
    Pool& pool_;
    ThreadCache* follower_ = nullptr;  // whose requests the routine answers
  };
  using Lock = std::unique_lock<Mutex>;
  struct Pending {
    Block* block;
    std::vector<Stamp> stamps;  // work of other streams that it waits for
  };
  struct Nothing {
    void operator()() const noexcept {}
  };

  /// Calls to the device for one purpose, while what they are about is busy. Nothing else gives the mutex up. Made with
  /// the mutex held; whatever ends it, an exception of any type too, the mutex is held again, the calls have ended for
  /// those who wait for them, and put_back() was called, unless done() was called before: then all is published.
  template <class PutBack>
  class DeviceCall {
   public:
    DeviceCall(Pool& pool, Lock& lock, PutBack put_back) : pool_(pool), lock_(lock), put_back_(put_back) {}
    ~DeviceCall() {
      if (!done_) put_back_();
      if (!called_) return;
      --pool_.device_calls_;
      ++pool_.device_calls_ended_;
      pool_.device_calls_done_.notify_all();
    }
    DeviceCall(const DeviceCall&) = delete;
    DeviceCall& operator=(const DeviceCall&) = delete;

    /// Returns what call() does, which is called without the mutex.
    template <class Call>
    decltype(auto) operator()(Call call) {
      if (!std::exchange(called_, true)) ++pool_.device_calls_;
      const WithoutLock without_lock(lock_);
      return call();
    }
    /// The same for `calls` calls of the driver, which are counted and timed.
    template <class Call>
    decltype(auto) timed(std::uint64_t calls, Call call) {
      const DriverTimer timer(pool_, calls);
      return (*this)(call);
    }
    void done() { done_ = true; }

   private:
    struct WithoutLock {
      explicit WithoutLock(Lock& given_up) : lock(given_up) { lock.unlock(); }
      ~WithoutLock() { lock.lock(); }
      WithoutLock(const WithoutLock&) = delete;
      WithoutLock& operator=(const WithoutLock&) = delete;
      Lock& lock;
    };

    Pool& pool_;
    Lock& lock_;
    PutBack put_back_;
    bool called_ = false;
    bool done_ = false;
  };

  /// Made and destroyed with the mutex held.
  class DriverTimer {
   public:
    DriverTimer(Pool& pool, std::uint64_t calls) : pool_(pool), calls_(calls) {}
    ~DriverTimer() {
      const auto passed = std::chrono::steady_clock::now() - start_;
      pool_.statistics_.driver_calls += calls_;
      pool_.statistics_.driver_nanoseconds +=
          static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
    }
    DriverTimer(const DriverTimer&) = delete;
    DriverTimer& operator=(const DriverTimer&) = delete;

   private:
    Pool& pool_;
    const std::uint64_t calls_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  /// What a search has found is free again unless it was handed on. Takes the mutex.
  class Found {
   public:
    Found(Pool& pool, Need& need) : pool_(pool), need_(need) {}
    ~Found() {
      if (need_.block == nullptr) return;
      const std::lock_guard lock(pool_.mutex_);
      pool_.put_back(need_.block);
    }
    Found(const Found&) = delete;
    Found& operator=(const Found&) = delete;

   private:
    Pool& pool_;
    Need& need_;
  };

  /// While one lives no thread's cache changes, and the statistics are complete. Made with the mutex held.
  class Standstill {
   public:
    explicit Standstill(const Pool& pool);
    ~Standstill();
    Standstill(const Standstill&) = delete;
    Standstill& operator=(const Standstill&) = delete;

   private:
    const Pool& pool_;
    const ThreadCache* own_;
  };

  /// While the process forks. What is locked last is unlocked first.
  struct HeldStill {
    explicit HeldStill(Pool& pool);
    Lock lock;
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

  // pool.cpp: where the magazine has nothing. Functions that take a Lock may give it up meanwhile, and hold it when
  // they return.
  Arena& arena_for(Tag tag) { return arenas_[is_long_lived(tag.category) ? 1 : 0]; }
  const Arena& arena_for(Tag tag) const { return arenas_[is_long_lived(tag.category) ? 1 : 0]; }
  std::size_t rounded(std::size_t bytes) const { return ((bytes != 0 ? bytes : 1) + granule_ - 1) & ~(granule_ - 1); }
  Arena* arena_of(const void* pointer);
  void search(Need& need);
  /// A busy block that was not handed out is free again.
  void put_back(Block* block) noexcept;
  /// Hands a busy block out. If it throws, for want of memory, the block is still busy.
  void publish(Block* block, const AllocationRequest& request, Tag tag, ThreadCache* cache);
  /// The block is live, with this number; nothing is recorded or hashed.
  void hand_out(Block* block, std::size_t bytes, Tag tag, std::uint64_t number);
  void count_release(const Block* block);
  void withdraw(const Block* block, Stream stream, ThreadCache* cache, bool completed);
  /// Marks the present as the time at which the block was given back.
  void stamp(Block* block) {
    block->epoch = tick_;
    block->ticket = order_.now(block->stream);
  }
  void give_back(void* pointer, std::size_t bytes, Stream stream) noexcept;
  /// Whether the block's stream was destroyed and so was `stream`, mostly the same: nothing was queued there since, and
  /// no event can be recorded. The block's work is behind that of its present owner.
  bool outlives(const Block* block, Stream stream) const {
    return block->stream >= StreamOrder::idle && order_.is_destroyed(stream.id);
  }
  bool outlives(const void* pointer, Stream stream) const;
  void make_ready(void* pointer, const AllocationRequest& request);
  /// The present ticket of a stream.
  std::uint64_t ticket(std::uint64_t stream) const { return order_.now(stream); }
  /// Adds StreamOrder::begin_event to the events; magazines learn the new ticket, for traces.
  void begin_event(StreamEvents& events, std::uint64_t stream);
  /// Needs no lock for a block that is the caller's. nullptr for a packed one, see unpacked().
  Block* live_block(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    Block* block = arenas_[0].live(address);
    if (block == nullptr) block = arenas_[1].live(address);
    return block != nullptr && block->state == BlockState::live ? block : nullptr;
  }
  void survey(Statistics& statistics) const;
  /// With the numbers of scratch as in traces, or 0 for them as in snapshots.
  std::vector<BlockSnapshot> all_blocks(bool number_scratch) const;
  [[noreturn]] void die(const char* what, const void* pointer, const std::string& detail) const noexcept;
  [[noreturn]] void die_of_bad_pointer(const void* pointer) const noexcept;

  // pool_caches.cpp: what threads keep for themselves. Cold paths see it through these.
  /// The calling thread's cache, if it has one.
  ThreadCache* own_cache() const noexcept { return ThreadCaches::known(id_, place_); }
  /// What a thread that is gone had for itself is the pool's. Called with the mutex held.
  void absorb(ThreadCache& cache) noexcept;
  /// The mutex, at a moment when no thread is inside a device call.
  Lock between_device_calls();
  /// Gives the blocks of all magazines back to the arenas; the bytes. Takes the mutex.
  std::size_t drain_magazines();
  /// Bytes that drain_magazines() would give now. Needs no lock.
  std::size_t magazine_bytes() const;
  /// The magazines of a stream whose name will mean another one. Called during a standstill.
  void drain_magazines_of(std::uint64_t stream);
  std::size_t drain(ThreadCache& cache);
  void return_from_cache(Block* block);
  bool put_into_magazine(ThreadCache* cache, Block* block);
  /// Whether what the thread does now should be observed, for it may have a routine. While it should, the thread has no
  /// magazines, which would place blocks otherwise.
  bool is_observed(ThreadCache* cache);
  void observe(ThreadCache& cache, const Routine::Act& act, Stream stream, std::uint64_t before);
  std::uint64_t changes() const { return arenas_[0].changes() + arenas_[1].changes(); }
  /// The arenas and statistics catch up with what the routine has answered, and it waits until its thread comes again.
  void interrupt_routine() noexcept;
  void catch_up(const ThreadCache& cache) noexcept;
  RequestSequence& sequence_of(ThreadCache* cache) { return cache != nullptr ? cache->sequence : sequence_; }
  /// Adds what the thread has done on the hot path to the statistics. Called with the mutex held.
  void add_up(ThreadCache* cache) const {
    if (cache != nullptr) tick_ += cache->recent.add_to(statistics_, tags_);
  }
  /// Blocks of `bytes` that were pending are free. Called with the mutex held.
  void subtract_active(std::size_t bytes);

  // pool_bookkeeping.cpp: what the pool needs for itself.
  /// The live block that starts there, no longer packed; nullptr if there is none. Called with the mutex held.
  Block* unpacked(const void* pointer);
  /// The same to give it back: nullptr for want of memory, too; one that was packed is not in the live map.
  Block* unpacked_at_last(const void* pointer) noexcept;
  std::optional<Block> live_copy(const void* pointer) const;
  /// Packs live blocks if what is noted about them is too much, and packing will not be in vain.
  void pack_or_wait() noexcept;
  /// During a standstill.
  void pack() noexcept;
  /// Gives back what is not needed now.
  void tidy() noexcept;
  /// What is held for blocks, the live map, and packed blocks.
  std::size_t noted_bytes() const { return store_.bytes() + arenas_[0].map_bytes() + arenas_[1].map_bytes(); }
  /// During a standstill.
  std::size_t bookkeeping_bytes() const;

  // pool_trace.cpp
  /// Adds to the trace, if one is recorded; fills in the time. With or without the mutex.
  void record(TraceEvent event);
  void record_block(TraceKind kind, const Block* block, Stream stream, ThreadCache* cache,
                    std::source_location location, bool completed = false);
  /// For TraceEvent::stream.
  std::uint32_t trace_stream(std::uint64_t stream);

  // The cold path. Functions that take a Lock may give it up meanwhile, and hold it when they return.
  // pool_rungs.cpp: the climb.
  std::vector<Yield> climb(Need& need);
  std::vector<Rung> own_rungs();
  /// The pool's own, the clients', and the user's callback.
  std::vector<Rung> rungs_with(const std::vector<std::shared_ptr<ReclaimClient>>& asked);
  /// Whose price is at most `most`, in the order in which they are asked.
  std::vector<std::shared_ptr<ReclaimClient>> clients(double most) const;
  std::size_t ask_user(Need& need);
  std::size_t other_streams_bytes(Stream stream) const;
  std::size_t borrow(Need& need);
  std::size_t wait_for_other_threads();
  RungStatistics& statistics_of(RungId rung);

  // pool_streams.cpp: stream order.
  /// Makes a busy block that was given back on `stream` free for its own stream; pending, if that or what use() noted
  /// is another one whose work may not be over.
  void free_block(Lock& lock, Block* block, Stream stream) noexcept;
  /// Waits here for the work of the stamps. False if the device refuses.
  bool wait_for(Lock& lock, const std::vector<Stamp>& uses, Stream stream) noexcept;
  /// Lets `later`, or the caller if it is empty, wait for the work of `stamps`, as far as it may not be over. False if
  /// the device refuses.
  bool settle(Lock& lock, std::optional<std::uint64_t> later, const std::vector<Stamp>& stamps);
  bool is_behind(std::uint64_t stream, Stamp stamp) const;
  void keep_or_discard(Lock& lock, StreamEvents& events) noexcept;
  void rename_stream(std::uint64_t from, std::uint64_t to) noexcept;
  void forget_finished_streams() noexcept;
  bool knows_stream(std::uint64_t stream) const;
  /// All work that may still touch memory of the pool is over.
  void wait_for_all_work() noexcept;
  std::size_t pending_bytes() const;
  std::size_t poll_pending();
  std::size_t synchronise_pending();
  std::size_t free_settled() noexcept;
  /// A pending block is free now.
  void completed(const Block* block);
  std::size_t take_from_other_streams(Need& need);
  std::size_t take_from_other_streams(Lock& lock, Need& need, Arena& arena);
  std::size_t take_pending(Lock& lock, Need& need, Arena& arena);
  std::size_t take_across_streams(Need& need);
  std::size_t take_across_streams(Lock& lock, Need& need, Arena& arena);
  void check_stream(const char* function, Stream stream) const;

  // pool_growth.cpp: getting pages.
  bool add_window(Lock& lock, Arena& arena, const Need& need);
  void unreserve(Lock& lock, void* address, std::size_t bytes) noexcept;
  std::size_t page_deficit(const Need& need) const;
  std::size_t unused_budget() const;
  /// What the end of a growth is rounded up to.
  std::size_t growth_step(const Need& need) const;
  std::size_t largest_handle() const;
  bool commit_handles(std::uintptr_t address, const std::vector<std::size_t>& sizes);
  std::size_t commit(Need& need);
  /// Memory behind the planned pages, which are free then. False if the device has none.
  bool commit_growth(Lock& lock, Need& need, Arena& arena, const Arena::Growth& growth);
  /// Cached in whole handles; or at least `enough`.
  std::size_t idle_bytes(std::size_t enough) const;
  std::size_t stitchable_bytes(const Need& need) const;
  std::size_t stitch(Need& need);
  /// Moves free handles of at most `bytes` to the address `to` inside `target`; the bytes moved.
  std::size_t move_handles(Lock& lock, Window& window, std::uintptr_t to, std::size_t bytes, const Block* target);
  void record_pages(TraceKind kind, std::uintptr_t address, std::size_t bytes);

  // pool_release.cpp: giving pages back.
  std::pair<Arena*, Block*> least_recently_used();
  std::size_t release(Lock& lock, std::size_t bytes);
  std::size_t release_from(Lock& lock, Arena& arena, Block* block, std::size_t bytes);
  std::size_t release_for(Need& need);
  void release_decayed(Lock& lock);
  std::size_t release_cached(std::size_t bytes);
  /// Whether anything cached may have reached its age.
  bool decay_is_due();
  bool join_mixed_handles(Lock& lock);
  std::size_t pinned_bytes() const;
  std::size_t press_pinned_below(std::size_t wanted);

  // pool_plan.cpp: mode `planned`. With the mutex held, but for begin_planned_step().
  void begin_planned_step();
  /// The place that the plan has for it, busy; nullptr if there is none.
  Block* planned_place(const Need& need);
  /// Tells the planner about a block that is about to be handed out, if it is not from a plan.
  void note_served(const Block* block, Tag tag, std::size_t alignment) noexcept;
  /// A block that is given back goes to the planner; false if it is the arena's.
  bool return_to_plan(Block* block, Stream stream);
  /// The block as one of the arena's: if it lies in a slab, the plan is dropped.
  Block* leave_plan(Block* block);
  /// Slabs become ordinary blocks, live and free. True if there were any.
  bool drop_plan(bool useless);
  /// A plan that could not be carried out: what was found for its slabs is free again.
  void forget_plan(const std::vector<Need>& slabs) noexcept;
  bool give_up_plan(bool useless) {
    const std::lock_guard lock(mutex_);
    return drop_plan(useless);
  }
  /// What a slab consists of.
  std::vector<Block> pieces_of(const Block* slab) const;

  // pool_report.cpp
  /// What replaying the recorded history under other settings has proved to help.
  std::vector<std::string> advice(const Need& need) const;
  std::string report(const Need& need, std::vector<Yield> yields);

  const std::uint64_t id_;
  std::size_t place_ = SIZE_MAX;
  const AllocatorConfig config_;
  const std::unique_ptr<DeviceMemory> memory_;
  const Device device_;
  const std::size_t granule_;
  const std::size_t page_;
  const std::size_t large_page_;
  const bool poison_;
  const bool tags_;       // categories are told apart, counted and hashed
  const bool races_;      // the device wants to know who touches what
  const bool decays_;     // cached pages go back with age
  const bool magazines_;  // threads may keep blocks
  const bool routines_;   // and be answered from memory
  const bool packing_;    // live blocks may be packed

  mutable Mutex mutex_{*this};
  std::condition_variable device_calls_done_;
  std::size_t device_calls_ = 0;  // calls under way that may end with more free memory
  std::uint64_t device_calls_ended_ = 0;
  BlockStore store_;
  std::array<Arena, 2> arenas_;  // transients; long-lived
  std::list<Pending> pending_;
  const std::unique_ptr<StepPlanner> planner_;  // in mode `planned` only
  StreamOrder order_;
  // noted_bytes() up to which nothing is packed: now; whatever is reserved; and at least, since it was in vain.
  std::size_t pack_above_ = 0, pack_patience_ = 0, pack_regret_ = 0;
  std::size_t packed_ = 0, taken_out_ = 0;  // blocks: the last time, or 0 once that is judged; since then
  std::unordered_map<const Block*, std::vector<Stamp>> uses_;  // by streams beside the block's own, when last noted
  bool can_move_ = true;                                       // the device has not refused to move memory yet
  std::size_t budget_ = 0;
  struct TickMark {
    std::chrono::steady_clock::time_point time;
    std::uint64_t tick;
  };
  std::uint64_t decay_due_ = 0;       // the tick before which nothing reaches its age
  std::uint64_t decayed_mark_ = 0;    // what was given back up to this tick has reached its age in milliseconds
  std::vector<TickMark> tick_marks_;  // of the last milliseconds in which pages decay, a sixteenth of these apart
  mutable std::uint64_t tick_ = 0;    // allocations and frees; those of hot paths once they are added up
  mutable Statistics statistics_;     // the same
  RequestSequence sequence_;          // of threads that have no cache
  std::uint64_t retired_hash_ = RequestSequence::start;  // of threads that have ended
  std::uint64_t next_cache_ = 0;
  Routine routine_;
  std::atomic<std::uint64_t> steps_ = 0;
  std::vector<std::weak_ptr<ReclaimClient>> clients_;
  OutOfMemoryCallback out_of_memory_callback_;
  const std::vector<Rung> own_rungs_ = own_rungs();
  const std::vector<Rung> rungs_without_clients_ = rungs_with({});

  mutable std::mutex caches_mutex_;  // taken last; the caches are guarded by both mutexes
  std::vector<ThreadCache*> caches_;
  PoolTrace trace_;
  std::optional<HeldStill> held_still_;
};

}  // namespace poolgrad
