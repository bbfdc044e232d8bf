// A trained scorer that selects blocks of keys for attention (after Native Sparse Attention, Yuan et al. 2025).
//
// Means summarize blocks of keys and values. Queries and key summaries are projected to a small width; their products
// are the scores. The scores serve twice. Softly: attention over the summaries gives a coarse result, which carries
// gradients to the scorer. Hard: each block of queries attends in full to its best blocks; that choice has no gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/modules/attention_core.h"
#include "attention/pattern/pattern.h"
#include "nn/module.h"

namespace poolgrad::attention {

/// Returns attention of q (B, T, H, D), at the positions from `position`, to one key and value for each block of
/// `block` positions: k (B, blocks, Hkv, D) and v (B, blocks, Hkv, Dv). A query sees the blocks before its own; none:
/// out 0. `empty` (B, blocks) bool hides blocks. out is (B, T, H, Dv), lse (B, T, H). Differentiable. Throws the errors
/// of attend().
Attended attend_to_blocks_before(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t block,
                                 std::int64_t position = 0, const Tensor& empty = {});

/// (B, N, H, D) -> (B, blocks, H, D): means over positions that are not `padding` (B, N) bool; 0 without such
/// positions. The last block may be short. Sums in the compute dtype, as they can overflow the dtype even if the means
/// do not.
Tensor block_means(const Tensor& x, std::int64_t block, const Tensor& padding = {});

/// Appends the `count` best of scores[0 .. candidates) in ascending order, `own` always among them, whose score is not
/// read. Of equal scores the earlier block wins.
void append_best(const double* scores, std::int32_t candidates, std::int32_t own, std::int64_t count,
                 std::vector<std::int32_t>& columns);

/// Options of NativeSparseAttention.
struct NativeSparseOptions {
  std::int64_t block = 64;    // positions of a block
  std::int64_t count = 16;    // selected blocks for each query, its own included
  std::int64_t window = 512;  // positions of the sliding window, the query's included
};

struct BlockSelectionOptions {
  std::int64_t block_size = 64;  // positions; a multiple of 16
  std::int64_t selected = 16;    // blocks for each block of queries, its own included
  /// In (0, 1]: if given, replaces `selected` by this fraction of the blocks that a block of queries may see.
  std::optional<double> sparsity_ratio = std::nullopt;
  std::int64_t projection = 32;  // width of the projections
};

class BlockSelection : public nn::Module {
 public:
  /// For heads of `head_dim`. Throws ValueError for sizes below 1, an invalid block size or density.
  explicit BlockSelection(std::int64_t head_dim, const BlockSelectionOptions& options = {},
                          const nn::ParameterOptions& parameters = {}, CallSite = {});

  /// Returns the coarse result (B, N, H, Dv): every query attends to the summaries of all blocks; causal: of the blocks
  /// before its own (none: 0). Shapes as for attend(), with as many queries as keys. Summaries leave out padding
  /// (AttendOptions::key_padding), and a block of padding only is no key. Differentiable in all operands.
  Tensor summary_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                           const Tensor& key_padding = {}, CallSite = {});

  /// Returns the chosen blocks: one pattern for each batch entry, with a list for each query head. Heads that share
  /// keys have equal lists. A block of queries is scored by its mean. Causal, it is scored by its first query, since a
  /// later query must not affect an earlier one, and only blocks up to its own are candidates. Its own block is always
  /// chosen. Of equal scores the earlier block wins.
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
/// gate is sigmoid(<w, q_i> + c) for each query and head; w and c start at 0. The scorer is trained through the gate
/// (Yuan et al. 2025). For self-attention: as many queries as keys; throws ValueError for a bias. Softcap, slopes and
/// sinks apply to the exact attention only.
class AdaptiveBlockSparseAttention : public AttentionCore {
 public:
  /// For heads of `head_dim`. Throws ValueError as BlockSelection.
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
