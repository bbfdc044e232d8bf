#include "allocator/trace/trace_ring.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "allocator/error.h"

namespace poolgrad {

namespace {

template <typename Unit, typename Clock>
std::uint64_t now() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<Unit>(Clock::now().time_since_epoch()).count());
}

constexpr std::align_val_t cache_line{64};

TraceEvent* make_events(std::size_t capacity) {
  if (capacity == 0 || capacity > std::size_t{1} << 40) {
    throw ValueError("[trace] a ring must have 1 to 2^40 events, got " + std::to_string(capacity));
  }
  return static_cast<TraceEvent*>(::operator new(capacity * sizeof(TraceEvent), cache_line));
}

}  // namespace

TraceClock::TraceClock() : start_(read()), start_us_(now<std::chrono::microseconds, std::chrono::system_clock>()) {}

// Reads the counter before and after the clock. The attempt with the shortest gap was the least disturbed.
TraceClock::Reading TraceClock::read() {
  Reading best;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::uint64_t before = trace_ticks();
    const std::uint64_t nanoseconds = now<std::chrono::nanoseconds, std::chrono::steady_clock>();
    const std::uint64_t between = trace_ticks() - before;
    if (between >= least) continue;
    least = between;
    best = {before + between / 2, nanoseconds};
  }
  return best;
}

TraceClock::Scale TraceClock::scale() const {
  const Reading end = read();
  Scale scale{start_.ticks, 1.0};
  if (end.ticks > start_.ticks && end.nanoseconds > start_.nanoseconds) {
    scale.nanoseconds_per_tick =
        static_cast<double>(end.nanoseconds - start_.nanoseconds) / static_cast<double>(end.ticks - start_.ticks);
  }
  return scale;
}

TraceRing::TraceRing(std::size_t capacity) : begin_(make_events(capacity)), next_(begin_), end_(begin_ + capacity) {}

TraceRing::~TraceRing() { ::operator delete(begin_, cache_line); }

std::vector<TraceEvent> TraceRing::events() const {
  std::vector<TraceEvent> events;
  events.reserve(size());
  if (laps_ > 0) events.assign(next_, end_);
  events.insert(events.end(), begin_, next_);
  return events;
}

void TraceRing::clear() {
  next_ = begin_;
  laps_ = 0;
}

MergedEvents merge_rings(std::span<const TraceRing* const> rings) {
  MergedEvents merged;
  std::uint64_t complete_since = 0;
  for (const TraceRing* ring : rings) {
    std::vector<TraceEvent> events = ring->events();
    // Merging needs monotonic time inside a ring. After a thread moves to another core, the counter may be a little
    // behind.
    for (std::size_t i = 1; i < events.size(); ++i) events[i].time = std::max(events[i].time, events[i - 1].time);
    merged.lost += ring->lost();
    if (ring->lost() > 0) complete_since = std::max(complete_since, events.front().time);
    merged.events.insert(merged.events.end(), events.begin(), events.end());
  }
  std::stable_sort(merged.events.begin(), merged.events.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.time < b.time; });
  const auto first = std::find_if(merged.events.begin(), merged.events.end(),
                                  [&](const TraceEvent& event) { return event.time >= complete_since; });
  merged.lost += static_cast<std::uint64_t>(first - merged.events.begin());
  merged.events.erase(merged.events.begin(), first);
  return merged;
}

}  // namespace poolgrad
