#include "attention/modules/attention_core.h"

#include <cmath>
#include <string>

#include "allocator/error.h"

namespace poolgrad::attention {

AttentionCore::AttentionCore(const CoreOptions& options) : options_(options) {
  if (!(options.dropout >= 0.0 && options.dropout < 1.0))
    throw ValueError("[attention] dropout must be in [0, 1): " + std::to_string(options.dropout));
  if (options.softcap && !(std::isfinite(*options.softcap) && *options.softcap > 0))
    throw ValueError("[attention] the softcap must be a positive number: " + std::to_string(*options.softcap));
}

void AttentionCore::check_heads(std::int64_t heads) const {
  if (heads < 1) throw ValueError("[attention] heads must be at least 1: " + std::to_string(heads));
}

AttendOptions AttentionCore::attend_options(const AttentionCall& call) const {
  return {.scale = options_.scale,
          .key_positions = call.key_positions,
          .softcap = options_.softcap,
          .bias = call.bias,
          .key_padding = call.key_padding,
          .alibi = call.alibi,
          .sinks = call.sinks,
          .dropout = dropout(),
          .generator = options_.generator,
          .first_batch = call.first_batch};
}

}  // namespace poolgrad::attention
