// What a pool has recorded beside the rings of its threads, and how all of it becomes a Trace.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/pool/stream_order.h"
#include "allocator/trace/trace.h"
#include "allocator/trace/trace_ring.h"

namespace poolgrad {

struct PoolSettings;

/// TraceEvent::flags in a ring: a free_completed follows at the same time. One record stands for both.
inline constexpr std::uint8_t completed_at_once = 128;

/// Guarded by the pool's mutex but for what says otherwise.
class Recorder {
 public:
  explicit Recorder(const PoolSettings& settings) : settings_(settings) {}

  /// Forgets what was recorded; rings hold `events` from now on. Throws ValueError for 0.
  void start(std::size_t events);
  bool running() const { return events_ != 0; }
  /// A ring for a thread; nullptr while nothing is recorded.
  std::unique_ptr<TraceRing> make_ring() const;
  /// The thread has ended, or the recording: nothing is added to its ring any more.
  void keep(std::unique_ptr<TraceRing> ring);
  /// The blocks at the end of the recording.
  void stop(std::vector<BlockSnapshot> blocks);

  /// Adds an event, but for its time, to the calling thread's ring, or to one that threads without a ring share. From
  /// any thread, without the pool's mutex or with it.
  void record(TraceEvent event);
  void begin_step() { record({.size = steps_.fetch_add(1, std::memory_order_relaxed), .kind = TraceKind::step}); }
  /// The same for what happens with the mutex held, if anything is recorded: pages come or go; something happens to a
  /// block, in the present epoch of a stream.
  void record_pages(TraceKind kind, std::uintptr_t address, std::size_t bytes) {
    if (running()) record({.address = address, .size = bytes, .kind = kind});
  }
  void record_block(TraceKind kind, const Block& block, Stamp now, std::source_location location = {},
                    std::uint8_t flags = 0);
  /// The number that stands for a stream in rings, the same as long as the pool lives; streams get none while nothing
  /// is recorded. From any thread, as record().
  std::uint32_t stream_index(std::uint64_t stream) noexcept;

  /// Nobody records anything, nor collects, as long as the lock is held.
  std::unique_lock<std::mutex> hold_still() { return std::unique_lock(mutex_); }

  /// All that was recorded, with `running` rings of threads, and the blocks as they are now if recording goes on.
  Trace collect(std::vector<const TraceRing*> running, std::vector<BlockSnapshot> blocks) const;

 private:
  void record_in_common(const TraceEvent& event);

  static constexpr std::size_t most_rings = 256;  // of threads that have ended

  const PoolSettings& settings_;
  std::atomic<std::uint64_t> steps_ = 0;
  std::size_t events_ = 0;
  TraceClock clock_;
  std::optional<TraceClock::Scale> scale_;  // once stopped
  std::vector<std::unique_ptr<TraceRing>> kept_;
  std::uint64_t forgotten_until_ = 0;  // ticks: a ring that ended then had to go
  std::uint64_t forgotten_ = 0;        // its events
  std::vector<BlockSnapshot> blocks_;

  mutable std::mutex mutex_;  // guards what follows
  std::unique_ptr<TraceRing> common_;
  std::vector<std::uint64_t> streams_;
};

}  // namespace poolgrad
