#include "allocator/emergency_ladder.h"

#include <algorithm>
#include <limits>

namespace poolgrad {

namespace {

// How many rungs this thread may use: all, or those below the rung that it is running.
thread_local std::size_t rungs_allowed = std::numeric_limits<std::size_t>::max();

class RungGuard {
 public:
  explicit RungGuard(std::size_t rung) : previous_(rungs_allowed) { rungs_allowed = std::min(rungs_allowed, rung); }
  ~RungGuard() { rungs_allowed = previous_; }
  RungGuard(const RungGuard&) = delete;
  RungGuard& operator=(const RungGuard&) = delete;

 private:
  std::size_t previous_;
};

}  // namespace

std::vector<Yield> EmergencyLadder::climb(const std::vector<Rung>& rungs, Need& need, const Search& search) {
  std::vector<Yield> yields;
  for (const Rung& rung : rungs) yields.push_back({rung.name, 0});
  std::vector<std::size_t> times(rungs.size(), 0);
  const std::size_t top = std::min(rungs.size(), rungs_allowed);
  std::size_t i = 0;
  while (i < top && need.block == nullptr) {
    const RungGuard guard(i);
    const bool asked = times[i] < rungs.size() && rungs[i].estimate(need) != 0;
    const std::size_t bytes = asked ? rungs[i].run(need) : 0;
    if (bytes == 0) {
      ++i;
      continue;
    }
    if (rungs[i].yields) yields[i].bytes += bytes;
    ++times[i];
    if (need.block == nullptr) search(need);
    i = 0;
  }
  return yields;
}

}  // namespace poolgrad
