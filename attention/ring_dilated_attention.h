// Dilated attention (LongNet) over a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/dilated_core.h"
#include "attention/ring_attention.h"

namespace poolgrad::attention {

/// What ImprovedDilatedAttention computes, with the sequence divided among ranks. In the contiguous layout segments
/// that lie within a rank's chunk cost no message.
class RingDilatedAttention : public DilatedCore {
 public:
  /// Throws ValueError for what Pattern::dilated() and ModuleRing refuse.
  RingDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                       const std::vector<std::int64_t>& dilation_rates, const RingSetup& ring = {},
                       const DilatedOptions& dilated = {}, const CoreOptions& options = {});

  /// A bias is refused: ValueError.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  const ModuleRing& ring() const { return ring_; }

 private:
  ModuleRing ring_;
};

}  // namespace poolgrad::attention
