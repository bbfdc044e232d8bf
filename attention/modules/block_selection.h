// Which blocks of keys are worth a query's attention: a scorer that is trained (after Native Sparse Attention, Yuan et
// al. 2025).
//
// Keys and values are summarised block by block (means), and queries and key summaries are projected to a small width;
// their products are the scores. They are used twice. Softly: attention over the summaries, by the same scores, gives a
// coarse result; through it gradients reach the scorer. Hard: the best blocks for each block of queries are attended to
// in full; no gradient goes through that choice.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/modules/attention_core.h"
#include "attention/pattern/pattern.h"
#include "nn/module.h"

namespace poolgrad::attention {

struct BlockSelectionOptions {
  std::int64_t block_size = 64;  // positions; a multiple of 16
  std::int64_t selected = 16;    // blocks for each block of queries, its own among them
  /// In (0, 1]: where given, the fraction of the blocks that a block of queries may see, instead of `selected`.
  std::optional<double> sparsity_ratio = std::nullopt;
  std::int64_t projection = 32;  // width of the scores' products
};

class BlockSelection : public nn::Module {
 public:
  /// For heads of `head_dim`. ValueError: sizes below 1, block size, density.
  explicit BlockSelection(std::int64_t head_dim, const BlockSelectionOptions& options = {},
                          const nn::ParameterOptions& parameters = {}, CallSite = {});

  /// The coarse result (B, N, H, Dv): every query attends to the summaries of all blocks, or, causal, of the blocks
  /// before its own (none: 0). Differentiable in everything. Shapes as for attend(), with as many queries as keys. Keys
  /// that are padding (AttendOptions::key_padding) are in no summary, and blocks of nothing else are no keys.
  Tensor summary_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                           const Tensor& key_padding = {}, CallSite = {});

  /// The chosen blocks, one pattern for each batch entry, with a list for each query head; heads that share keys have
  /// equal lists. A block of queries is scored by its mean or, causal, by its first query, since a later one must not
  /// decide what an earlier one sees; then only blocks up to its own are chosen. Its own block always is. Of equal
  /// scores the earlier block wins.
  std::vector<Pattern> select(const Tensor& q, const Tensor& k, bool causal, const Tensor& key_padding = {},
                              CallSite = {});

  const BlockSelectionOptions& options() const { return options_; }

 private:
  struct Projected {
    Tensor q, k;  // (B, N, H, P), (B, blocks, Hkv, P)
  };
  Projected project(const Tensor& q, const Tensor& k, const Tensor& key_padding) const;

  BlockSelectionOptions options_;
  Tensor query_weight_, key_weight_;  // (P, D)
};

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

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call = {}) override;
  bool continues() const override { return false; }

  BlockSelection& selection() { return selection_; }

 private:
  BlockSelection selection_;
  Tensor gate_weight_, gate_bias_;  // (1, D), (1)
};

}  // namespace poolgrad::attention
