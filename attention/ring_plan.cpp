#include "attention/ring_plan.h"

#include <algorithm>

namespace poolgrad::attention {

namespace {

/// Large tiles make this cheap. They may count keys that lie between those of two rows without belonging to either,
/// which costs a step that adds nothing.
bool visits_anything(const kernels::AttentionSchedule& schedule) {
  constexpr std::int64_t limit = std::int64_t{1} << 20;
  if (schedule.queries.count == 0 || schedule.keys.count == 0) return false;
  const kernels::RowTiling tiling(schedule, limit);
  bool found = false;
  for (std::int64_t h = 0; h < schedule.heads && !found; ++h)
    for (std::int64_t tile = 0; tile < tiling.tiles() && !found; ++tile)
      kernels::for_each_key_tile(schedule, h, tiling.tile(tile), limit,
                                 [&](const kernels::Strip&, const kernels::Progression&) { found = true; });
  return found;
}

}  // namespace

RingPlan::RingPlan(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
                   std::int64_t keys, std::int64_t q_offset)
    : pattern_(pattern),
      layout_(layout),
      ranks_(ranks),
      heads_(heads),
      queries_(queries),
      keys_(keys),
      q_offset_(q_offset) {
  for (int rank = 0; rank < ranks; ++rank)
    for (int step = 0; step < ranks; ++step) {
      bool anything = step == 0;
      if (!anything)
        for (const kernels::AttentionSchedule& pass : compile(rank, step).passes)
          anything = anything || visits_anything(pass);
      computes_.push_back(anything);
    }
  for (int step = 0; step < ranks; ++step) {
    bool wanted = false;
    for (int rank = 0; rank < ranks; ++rank) wanted = wanted || computes(rank, step);
    if (wanted) visited_.push_back(step);
  }
}

std::int64_t RingPlan::most_keys() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, keys_of(rank).count);
  return most;
}

Pattern::Compiled RingPlan::compile(int rank, int step) const {
  return pattern_.compile(heads_, queries_of(rank), keys_of(owner(rank, step)));
}

}  // namespace poolgrad::attention
