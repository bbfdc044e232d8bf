// A ring of the newest events of a thread, and the clock of their time stamps. Uses the processor's timestamp counter
// if there is one: a read costs a few nanoseconds, while steady_clock can cost a hundred on a virtual machine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/trace/trace.h"

namespace poolgrad {

/// Ticks of the fastest counter that is synchronized across cores: rdtsc on x86-64, cntvct on arm64, else the steady
/// clock. Not ordered with surrounding loads and stores.
inline std::uint64_t trace_ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

/// Converts ticks to nanoseconds. Reads both clocks at construction and again in scale(), so calibration needs no wait.
/// A time stamp in between is as exact as these readings (about 100 ns), even for short recordings.
class TraceClock {
 public:
  TraceClock();

  /// Ticks, and microseconds since 1970, at time 0.
  std::uint64_t start_ticks() const { return start_.ticks; }
  std::uint64_t start_us() const { return start_us_; }

  /// Nanoseconds of time as a function of ticks. Ticks before the start are time 0.
  struct Scale {
    std::uint64_t start = 0;
    double nanoseconds_per_tick = 1.0;

    std::uint64_t operator()(std::uint64_t ticks) const {
      return ticks <= start ? 0 : static_cast<std::uint64_t>(static_cast<double>(ticks - start) * nanoseconds_per_tick);
    }
  };
  /// Reads both clocks; valid for all time stamps so far.
  Scale scale() const;

 private:
  struct Reading {
    std::uint64_t ticks = 0;
    std::uint64_t nanoseconds = 0;
  };
  static Reading read();

  Reading start_;
  std::uint64_t start_us_;
};

/// A ring of events that overwrites the oldest. Its memory has no pages until used. Owned by one thread at a time; not
/// atomic.
class TraceRing {
 public:
  /// Throws ValueError for a capacity of 0 or above 2^40 events, and std::bad_alloc.
  explicit TraceRing(std::size_t capacity);
  ~TraceRing();
  TraceRing(const TraceRing&) = delete;
  TraceRing& operator=(const TraceRing&) = delete;

  void record(const TraceEvent& event) noexcept {
    *next_ = event;
    if (++next_ == end_) {
      next_ = begin_;
      ++laps_;
    }
  }

  std::size_t capacity() const { return static_cast<std::size_t>(end_ - begin_); }
  /// Events still in the ring.
  std::size_t size() const { return laps_ == 0 ? position() : capacity(); }
  /// Events overwritten.
  std::uint64_t lost() const { return laps_ == 0 ? 0 : (laps_ - 1) * capacity() + position(); }
  /// Oldest first.
  std::vector<TraceEvent> events() const;
  void clear();

 private:
  std::size_t position() const { return static_cast<std::size_t>(next_ - begin_); }

  TraceEvent* begin_;
  TraceEvent* next_;
  TraceEvent* end_;
  std::uint64_t laps_ = 0;
};

/// The events of several rings as one history.
struct MergedEvents {
  std::vector<TraceEvent> events;  // by time; those of one ring stay in order
  std::uint64_t lost = 0;
};

/// Merges rings by time. Leaves out all events older than the first event of any ring that lost events, and counts them
/// as lost: a ring's history must not begin in the middle.
MergedEvents merge_rings(std::span<const TraceRing* const> rings);

}  // namespace poolgrad
