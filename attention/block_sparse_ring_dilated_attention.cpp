#include "attention/block_sparse_ring_dilated_attention.h"

namespace poolgrad::attention {

BlockSparseRingDilatedAttention::BlockSparseRingDilatedAttention(const SparsePatternConfig& sparse_config,
                                                                 const RingSetup& ring, const CoreOptions& options,
                                                                 const std::vector<std::int64_t>& segment_lengths,
                                                                 const std::vector<std::int64_t>& dilation_rates)
    : BlockSparseDilatedAttention(sparse_config, options, segment_lengths, dilation_rates), ring_(ring) {}

Tensor BlockSparseRingDilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const AttentionCall& call) {
  const std::int64_t part = k.defined() && k.rank() == 4 ? k.size(1) : 0;  // attend() refuses the rest
  const Pattern blocks = pattern(ring_.whole_length(part), call.causal);
  return ring_.attend(call.causal ? blocks & Pattern::causal() : blocks, q, k, v, attend_options(call));
}

}  // namespace poolgrad::attention
