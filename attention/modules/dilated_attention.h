// LongNet's dilated attention (Ding et al. 2023, section 2.3) under its original name, with what other programs of that
// name do otherwise.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/modules/attention_core.h"
#include "attention/pattern/pattern.h"

namespace poolgrad::attention {

// What the dilated modules share: branches, their checks, and the pattern that they stand for.

class DilatedCore : public AttentionCore {
 public:
  /// grouped: at least one head for each branch. ValueError.
  void check_heads(std::int64_t heads) const override;
  const Pattern& pattern() const { return pattern_; }
  std::optional<Pattern> fixed_pattern(std::int64_t, bool) const override { return pattern_; }
  bool looks_ahead(bool causal) const override { return pattern_.causally(causal).looks_ahead(); }

 protected:
  /// Throws ValueError for what Pattern::dilated() refuses. `always_pooled` as in choose_memory_mode().
  DilatedCore(const std::vector<std::int64_t>& segment_lengths, const std::vector<std::int64_t>& dilation_rates,
              const DilatedOptions& dilated, const CoreOptions& options, bool always_pooled = false);

  std::vector<std::int64_t> segment_lengths_, dilation_rates_;
  DilatedOptions dilated_;

 private:
  Pattern pattern_;
};

/// Switches that reproduce what other programs compute, for comparisons; off by default.
struct DilatedCompatibility {
  /// The result is multiplied by it; 1 / (number of branches) in programs that give each group of heads one branch and
  /// still average over the groups.
  double scale_out = 1.0;
  /// No gradient flows through the weights of the branches (torchscale), so every branch is attended to by itself. Not
  /// with `unite`, where a pair belongs to no branch in particular.
  bool detach_mix = false;
};

/// Branch b cuts the positions into segments of segment_lengths[b] (the last may be short), takes every
/// dilation_rates[b]-th position of each from the head's phase on, and attends among those. A query's result is the
/// mean of its branches weighted by exp(lse_b), which is one softmax over the keys of all branches; a query in no
/// branch gets 0. Phases, groups and `unite` are those of Pattern::dilated().
class DilatedAttention : public DilatedCore {
 public:
  /// Throws ValueError for what Pattern::dilated() refuses, for a scale_out that is not finite, and for detach_mix with
  /// `unite`.
  DilatedAttention(const std::vector<std::int64_t>& segment_lengths, const std::vector<std::int64_t>& dilation_rates,
                   const DilatedOptions& dilated = {}, const CoreOptions& options = {},
                   const DilatedCompatibility& compatibility = {});

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;

 private:
  Tensor mix_detached(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) const;

  DilatedCompatibility compatibility_;
};

// LongNet's dilated attention in one pass.

/// attend() with Pattern::dilated(): branches mixed by their softmax denominators are one softmax over the keys of all
/// branches, so nothing is gathered and no branch has a result of its own. DilatedAttention without its switches.
class ImprovedDilatedAttention : public DilatedCore {
 public:
  /// Throws ValueError for what Pattern::dilated() refuses.
  ImprovedDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                           const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated = {},
                           const CoreOptions& options = {});

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
};

}  // namespace poolgrad::attention
