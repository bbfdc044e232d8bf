// Attention over blocks that a configuration names.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/modules/attention_core.h"
#include "attention/modules/block_selection.h"
#include "attention/pattern/sparse_pattern_config.h"

namespace poolgrad::attention {

/// What the block-sparse modules share: the pattern follows from the length of the keys, and one softmax goes over all
/// blocks that a query sees.
class BlockSparseCore : public AttentionCore {
 public:
  /// For `length` keys; not itself causal.
  virtual Pattern pattern(std::int64_t length, bool causal = false) const = 0;
  std::optional<Pattern> fixed_pattern(std::int64_t length, bool causal) const override {
    return pattern(length, causal);
  }
  /// The achieved density: pairs of the pattern over all, or over those with j <= i.
  double density(std::int64_t length, bool causal = false) const;

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;

 protected:
  explicit BlockSparseCore(const CoreOptions& options, const std::vector<std::int64_t>& segment_lengths = {});
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
  void check_continued(std::int64_t keys, std::int64_t longest) const override;

 private:
  SparsePatternConfig config_;
  std::vector<std::int64_t> segment_lengths_, dilation_rates_;
};

// Near keys densely, far keys in ever sparser and larger blocks.

/// One level: of the blocks of `block` positions, those whose distance from the query's block is a multiple of
/// stride / block, up to window / 2 positions away on either side (-1: any distance). It so keeps block / stride of its
/// window.
struct HierarchyLevel {
  std::int64_t stride, window, block;
};

/// 64 / 256 / 64: all that is near. 256 / 1024 / 128: half of the blocks further out. 1024 / -1 / 256: a quarter of
/// all.
std::vector<HierarchyLevel> default_hierarchy();

/// The union of the levels: a pair that several of them admit counts once. Every query sees its own block.
class HierarchicalBlockSparse : public BlockSparseCore {
 public:
  /// At most 4 levels. ValueError: none or too many, a block that is no multiple of 16, a stride that is no positive
  /// multiple of its block, a window below its block that is not -1.
  explicit HierarchicalBlockSparse(const std::vector<HierarchyLevel>& levels = default_hierarchy(),
                                   const CoreOptions& options = {});

  Pattern pattern(std::int64_t length, bool causal = false) const override;

 private:
  std::vector<HierarchyLevel> levels_;
};

// Block-sparse attention whose blocks follow from the content.

/// Exact attention over the blocks that BlockSelection chooses, plus gate times its coarse result over all blocks. The
/// gate is sigmoid(<w, q_i> + c) for each query and head, w from 0 and c from 0; through it the scorer is trained
/// (Yuan et al. 2025). For self-attention: as many queries as keys; takes no bias (ValueError). Softcap, slopes and
/// sinks are those of the exact attention alone.
class AdaptiveBlockSparseAttention : public AttentionCore {
 public:
  /// For heads of `head_dim`. ValueError as BlockSelection.
  explicit AdaptiveBlockSparseAttention(std::int64_t head_dim, const BlockSelectionOptions& selection = {},
                                        const CoreOptions& options = {}, const nn::ParameterOptions& parameters = {},
                                        CallSite = {});

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  bool continues() const override { return false; }

  BlockSelection& selection() { return selection_; }

 private:
  BlockSelection selection_;
  Tensor gate_weight_, gate_bias_;  // (1, D), (1)
};

}  // namespace poolgrad::attention
