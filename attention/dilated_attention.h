// LongNet's dilated attention, readable: gathered segments, ordinary softmax attention inside them, branches mixed by
// their softmax denominators (Ding et al. 2023, section 2.3). Made of differentiable operators only. What the fused
// ImprovedDilatedAttention computes in one pass, this computes as the paper writes it; both give the same values.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/dilated_core.h"

namespace poolgrad::attention {

/// Switches that reproduce what other programs compute, for comparisons; off by default.
struct DilatedCompatibility {
  /// The result is multiplied by it; 1 / (number of branches) in programs that give each group of heads one branch and
  /// still average over the groups.
  double scale_out = 1.0;
  /// No gradient flows through the weights of the branches (torchscale).
  bool detach_mix = false;
};

/// Branch b cuts the positions into segments of segment_lengths[b] (the last may be short), takes every
/// dilation_rates[b]-th position of each from the head's phase on, and attends among those. A query's result is the
/// mean of its branches weighted by exp(lse_b); a query in no branch gets 0. Phases, groups and `unite` are those of
/// Pattern::dilated(). Scores and weights of a segment are in memory: O(w^2 / r^2) for each.
class DilatedAttention : public DilatedCore {
 public:
  /// Throws ValueError for what Pattern::dilated() refuses, and for a scale_out that is not finite.
  DilatedAttention(const std::vector<std::int64_t>& segment_lengths, const std::vector<std::int64_t>& dilation_rates,
                   const DilatedOptions& dilated = {}, const CoreOptions& options = {},
                   const DilatedCompatibility& compatibility = {});

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;

 private:
  DilatedCompatibility compatibility_;
};

}  // namespace poolgrad::attention
