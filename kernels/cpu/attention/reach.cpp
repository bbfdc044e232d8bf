#include "kernels/cpu/attention/reach.h"

#include <algorithm>

#include "kernels/parallel.h"

namespace poolgrad::kernels::attention {

bool ascending(std::span<const AttentionRun> runs) {
  const auto behind = [](const AttentionRun& a, const AttentionRun& b) { return b.keys.row < RowVisit(a, {}).end; };
  return std::adjacent_find(runs.begin(), runs.end(), behind) == runs.end();
}

AttentionReach::AttentionReach(Stream stream, const AttentionTiles& by_key, std::int64_t first_head, std::int64_t heads)
    : heads_(std::min(heads, by_key.head_period())),
      tiles_(by_key.count()),
      reach_(stream, "attention", heads_ * tiles_) {
  parallel_ranges(heads_ * tiles_, 64, [&](std::int64_t begin, std::int64_t end) {
    AttentionTiles::Reader read(by_key);
    for (std::int64_t n = begin; n < end; ++n) {
      Reach& found = reach_.data()[n];
      const auto runs = read(first_head + n / tiles_, n % tiles_).runs;
      const Progression tile = by_key.tile(n % tiles_);
      found.ascending = attention::ascending(runs);
      for (const AttentionRun& run : runs) {
        const RowVisit v(run, tile);
        found.begin = found.pairs == 0 ? v.begin : std::min(found.begin, v.begin);
        found.end = std::max(found.end, v.end);
        found.pairs += v.pairs();
      }
    }
  });
  for (std::int64_t h = 0; h < heads_; ++h) {
    std::int64_t complete = by_key.schedule().keys.count, visited = 0;
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
