#include "kernels/cpu/attention_walk.h"

namespace poolgrad::kernels::attention::detail {

void walk(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, std::int64_t limit,
          void (*call)(const void*, const Strip&, const Progression&), const void* context) {
  for_each_key_tile(schedule, h, tile, limit,
                    [&](const Strip& strip, const Progression& run) { call(context, strip, run); });
}

}  // namespace poolgrad::kernels::attention::detail
