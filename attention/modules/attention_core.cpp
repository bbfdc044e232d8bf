#include "attention/modules/attention_core.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "allocator/error.h"

namespace poolgrad::attention {

std::int64_t longest_segment(const std::vector<std::int64_t>& segment_lengths) {
  return segment_lengths.empty() ? 0 : *std::max_element(segment_lengths.begin(), segment_lengths.end());
}

AllocatorMode choose_memory_mode(std::int64_t largest_segment, bool always_pooled,
                                 std::optional<AllocatorMode> chosen) {
  const AllocatorMode mode = mode_for_segments(largest_segment, chosen);
  return mode == AllocatorMode::none && always_pooled && !chosen ? AllocatorMode::lightweight : mode;
}

AttentionCore::AttentionCore(const CoreOptions& options, AllocatorMode memory_mode)
    : options_(options), memory_mode_(memory_mode) {
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

Tensor AttentionCore::attend_by(const Pattern& pattern, const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionCall& call) const {
  if (q.defined() && q.rank() == 4) check_heads(q.size(2));
  return attend(q, k, v, pattern.causally(call.causal), attend_options(call)).out;
}

}  // namespace poolgrad::attention
