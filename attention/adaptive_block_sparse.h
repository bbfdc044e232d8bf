// Block-sparse attention whose blocks follow from the content.
#pragma once

#include <cstdint>

#include "attention/attention_core.h"
#include "attention/block_selection.h"

namespace poolgrad::attention {

/// Exact attention over the blocks that BlockSelection chooses, plus gate times its coarse result over all blocks. The
/// gate is sigmoid(<w, q_i> + c) for each query and head, w from 0 and c from 0; through it the scorer is trained
/// (Yuan et al. 2025). For self-attention: as many queries as keys; takes no bias (ValueError). Softcap, slopes and
/// sinks are those of the exact attention alone.
class AdaptiveBlockSparseAttention : public AttentionCore {
 public:
  /// For heads of `head_dim`. ValueError as BlockSelection.
  explicit AdaptiveBlockSparseAttention(std::int64_t head_dim, const BlockSelectionOptions& selection = {},
                                        const CoreOptions& options = {}, const nn::ParameterOptions& parameters = {});

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;

  BlockSelection& selection() { return selection_; }

 private:
  BlockSelection selection_;
  Tensor gate_weight_, gate_bias_;  // (1, D), (1)
};

}  // namespace poolgrad::attention
