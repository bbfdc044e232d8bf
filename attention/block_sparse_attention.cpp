#include "attention/block_sparse_attention.h"

#include <algorithm>

namespace poolgrad::attention {

BlockSparseCore::BlockSparseCore(const CoreOptions& options, std::int64_t largest_segment)
    : AttentionCore(options, choose_memory_mode(largest_segment, true, options.memory_mode)) {}

double BlockSparseCore::density(std::int64_t length, bool causal) const {
  const Pattern kept = pattern(length, causal);
  return (causal ? kept & Pattern::causal() : kept).density(1, length, length);
}

Tensor BlockSparseCore::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  const std::int64_t length = k.defined() && k.rank() == 4 ? k.size(1) : 0;  // attend() refuses the rest
  return attend_by(pattern(length, call.causal), q, k, v, call);
}

BlockSparseDilatedAttention::BlockSparseDilatedAttention(const SparsePatternConfig& config, const CoreOptions& options,
                                                         const std::vector<std::int64_t>& segment_lengths,
                                                         const std::vector<std::int64_t>& dilation_rates)
    : BlockSparseCore(options,
                      segment_lengths.empty() ? 0 : *std::max_element(segment_lengths.begin(), segment_lengths.end())),
      config_(config),
      segment_lengths_(segment_lengths),
      dilation_rates_(dilation_rates) {
  config.validate();
  if (!segment_lengths.empty() || !dilation_rates.empty()) Pattern::dilated(segment_lengths, dilation_rates);
}

Pattern BlockSparseDilatedAttention::pattern(std::int64_t length, bool causal) const {
  const Pattern blocks = config_.pattern(length, causal);
  if (segment_lengths_.empty()) return blocks;
  return blocks | Pattern::dilated(segment_lengths_, dilation_rates_, {.unite = true});
}

}  // namespace poolgrad::attention
