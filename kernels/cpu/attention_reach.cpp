#include "kernels/cpu/attention_reach.h"

#include <algorithm>

#include "kernels/cpu/attention_walk.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels::attention {

AttentionReach::AttentionReach(const AttentionSchedule& by_key, const RowTiling& tiling, std::int64_t first_head,
                               std::int64_t heads)
    : tiles_(tiling.tiles()), reach_(static_cast<std::size_t>(heads * tiling.tiles())) {
  parallel_ranges(heads * tiles_, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      Reach& found = reach_[static_cast<std::size_t>(n)];
      const Progression keys = tiling.tile(n % tiles_);
      walk_key_tiles(by_key, first_head + n / tiles_, keys, unbounded, [&](const Strip&, const Progression& run) {
        found.ascending &= run.row >= found.end;
        found.begin = found.pairs == 0 ? run.row : std::min(found.begin, run.row);
        found.end = std::max(found.end, run.row + (run.count - 1) * run.stride + 1);
        found.pairs += static_cast<double>(keys.count) * static_cast<double>(run.count);
      });
    }
  });
  for (std::int64_t h = 0; h < heads; ++h) {
    std::int64_t complete = by_key.keys.count, visited = 0;
    for (std::int64_t t = tiles_ - 1; t >= 0; --t) {
      Reach& reach = reach_[static_cast<std::size_t>(h * tiles_ + t)];
      if (reach.pairs > 0) complete = std::min(complete, reach.begin);
      reach.complete = complete;
    }
    for (std::int64_t t = 0; t < tiles_; ++t) {
      Reach& reach = reach_[static_cast<std::size_t>(h * tiles_ + t)];
      reach.entered = visited;
      visited = std::max(visited, reach.end);
      span_ = std::max(span_, visited - reach.complete);
    }
  }
}

double AttentionReach::pairs(std::int64_t head, Interval tiles, Interval rows) const {
  double sum = 0;
  for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
    const Reach& r = at(head, t);
    const Interval shared = Interval{r.begin, r.end} & rows;
    if (!shared.empty())
      sum += r.pairs * static_cast<double>(shared.end - shared.begin) / static_cast<double>(r.end - r.begin);
  }
  return sum;
}

}  // namespace poolgrad::kernels::attention
