#include "attention/adaptive_block_sparse.h"

#include <vector>

#include "allocator/error.h"
#include "autograd/operators.h"

namespace poolgrad::attention {

AdaptiveBlockSparseAttention::AdaptiveBlockSparseAttention(std::int64_t head_dim,
                                                           const BlockSelectionOptions& selection,
                                                           const CoreOptions& options,
                                                           const nn::ParameterOptions& parameters)
    : AttentionCore(options, choose_memory_mode(0, true, options.memory_mode)),
      selection_(head_dim, selection, parameters),
      gate_weight_(constant_parameter("gate_weight", {1, head_dim}, 0.0, parameters)),
      gate_bias_(constant_parameter("gate_bias", {1}, 0.0, parameters)) {
  add_module("selection", selection_);
}

Tensor AdaptiveBlockSparseAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const AttentionCall& call) {
  if (call.bias.defined()) throw ValueError("[adaptive_block_sparse] a bias is not supported: " + describe(call.bias));
  const Tensor coarse = selection_.summary_attention(q, k, v, call.causal, call.key_padding);
  const std::vector<Pattern> patterns = selection_.select(q, k, call.causal, call.key_padding);
  std::vector<Tensor> entries;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const auto entry = [&](const Tensor& x) { return slice(x, 0, b, b + 1); };
    AttentionCall own = call;
    if (own.key_padding.defined()) own.key_padding = entry(call.key_padding);
    entries.push_back(attend_by(patterns[static_cast<std::size_t>(b)], entry(q), entry(k), entry(v), own));
  }
  const Tensor gate = sigmoid(linear(q, to(gate_weight_, q.dtype()), to(gate_bias_, q.dtype())));  // (B, N, H, 1)
  if (entries.empty()) return gate * coarse;
  return (entries.size() == 1 ? entries[0] : cat(entries, 0)) + gate * coarse;
}

}  // namespace poolgrad::attention
