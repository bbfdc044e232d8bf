#include "allocator/pool/emergency_ladder.h"

#include <algorithm>
#include <chrono>

namespace poolgrad {

namespace {

// The level of the lowest rung that this thread may not use: none, or that of the rung that it is running.
thread_local std::size_t forbidden_level = rung_count;

std::size_t level(RungId rung) {
  return static_cast<std::size_t>(rung == RungId::rematerialise ? RungId::offload : rung);
}

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  const auto passed = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace

EmergencyLadder::Running::Running(RungId rung) : previous_(forbidden_level) {
  forbidden_level = std::min(forbidden_level, level(rung));
}

EmergencyLadder::Running::~Running() { forbidden_level = previous_; }

std::vector<Yield> EmergencyLadder::climb(const std::vector<Rung>& rungs, Need& need, const Search& search,
                                          const Observe& observe) {
  std::vector<Yield> yields(rungs.size());
  std::vector<std::size_t> times(rungs.size(), 0);
  std::size_t i = 0;
  while (i < rungs.size() && level(rungs[i].id) < forbidden_level && need.block == nullptr) {
    const Rung& rung = rungs[i];
    std::size_t bytes = 0;
    bool doubtful = false;
    {
      const Running running(rung.id);
      if (times[i] < rungs.size() && rung.estimate(need) != 0) {
        const auto start = std::chrono::steady_clock::now();
        bytes = rung.run(need);
        doubtful = bytes == 0 && !rung.trusted;
        const std::uint64_t nanoseconds = nanoseconds_since(start);
        ++yields[i].runs;
        yields[i].nanoseconds += nanoseconds;
        if (rung.yields) yields[i].bytes += bytes;
        observe(rung, rung.yields ? bytes : 0, nanoseconds);
      }
    }
    if (bytes == 0 && !doubtful) {
      ++i;
      continue;
    }
    times[i] = doubtful ? rungs.size() : times[i] + 1;
    if (need.block == nullptr) search(need);
    i = 0;
  }
  if (need.block != nullptr) return {};
  for (std::size_t rung = 0; rung < rungs.size(); ++rung) yields[rung].rung = rungs[rung].name;
  return yields;
}

}  // namespace poolgrad
