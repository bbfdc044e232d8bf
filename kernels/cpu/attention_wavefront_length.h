// How long a wavefront of key tiles takes, before it is begun.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_reach.h"

namespace poolgrad::kernels::attention {

class WavefrontLength {
 public:
  /// Elements of scratch, by query head and tile.
  static constexpr std::int64_t per_tile = 3;

  /// The tiles and heads as in `reach`. `group` heads follow each other in one item; `step` rows are visited at a time.
  WavefrontLength(Stream stream, const AttentionReach& reach, const AttentionTiles& by_key, std::int64_t first_head,
                  std::int64_t heads, std::int64_t group, std::int64_t step);

  /// How long `threads` threads take for all key tiles of groups [groups) one after another, each behind the one before
  /// it, in pairs that one thread visits: from the sum over `threads`, where tiles share few rows or reach far, up to
  /// the sum, where a tile begins with the rows that the one before it ends with. Groups beyond the last one begin
  /// again with the first, for the next batch entry.
  double of(Interval groups, std::int64_t threads) const;

 private:
  std::int64_t tiles_, count_;  // of tiles; of items: a group's tile
  PlanningSpace<double> space_;
  double *pairs_, *delay_;  // by group, then tile
};

}  // namespace poolgrad::kernels::attention
