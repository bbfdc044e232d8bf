#include "attention/modules/dilated_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "allocator/error.h"
#include "attention/attend_call.h"
#include "autograd/autocast.h"
#include "autograd/operators.h"

namespace poolgrad::attention {

DilatedAttention::DilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                                   const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated,
                                   const CoreOptions& options, const DilatedCompatibility& compatibility)
    : DilatedCore(segment_lengths, dilation_rates, dilated, options), compatibility_(compatibility) {
  if (!std::isfinite(compatibility.scale_out))
    throw ValueError("[dilated_attention] scale_out is not finite: " + std::to_string(compatibility.scale_out));
  if (compatibility.detach_mix && dilated.unite)
    throw ValueError("[dilated_attention] detach_mix needs pairs that belong to branches, which unite leaves without");
}

Tensor DilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  // In grouped mode a head has one branch, and nothing is mixed.
  const bool detached = compatibility_.detach_mix && dilated_.mode == DilatedMode::longnet;
  const Tensor out = detached ? mix_detached(q, k, v, call) : attend_by(pattern(), q, k, v, call);
  return compatibility_.scale_out == 1.0 ? out : out * compatibility_.scale_out;
}

/// sum_b alpha_b out_b, alpha_b = exp(lse_b) / sum_c exp(lse_c) without a gradient.
Tensor DilatedAttention::mix_detached(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionCall& call) const {
  if (const auto cast = autocast("attend", {q, k, v}); !cast.empty())
    return mix_detached(cast[0], cast[1], cast[2], call);
  AttendOptions options = attend_options(call);
  check_attend(q, k, v, options);
  pattern().check_length(call.key_positions.length(k.size(1)));
  Generator& generator = options.generator ? *options.generator : default_generator();
  const Generator as_it_was = generator;
  std::vector<Tensor> outs, lses;
  options.sinks = {};  // of the whole, not of every branch
  for (std::size_t b = 0; b < segment_lengths_.size(); ++b) {
    const Pattern branch = Pattern::dilated({segment_lengths_[b]}, {dilation_rates_[b]}, {.offset = dilated_.offset});
    generator = as_it_was;  // all branches drop the same weights
    const Attended one = attend(q, k, v, branch.causally(call.causal), options);
    outs.push_back(one.out);
    lses.push_back(one.lse.detach());
  }
  if (call.sinks.defined()) {
    const Tensor logits = reshape(to(call.sinks.detach(), lses[0].dtype()), {1, q.size(2), 1});
    lses.push_back(expand(logits, lses[0].shape()));
  }
  const Tensor weights = unsqueeze(permute(softmax(stack(lses), 0), {0, 1, 3, 2}), -1);  // (branches, B, N, H, 1)
  Tensor mixed;
  for (std::size_t b = 0; b < outs.size(); ++b) {
    const Tensor part = select(weights, 0, static_cast<std::int64_t>(b)) * to(outs[b], weights.dtype());
    mixed = mixed.defined() ? mixed + part : part;
  }
  return to(mixed, q.dtype());
}

DilatedCore::DilatedCore(const std::vector<std::int64_t>& segment_lengths,
                         const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated,
                         const CoreOptions& options, bool always_pooled)
    : AttentionCore(options, choose_memory_mode(longest_segment(segment_lengths), always_pooled, options.memory_mode)),
      segment_lengths_(segment_lengths),
      dilation_rates_(dilation_rates),
      dilated_(dilated),
      pattern_(Pattern::dilated(segment_lengths, dilation_rates, dilated)) {}

void DilatedCore::check_heads(std::int64_t heads) const {
  AttentionCore::check_heads(heads);
  const auto branches = static_cast<std::int64_t>(segment_lengths_.size());
  if (dilated_.mode == DilatedMode::grouped && heads < branches)
    throw ValueError(fmt::format("[dilated_attention] grouped mode needs a head for each branch: heads {}, branches {}",
                                 heads, branches));
}

ImprovedDilatedAttention::ImprovedDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                                                   const std::vector<std::int64_t>& dilation_rates,
                                                   const DilatedOptions& dilated, const CoreOptions& options)
    : DilatedCore(segment_lengths, dilation_rates, dilated, options) {}

Tensor ImprovedDilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  return attend_by(pattern(), q, k, v, call);
}

}  // namespace poolgrad::attention
