// Block-sparse attention over a ring.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/block_sparse_attention.h"
#include "attention/ring_attention.h"

namespace poolgrad::attention {

/// What BlockSparseDilatedAttention computes, with the sequence divided among ranks. Blocks are those of the whole
/// sequence and need not lie within a rank's part.
class BlockSparseRingDilatedAttention : public BlockSparseDilatedAttention {
 public:
  /// Throws ValueError for what BlockSparseDilatedAttention and ModuleRing refuse.
  explicit BlockSparseRingDilatedAttention(const SparsePatternConfig& sparse_config = {}, const RingSetup& ring = {},
                                           const CoreOptions& options = {},
                                           const std::vector<std::int64_t>& segment_lengths = {},
                                           const std::vector<std::int64_t>& dilation_rates = {});

  /// A bias is refused: ValueError.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  const ModuleRing& ring() const { return ring_; }

 private:
  ModuleRing ring_;
};

}  // namespace poolgrad::attention
