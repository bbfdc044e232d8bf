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
  const auto use = [&](std::size_t i) {
    const RungGuard guard(i);
    if (rungs[i].estimate(need) == 0) return false;
    const std::size_t bytes = rungs[i].run(need);
    yields[i].bytes += bytes;
    if (bytes != 0 && need.block == nullptr) search(need);
    return bytes != 0;
  };
  const std::size_t top = std::min(rungs.size(), rungs_allowed);
  for (std::size_t i = 0; i < top && need.block == nullptr; ++i) {
    if (!use(i)) continue;
    for (std::size_t lower = 0; lower < i && need.block == nullptr; ++lower) use(lower);
  }
  return yields;
}

}  // namespace poolgrad
