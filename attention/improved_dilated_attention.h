// LongNet's dilated attention in one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/dilated_core.h"

namespace poolgrad::attention {

/// attend() with Pattern::dilated(): branches mixed by their softmax denominators are one softmax over the keys of all
/// branches, so nothing is gathered and no branch has a result of its own. DilatedAttention without its switches.
class ImprovedDilatedAttention : public DilatedCore {
 public:
  /// Throws ValueError for what Pattern::dilated() refuses.
  ImprovedDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                           const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated = {},
                           const CoreOptions& options = {});

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
};

}  // namespace poolgrad::attention
