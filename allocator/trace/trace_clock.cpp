#include "allocator/trace/trace_clock.h"

#include <limits>

namespace poolgrad {

namespace {

template <typename Unit, typename Clock>
std::uint64_t now() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<Unit>(Clock::now().time_since_epoch()).count());
}

}  // namespace

TraceClock::TraceClock() : start_(read()), start_us_(now<std::chrono::microseconds, std::chrono::system_clock>()) {}

// The counter is read on both sides of the clock; of a few attempts the one with the least between them was the least
// disturbed.
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

}  // namespace poolgrad
