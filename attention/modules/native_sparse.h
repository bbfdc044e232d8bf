// Native sparse attention (Yuan et al. 2025) as the mixer of a layer: compressed blocks, selected blocks and a window.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/modules/block_selection.h"
#include "attention/modules/multihead.h"

namespace poolgrad::attention {

/// (B, T, width) -> (B, T, width), causal: MultiheadShell around the sum of three results, each times a gate for every
/// query and head, sigmoid(linear(x)). All three have the same queries, keys and values.
///
///   compressed  attention to the means of keys and values of every block before the query's own
///   selected    attention to the keys, up to the query, of `count` blocks: its own, and those before it with the
///               largest weights of the compressed attention, summed over the heads that share keys
///   window      attention to the last `window` positions
///
/// Of equal weights the earlier block wins. The selection has no gradient: the compressed attention trains it. The
/// paper learns the compression and has separate keys and values for each result. Queries and keys are rotated before
/// means.
class NativeSparseAttention : public MultiheadShell {
 public:
  /// Throws ValueError for sizes below 1, for ALiBi, sinks and shared keys, and as MultiheadShell.
  NativeSparseAttention(std::int64_t width, std::int64_t heads, const NativeSparseOptions& sparse = {},
                        const MultiheadOptions& options = {.layer_norm = false, .post_norm = false},
                        const nn::ParameterOptions& parameters = {}, CallSite = {});

  /// A state holds all keys and values, and their means by block. Pieces of a sequence give the output of one call, up
  /// to rounding; rounding may also exchange blocks of almost equal weight.
  /// Chunks (a state with `whole`) hold keys and values alone, and compute all means again.
  Tensor forward(const Tensor& x, nn::SequenceState* state, const LayerOperands& operands) override;
  using MultiheadShell::forward;

  /// Returns the selected blocks of T queries q (B, T, H, D) after `position` others, ascending: (B, Hkv, T) lists.
  /// k_means (B, blocks, Hkv, D) are the means of the blocks before, and lse (B, T, H) that of the compressed
  /// attention.
  std::vector<std::vector<std::int32_t>> select(const Tensor& q, const Tensor& k_means, const Tensor& lse,
                                                std::int64_t position = 0) const;

 protected:
  /// Throws ValueError for options of the call except `causal`, and ShapeError for other lengths of queries and keys.
  Tensor attend_heads(const Tensor& x, const Projected& projected, AttendOptions call) override;

 private:
  Tensor gated(const Tensor& x, const Projected& projected, const Tensor& k_means, const Tensor& v_means,
               std::int64_t position);

  NativeSparseOptions sparse_;
  nn::Linear gates_;
};

}  // namespace poolgrad::attention
