// A pool's recorded events, besides the rings of running threads, and their conversion to a Trace.
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

/// TraceEvent::flags in a ring: a free_completed follows at the same time. One record represents both.
inline constexpr std::uint8_t completed_at_once = 128;

/// Guarded by the pool's mutex unless noted.
class Recorder {
 public:
  explicit Recorder(const PoolSettings& settings) : settings_(settings) {}

  /// Clears the recording and starts with rings of `events`. Throws ValueError for 0.
  void start(std::size_t events);
  bool running() const { return events_ != 0; }
  /// A ring for a thread; nullptr without a recording.
  std::unique_ptr<TraceRing> make_ring() const;
  /// Takes over the ring of a thread that exited, or that stopped recording.
  void keep(std::unique_ptr<TraceRing> ring);
  /// `blocks`: at the end of the recording.
  void stop(std::vector<BlockSnapshot> blocks);

  /// Adds an event and its time to the calling thread's ring, or to a ring shared by threads without one. Thread-safe,
  /// with or without the pool's mutex.
  void record(TraceEvent event);
  void begin_step() { record({.size = steps_.fetch_add(1, std::memory_order_relaxed), .kind = TraceKind::step}); }
  /// The same with the mutex held, if there is a recording: commits and releases of pages, and events of a block, with
  /// the current ticket of a stream.
  void record_pages(TraceKind kind, std::uintptr_t address, std::size_t bytes) {
    if (running()) record({.address = address, .size = bytes, .kind = kind});
  }
  void record_block(TraceKind kind, const Block& block, Stamp now, std::source_location location = {},
                    std::uint8_t flags = 0);
  /// The index of a stream in rings, constant for the pool's lifetime; assigned only during a recording. Thread-safe,
  /// as record().
  std::uint32_t stream_index(std::uint64_t stream) noexcept;

  /// While the lock is held, no thread records or collects.
  std::unique_lock<std::mutex> hold_still() { return std::unique_lock(mutex_); }

  /// All events, with the `running` rings of threads, and, if the recording goes on, the current blocks.
  Trace collect(std::vector<const TraceRing*> running, std::vector<BlockSnapshot> blocks) const;

 private:
  void record_in_common(const TraceEvent& event);

  static constexpr std::size_t most_rings = 256;  // of threads that have exited

  const PoolSettings& settings_;
  std::atomic<std::uint64_t> steps_ = 0;
  std::size_t events_ = 0;
  TraceClock clock_;
  std::optional<TraceClock::Scale> scale_;  // once stopped
  std::vector<std::unique_ptr<TraceRing>> kept_;
  std::uint64_t forgotten_until_ = 0;  // ticks: the end of the last dropped ring
  std::uint64_t forgotten_ = 0;        // events in dropped rings
  std::vector<BlockSnapshot> blocks_;

  mutable std::mutex mutex_;  // guards the members below
  std::unique_ptr<TraceRing> common_;
  std::vector<std::uint64_t> streams_;
};

}  // namespace poolgrad
