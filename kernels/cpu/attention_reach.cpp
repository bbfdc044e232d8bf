#include "kernels/cpu/attention_reach.h"

#include <algorithm>

#include "kernels/cpu/attention_walk.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels::attention {

std::vector<RowVisit> row_visits(const AttentionSchedule& by_key, std::int64_t head, const Progression& keys) {
  std::vector<RowVisit> visits;
  walk_key_tiles(by_key, head, keys, unbounded, [&](const Strip&, const Progression& run) {
    visits.push_back({run.row, run.row + (run.count - 1) * run.stride + 1, run.count, keys.count});
  });
  return visits;
}

bool ascending(const std::vector<RowVisit>& visits) {
  const auto behind = [](const RowVisit& a, const RowVisit& b) { return b.begin < a.end; };
  return std::adjacent_find(visits.begin(), visits.end(), behind) == visits.end();
}

AttentionReach::AttentionReach(Stream stream, const AttentionSchedule& by_key, const RowTiling& tiling,
                               std::int64_t first_head, std::int64_t heads)
    : tiles_(tiling.tiles()), reach_(stream, "attention", heads * tiling.tiles()) {
  parallel_ranges(heads * tiles_, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      Reach& found = reach_.data()[n];
      const auto visits = row_visits(by_key, first_head + n / tiles_, tiling.tile(n % tiles_));
      found.ascending = ascending(visits);
      for (const RowVisit& v : visits) {
        found.begin = found.pairs == 0 ? v.begin : std::min(found.begin, v.begin);
        found.end = std::max(found.end, v.end);
        found.pairs += v.pairs();
      }
    }
  });
  for (std::int64_t h = 0; h < heads; ++h) {
    std::int64_t complete = by_key.keys.count, visited = 0;
    for (std::int64_t t = tiles_ - 1; t >= 0; --t) {
      Reach& reach = reach_.data()[h * tiles_ + t];
      if (reach.pairs > 0) complete = std::min(complete, reach.begin);
      reach.complete = complete;
    }
    for (std::int64_t t = 0; t < tiles_; ++t) {
      Reach& reach = reach_.data()[h * tiles_ + t];
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
