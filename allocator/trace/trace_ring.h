// Where one thread records its newest events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/trace/trace.h"

namespace poolgrad {

/// A ring of events that overwrites the oldest. Its memory is untouched, so without pages behind it, until it is used.
/// It belongs to one thread at a time: nothing here is atomic.
class TraceRing {
 public:
  /// Throws ValueError for a capacity of 0 or of more than 2^40 events, std::bad_alloc.
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
  /// Events that can still be read.
  std::size_t size() const { return laps_ == 0 ? position() : capacity(); }
  /// Events that were overwritten.
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

/// What several rings hold, as one history.
struct MergedEvents {
  std::vector<TraceEvent> events;  // by time; those of one ring stay in order
  std::uint64_t lost = 0;
};

/// Merges rings by time. A history that begins in the middle is of no use, so what is older than the first event of
/// any ring that has lost events is left out and counted as lost.
MergedEvents merge_rings(std::span<const TraceRing* const> rings);

}  // namespace poolgrad
