// Attention over blocks that a configuration names.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention_core.h"
#include "attention/sparse_pattern_config.h"

namespace poolgrad::attention {

/// What the block-sparse modules share: the pattern follows from the length of the keys, and one softmax goes over all
/// blocks that a query sees.
class BlockSparseCore : public AttentionCore {
 public:
  /// For `length` keys; not itself causal.
  virtual Pattern pattern(std::int64_t length, bool causal = false) const = 0;
  /// The achieved density: pairs of the pattern over all, or over those with j <= i.
  double density(std::int64_t length, bool causal = false) const;

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;

 protected:
  explicit BlockSparseCore(const CoreOptions& options, std::int64_t largest_segment = 0);
};

/// The blocks of a SparsePatternConfig, together with the branches of dilated attention where segment lengths are
/// given: what blocks leave out, dilated segments reach. A pair that both admit counts once.
class BlockSparseDilatedAttention : public BlockSparseCore {
 public:
  /// Throws ValueError for what SparsePatternConfig::validate() and Pattern::dilated() refuse.
  explicit BlockSparseDilatedAttention(const SparsePatternConfig& config = {}, const CoreOptions& options = {},
                                       const std::vector<std::int64_t>& segment_lengths = {},
                                       const std::vector<std::int64_t>& dilation_rates = {});

  Pattern pattern(std::int64_t length, bool causal = false) const override;

 private:
  SparsePatternConfig config_;
  std::vector<std::int64_t> segment_lengths_, dilation_rates_;
};

}  // namespace poolgrad::attention
