#include "attention/modules/block_sparse_attention.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/operators.h"
#include "tensor/generator.h"

namespace poolgrad::attention {

BlockSparseCore::BlockSparseCore(const CoreOptions& options, const std::vector<std::int64_t>& segment_lengths)
    : AttentionCore(options, choose_memory_mode(longest_segment(segment_lengths), true, options.memory_mode)) {}

double BlockSparseCore::density(std::int64_t length, bool causal) const {
  return pattern(length, causal).causally(causal).density(1, length, length);
}

Tensor BlockSparseCore::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  const std::int64_t rows = k.defined() && k.rank() == 4 ? k.size(1) : 0;  // attend() refuses the rest
  return attend_by(pattern(call.key_positions.length(rows), call.causal), q, k, v, call);
}

BlockSparseDilatedAttention::BlockSparseDilatedAttention(const SparsePatternConfig& config, const CoreOptions& options,
                                                         const std::vector<std::int64_t>& segment_lengths,
                                                         const std::vector<std::int64_t>& dilation_rates)
    : BlockSparseCore(options, segment_lengths),
      config_(config),
      segment_lengths_(segment_lengths),
      dilation_rates_(dilation_rates) {
  config.validate();
  if (!segment_lengths.empty() || !dilation_rates.empty()) Pattern::dilated(segment_lengths, dilation_rates);
}

Pattern BlockSparseDilatedAttention::pattern(std::int64_t length, bool causal) const {
  const Pattern blocks = config_.pattern(length, causal);
  if (segment_lengths_.empty()) return blocks;
  return blocks | Pattern::dilated(segment_lengths_, dilation_rates_, {.unite = true});
}

void BlockSparseDilatedAttention::check_continued(std::int64_t keys, std::int64_t longest) const {
  if (config_.follows_length() && keys > longest)
    throw ValueError(
        fmt::format("[block_sparse] sparsity_ratio makes another pattern for every length, so a sequence is continued "
                    "up to the context of its state: {} positions, context {}",
                    keys, longest));
}

namespace {

constexpr std::int64_t any_distance = -1;
constexpr std::size_t max_levels = 4;

void check_level(const HierarchyLevel& level) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(fmt::format("[hierarchical_block_sparse] {}: stride {}, window {}, block {}", reason, level.stride,
                                 level.window, level.block));
  };
  if (level.block < 16 || level.block % 16 != 0) refuse("the block must be a positive multiple of 16");
  if (level.stride < level.block || level.stride % level.block != 0)
    refuse("the stride must be a positive multiple of the block");
  if (level.window != any_distance && level.window < level.block) refuse("the window must be -1 or at least the block");
}

Pattern pattern_of(const HierarchyLevel& level) {
  return Pattern::spaced_blocks(level.block, level.stride / level.block,
                                level.window == any_distance ? Pattern::unbounded : level.window / level.block / 2);
}

}  // namespace

std::vector<HierarchyLevel> default_hierarchy() { return {{64, 256, 64}, {256, 1024, 128}, {1024, any_distance, 256}}; }

HierarchicalBlockSparse::HierarchicalBlockSparse(const std::vector<HierarchyLevel>& levels, const CoreOptions& options)
    : BlockSparseCore(options), levels_(levels) {
  if (levels.empty() || levels.size() > max_levels)
    throw ValueError(
        fmt::format("[hierarchical_block_sparse] there must be 1 to {} levels: {}", max_levels, levels.size()));
  for (const HierarchyLevel& level : levels) check_level(level);
}

Pattern HierarchicalBlockSparse::pattern(std::int64_t, bool) const {
  Pattern result = pattern_of(levels_[0]);
  for (std::size_t n = 1; n < levels_.size(); ++n) result = result | pattern_of(levels_[n]);
  return result;
}

AdaptiveBlockSparseAttention::AdaptiveBlockSparseAttention(std::int64_t head_dim,
                                                           const BlockSelectionOptions& selection,
                                                           const CoreOptions& options,
                                                           const nn::ParameterOptions& parameters, CallSite)
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
  RandomLog numbers;  // one range for all entries, each of which drops its part, as in one call
  if (q.size(0) == 0) entries.push_back(attend_by(Pattern::dense(), q, k, v, call));
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    const RandomLogGuard drawn(numbers, b == 0 ? RandomLogGuard::records : RandomLogGuard::replays);
    const auto entry = [&](const Tensor& x) { return slice(x, 0, b, b + 1); };
    AttentionCall own = call;
    own.first_batch += b;
    if (own.key_padding.defined()) own.key_padding = entry(call.key_padding);
    entries.push_back(attend_by(patterns[static_cast<std::size_t>(b)], entry(q), entry(k), entry(v), own));
  }
  const Tensor gate = sigmoid(
      linear(q, parameter_for("linear", gate_weight_, q), parameter_for("linear", gate_bias_, q)));  // (B, N, H, 1)
  return (entries.size() == 1 ? entries[0] : cat(entries, 0)) + gate * coarse;
}

}  // namespace poolgrad::attention
