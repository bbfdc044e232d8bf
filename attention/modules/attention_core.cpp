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

AttendOptions AttentionCore::attend_options(AttendOptions call) const {
  if (!call.scale) call.scale = options_.scale;
  if (!call.softcap) call.softcap = options_.softcap;
  if (call.dropout == 0.0) call.dropout = dropout();
  if (call.generator == nullptr) call.generator = options_.generator;
  return call;
}

}  // namespace poolgrad::attention
