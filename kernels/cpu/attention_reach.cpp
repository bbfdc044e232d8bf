#include "kernels/cpu/attention_reach.h"

#include <algorithm>

#include "kernels/cpu/attention_walk.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels::attention {

namespace {

/// Rows that a tile visits in one go, in order.
struct Visit {
  std::int64_t begin, end;
  double pairs, at_a_time;
};
using Visits = std::vector<Visit>;

/// Pairs until the rows before `row` are passed, by a tile that visits rows in their order.
double pairs_until(const Visits& tile, std::int64_t row) {
  double pairs = 0;
  for (const Visit& v : tile) {
    if (row > v.end) {
      pairs += v.pairs;
      continue;
    }
    const double part = static_cast<double>(row - v.begin) / static_cast<double>(v.end - v.begin);
    return pairs + std::min(v.pairs, std::max(v.at_a_time, v.pairs * part));
  }
  return pairs;
}

double all_pairs(const Visits& tile) {
  double pairs = 0;
  for (const Visit& v : tile) pairs += v.pairs;
  return pairs;
}

/// How far ahead the tile `before` has to be. What is visited out of order counts as passed at the end.
double delay_behind(const Visits& before, bool ascending, const Visits& tile) {
  std::int64_t shared_end = 0;
  for (const Visit& v : before) shared_end = std::max(shared_end, v.end);
  double longest = 0, own = 0;
  for (const Visit& v : tile) {
    const auto wait = [&](std::int64_t row, double done) {
      const double ahead = ascending ? pairs_until(before, std::min(row, shared_end)) : all_pairs(before);
      longest = std::max(longest, ahead - done);
    };
    if (v.begin < shared_end) {
      const double first = static_cast<double>(v.end - v.begin) * std::min(1.0, v.at_a_time / v.pairs);
      wait(v.begin + static_cast<std::int64_t>(first), own);
      wait(v.end, own + std::max(0.0, v.pairs - v.at_a_time));
    }
    own += v.pairs;
  }
  return longest;
}

}  // namespace

AttentionReach::AttentionReach(const AttentionSchedule& by_key, const RowTiling& tiling, std::int64_t first_head,
                               std::int64_t heads, std::int64_t step)
    : tiles_(tiling.tiles()), reach_(static_cast<std::size_t>(heads * tiling.tiles())) {
  const auto visits_of = [&](std::int64_t n) {
    Visits visits;
    const Progression keys = tiling.tile(n % tiles_);
    walk_key_tiles(by_key, first_head + n / tiles_, keys, unbounded, [&](const Strip&, const Progression& run) {
      const auto width = static_cast<double>(keys.count);
      visits.push_back({run.row, run.row + (run.count - 1) * run.stride + 1, width * static_cast<double>(run.count),
                        width * static_cast<double>(std::min(step, run.count))});
    });
    return visits;
  };
  const auto ascend = [](const Visits& visits) {
    const auto behind = [](const Visit& a, const Visit& b) { return b.begin < a.end; };
    return std::adjacent_find(visits.begin(), visits.end(), behind) == visits.end();
  };
  parallel_ranges(heads * tiles_, 64, [&](std::int64_t begin, std::int64_t end) {
    Visits before, visits;
    if (begin % tiles_ > 0) before = visits_of(begin - 1);
    for (std::int64_t n = begin; n < end; ++n, before.swap(visits)) {
      Reach& found = reach_[static_cast<std::size_t>(n)];
      visits = visits_of(n);
      found.pairs = all_pairs(visits);
      found.ascending = ascend(visits);
      for (const Visit& v : visits) {
        found.begin = &v == visits.data() ? v.begin : std::min(found.begin, v.begin);
        found.end = std::max(found.end, v.end);
      }
      if (n % tiles_ > 0) found.delay = delay_behind(before, ascend(before), visits);
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
