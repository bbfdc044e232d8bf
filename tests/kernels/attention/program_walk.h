// Walks one row of a program at a time, as kernels do, on the host and on devices.
#pragma once

#include "kernels/schedule/program.h"

namespace poolgrad::kernels::testing_support {

/// Hash of the keys that a row visits, with their multiplicities, in order.
struct RowWalk {
  std::uint64_t order = 0;

  POOLGRAD_HD void add(std::int64_t key, double log_multiplicity) {
    order ^= static_cast<std::uint64_t>(key + 1) ^ static_cast<std::uint64_t>(1e6 * log_multiplicity) << 40;
    order = (order ^ order >> 29) * 0x9E3779B97F4A7C15u;
  }
};

/// Calls f(run, key, log_multiplicity) for the key positions that row t of tile `number` sees. It includes pairs that a
/// mask removes.
template <class F>
POOLGRAD_HD void walk_row(const AttentionProgram& program, std::int64_t number, std::int64_t t, F&& f) {
  const Progression& tile = program.tile[number % program.tiles];
  const std::int64_t row = tile.position + t * tile.step;
  const AttentionRun* const end = program.run + program.tile_begin[number + 1];
  for (const AttentionRun* run = program.run + program.tile_begin[number]; run != end; ++run) {
    if (!run->rows.contains(t)) continue;
    const Interval steps = program.steps_seen(*run, run->keys, row);
    std::int64_t key = run->keys.position + steps.begin * run->keys.step;
    const int period = run->period, step = period == 0 ? 0 : static_cast<int>(run->keys.step % period);
    int phase = period == 0 ? 0 : static_cast<int>(floor_mod(key, period));
    for (std::int64_t s = steps.begin; s < steps.end; ++s, key += run->keys.step) {
      f(*run, key, period == 0 ? 0.0 : program.log_multiplicity[run->table + phase]);
      if ((phase += step) >= period) phase -= period;
    }
  }
}

}  // namespace poolgrad::kernels::testing_support
