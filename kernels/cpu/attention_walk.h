// The runs of a schedule behind one function call: the walk over strips is compiled once, not in every kernel.
#pragma once

#include <cstdint>

#include "kernels/attention_schedule.h"

namespace poolgrad::kernels::attention {

namespace detail {
void walk(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, std::int64_t limit,
          void (*call)(const void*, const Strip&, const Progression&), const void* context);
}  // namespace detail

/// for_each_key_tile(), out of line.
template <class F>
void walk_key_tiles(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, std::int64_t limit,
                    const F& f) {
  detail::walk(
      schedule, h, tile, limit,
      [](const void* erased, const Strip& strip, const Progression& run) {
        (*static_cast<const F*>(erased))(strip, run);
      },
      &f);
}

}  // namespace poolgrad::kernels::attention
