#include "attention/ring_dilated_attention.h"

namespace poolgrad::attention {

RingDilatedAttention::RingDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                                           const std::vector<std::int64_t>& dilation_rates, const RingSetup& ring,
                                           const DilatedOptions& dilated, const CoreOptions& options)
    : DilatedCore(segment_lengths, dilation_rates, dilated, options, true), ring_(ring) {}

Tensor RingDilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  if (q.defined() && q.rank() == 4) check_heads(q.size(2));
  return ring_.attend(call.causal ? pattern() & Pattern::causal() : pattern(), q, k, v, attend_options(call));
}

}  // namespace poolgrad::attention
