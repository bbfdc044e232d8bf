#include "attention/improved_dilated_attention.h"

namespace poolgrad::attention {

ImprovedDilatedAttention::ImprovedDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                                                   const std::vector<std::int64_t>& dilation_rates,
                                                   const DilatedOptions& dilated, const CoreOptions& options)
    : DilatedCore(segment_lengths, dilation_rates, dilated, options) {}

Tensor ImprovedDilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  return attend_by(pattern(), q, k, v, call);
}

}  // namespace poolgrad::attention
