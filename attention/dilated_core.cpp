#include "attention/dilated_core.h"

#include <algorithm>
#include <string>

#include "allocator/error.h"

namespace poolgrad::attention {

namespace {

std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

}  // namespace

DilatedCore::DilatedCore(const std::vector<std::int64_t>& segment_lengths,
                         const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated,
                         const CoreOptions& options, bool always_pooled)
    : AttentionCore(options, choose_memory_mode(longest(segment_lengths), always_pooled, options.memory_mode)),
      segment_lengths_(segment_lengths),
      dilation_rates_(dilation_rates),
      dilated_(dilated),
      pattern_(Pattern::dilated(segment_lengths, dilation_rates, dilated)) {}

void DilatedCore::check_heads(std::int64_t heads) const {
  AttentionCore::check_heads(heads);
  const auto branches = static_cast<std::int64_t>(segment_lengths_.size());
  if (dilated_.mode == DilatedMode::grouped && heads < branches)
    throw ValueError("[dilated_attention] grouped mode needs a head for each branch: heads " + std::to_string(heads) +
                     ", branches " + std::to_string(branches));
}

}  // namespace poolgrad::attention
