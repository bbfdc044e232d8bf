// LongNet's dilated attention as in the paper (Ding et al. 2023, section 2.3). It gathers segments, runs softmax
// attention in each with all scores in memory, and mixes branches by their softmax denominators. Built of
// differentiable operators alone, it defines the dilated modules.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "allocator/memory_scope.h"
#include "attention/modules/attention_core.h"
#include "attention/pattern/pattern.h"
#include "autograd/operators.h"
#include "autograd/operators/shared.h"
#include "kernels/functors/attention_dropout.h"
#include "tensor/creation.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention::testing_support {

/// Branches as in Pattern::dilated().
struct DilatedBranches {
  std::vector<std::int64_t> segment_lengths, dilation_rates;
  DilatedOptions options;
  int count() const { return static_cast<int>(segment_lengths.size()); }
};

/// Heads first, first + step, ..., `count` in all, which take the positions `phase` (mod rate) of a branch.
struct PhaseClass {
  std::int64_t first, step, count, phase;
};

/// Operands and options shared by all branches.
struct DilatedCall {
  Tensor q, k, v;  // (B, Nq, H, D), (B, Nk, H, D), (B, Nk, H, Dv) in the compute dtype
  Tensor bias;     // as AttendOptions::bias, or undefined
  bool causal = false;
  double scale = 1.0;
  double dropout_probability = 0.0;
  kernels::AttentionDropout dropout;
};

/// out (B, Nq, H, Dv) and lse (B, Nq, H, 1); 0 and -infinity for queries outside the branch.
struct BranchResult {
  Tensor out, lse;
};
/// The phase of one head in a branch; longnet mode.
inline std::int64_t phase_of(const DilatedBranches& branches, int branch, std::int64_t head, std::int64_t heads) {
  const std::int64_t rate = branches.dilation_rates[static_cast<std::size_t>(branch)];
  if (branches.options.offset == DilatedOffset::interleaved) return head % rate;
  return head / ((heads + rate - 1) / rate);
}

/// The heads of a branch by phase; no class is empty.
inline std::vector<PhaseClass> phase_classes(const DilatedBranches& branches, int branch, std::int64_t heads) {
  const std::int64_t rate = branches.dilation_rates[static_cast<std::size_t>(branch)];
  if (branches.options.mode == DilatedMode::grouped) {
    const std::int64_t each = heads / branches.count(), larger = heads % branches.count();
    const std::int64_t first = branch * each + std::min<std::int64_t>(branch, larger);
    return {{first, 1, each + (branch < larger ? 1 : 0), branch % rate}};
  }
  std::vector<PhaseClass> classes;
  if (branches.options.offset == DilatedOffset::interleaved) {
    for (std::int64_t phase = 0; phase < std::min(rate, heads); ++phase)
      classes.push_back({phase, rate, (heads - phase + rate - 1) / rate, phase});
  } else {
    const std::int64_t each = (heads + rate - 1) / rate;
    for (std::int64_t first = 0; first < heads; first += each)
      classes.push_back({first, 1, std::min(each, heads - first), first / each});
  }
  return classes;
}

/// Positions first, first + step, ... below `end`; the row in a tensor is position - offset.
struct Positions {
  std::int64_t first, end, step, offset;

  std::int64_t count() const { return first < end ? (end - first + step - 1) / step : 0; }
  std::int64_t row() const { return first - offset; }
  Tensor values(Device device) const {
    return arange(static_cast<double>(first), static_cast<double>(first + count() * step), static_cast<double>(step),
                  {.dtype = DType::i64, .device = device});
  }
};

/// Positions in [begin, end) at `phase` (mod step) after `begin`, from position `offset` (row 0) on.
inline Positions dilated_positions(std::int64_t begin, std::int64_t end, std::int64_t phase, std::int64_t step,
                                   std::int64_t offset) {
  std::int64_t first = begin + phase;
  if (first < offset) first += (offset - first + step - 1) / step * step;
  return {first, std::max(first, end), step, offset};
}

inline Tensor rows(const Tensor& x, int dim, const Positions& positions) {
  if (positions.count() == 0) return slice(x, dim, 0, 0);
  return slice(x, dim, positions.row(), positions.end - positions.offset, positions.step);
}

inline Tensor heads_of(const Tensor& x, int dim, const PhaseClass& heads) {
  return slice(x, dim, heads.first, heads.first + (heads.count - 1) * heads.step + 1, heads.step);
}

/// Marks the pairs (h, queries, keys) that another branch covers too.
inline Tensor covered(const DilatedBranches& branches, int branch, const PhaseClass& heads, std::int64_t all_heads,
                      const Tensor& i, const Tensor& j) {
  const auto segment = static_cast<double>(branches.segment_lengths[static_cast<std::size_t>(branch)]);
  const auto rate = static_cast<double>(branches.dilation_rates[static_cast<std::size_t>(branch)]);
  std::vector<std::int64_t> phases;
  for (std::int64_t h = 0; h < heads.count; ++h)
    phases.push_back(phase_of(branches, branch, heads.first + h * heads.step, all_heads));
  const Tensor phase = from_data(phases, {heads.count, 1, 1}, i.device());
  const auto residue = [&](const Tensor& x) {
    const Tensor inside = x - x / segment * segment;
    return inside - inside / rate * rate;
  };
  return logical_and(equal(i / segment, j / segment), logical_and(equal(residue(i), phase), equal(residue(j), phase)));
}

/// keep / (1 - p) for every weight, the same function of positions as in the fused kernels.
inline Tensor dropout_factors(const DilatedCall& call, const PhaseClass& heads, const Positions& i,
                              const Positions& j) {
  const std::int64_t batch = call.q.size(0);
  const Tensor host = Tensor::empty({batch, heads.count, i.count(), j.count()}, {.dtype = DType::f64});
  double* factor = host.data<double>();
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads.count; ++h)
      for (std::int64_t s = 0; s < i.count(); ++s)
        for (std::int64_t t = 0; t < j.count(); ++t)
          *factor++ = call.dropout.keeps(b, heads.first + h * heads.step, i.first + s * i.step, j.first + t * j.step)
                          ? 1.0 / (1.0 - call.dropout_probability)
                          : 0.0;
  return Tensor::empty(host.shape(), call.q.options()).copy_from(host);
}

/// Softmax attention of the chosen queries over the chosen keys of one segment.
inline BranchResult within_segment(const DilatedBranches& branches, int branch, const DilatedCall& call,
                                   const PhaseClass& heads, const Positions& i, const Positions& j) {
  const auto part = [&](const Tensor& x, const Positions& positions) {  // (B, h, m, D)
    return permute(rows(heads_of(x, 2, heads), 1, positions), {0, 2, 1, 3});
  };
  const MemoryScope scope("segment", Category::scores);
  Tensor scores = matmul(part(call.q, i), transpose(part(call.k, j), 2, 3)) * call.scale;
  if (call.bias.defined()) {
    Tensor bias = call.bias;
    if (bias.size(1) != 1) bias = heads_of(bias, 1, heads);
    if (bias.size(2) != 1) bias = rows(bias, 2, i);
    if (bias.size(3) != 1) bias = rows(bias, 3, j);
    scores = scores + to(bias, scores.dtype());
  }
  const Tensor query = unsqueeze(i.values(scores.device()), 1), key = unsqueeze(j.values(scores.device()), 0);
  if (call.causal) scores = masked_fill(scores, greater(key, query), -infinity);
  if (branches.options.unite && branches.options.mode == DilatedMode::longnet)
    for (int earlier = 0; earlier < branch; ++earlier)
      scores = masked_fill(scores, covered(branches, earlier, heads, call.q.size(2), query, key), -infinity);

  const MemoryScope normalised(Category::weights);
  Tensor weights = softmax(scores, -1);
  if (call.dropout_probability > 0.0) weights = weights * dropout_factors(call, heads, i, j);
  const MemoryScope results(Category::output);
  return {permute(matmul(weights, part(call.v, j)), {0, 2, 1, 3}),
          unsqueeze(permute(logsumexp(scores, -1), {0, 2, 1}), -1)};
}

inline BranchResult dilated_branch(const DilatedBranches& branches, int branch, const DilatedCall& call) {
  const std::int64_t segment = branches.segment_lengths[static_cast<std::size_t>(branch)];
  const std::int64_t rate = branches.dilation_rates[static_cast<std::size_t>(branch)];
  const std::int64_t batch = call.q.size(0), queries = call.q.size(1), heads = call.q.size(2);
  const std::int64_t keys = call.k.size(1), width = call.v.size(3);

  // Scatters the rows back: first the segments of a class of heads, then the classes.
  std::vector<Tensor> outs, lses, seen;
  std::vector<std::int64_t> first_heads;
  std::int64_t head_step = 1;
  for (const PhaseClass& chosen : phase_classes(branches, branch, heads)) {
    std::vector<Tensor> segment_outs, segment_lses, segment_seen;
    std::vector<std::int64_t> starts;
    for (std::int64_t begin = 0; begin == 0 || begin < keys; begin += segment) {
      const std::int64_t end = std::min(keys, begin + std::min(segment, keys - begin));
      const Positions i = dilated_positions(begin, end, chosen.phase, rate, keys - queries);
      const Positions j = dilated_positions(begin, end, chosen.phase, rate, 0);
      if (i.count() == 0 && begin + segment < keys) continue;  // keeps at least one part
      const BranchResult part = within_segment(branches, branch, call, chosen, i, j);
      segment_outs.push_back(part.out);
      segment_lses.push_back(part.lse);
      segment_seen.push_back(ones_like(part.lse));
      starts.push_back(i.count() == 0 ? 0 : i.row());
    }
    outs.push_back(place(segment_outs, {batch, queries, chosen.count, width}, 1, starts, rate));
    lses.push_back(place(segment_lses, {batch, queries, chosen.count, 1}, 1, starts, rate));
    seen.push_back(place(segment_seen, {batch, queries, chosen.count, 1}, 1, starts, rate));
    first_heads.push_back(chosen.first);
    head_step = chosen.step;
  }
  const Tensor unseen =
      less(place(seen, {batch, queries, heads, 1}, 2, first_heads, head_step), full({}, 0.5, call.q.options()));
  return {place(outs, {batch, queries, heads, width}, 2, first_heads, head_step),
          masked_fill(place(lses, {batch, queries, heads, 1}, 2, first_heads, head_step), unseen, -infinity)};
}

/// Reference for DilatedAttention.
class GatheredDilatedAttention : public AttentionCore {
 public:
  GatheredDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                           const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated = {},
                           const CoreOptions& options = {})
      : AttentionCore(options), branches_{segment_lengths, dilation_rates, dilated} {}

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call) override {
    const DType compute = compute_dtype(q.dtype());
    DilatedCall inputs{.q = to(q, compute),
                       .k = per_query_head(to(k, compute), q.size(2)),
                       .v = per_query_head(to(v, compute), q.size(2)),
                       .bias = call.bias,
                       .causal = call.causal,
                       .scale = options_.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3)))),
                       .dropout_probability = dropout(),
                       .dropout = {}};
    if (dropout() > 0.0) {
      Generator& generator = options_.generator ? *options_.generator : default_generator();
      inputs.dropout = kernels::AttentionDropout::make(generator.take(1), dropout());  // as attend() does
    }
    std::vector<Tensor> outs, lses;
    for (int b = 0; b < branches_.count(); ++b) {
      const BranchResult result = dilated_branch(branches_, b, inputs);
      outs.push_back(result.out);
      lses.push_back(result.lse);
    }
    const Tensor lse = stack(lses);
    return to(sum(softmax(lse, 0) * stack(outs), {0}), q.dtype());  // weights exp(lse_b - log sum exp lse)
  }

 private:
  /// Repeats every key head for each query head that uses it.
  static Tensor per_query_head(const Tensor& x, std::int64_t heads) {
    std::vector<std::int64_t> used;
    for (std::int64_t h = 0; h < heads; ++h) used.push_back(h / (heads / x.size(2)));
    return index_select(x, 2, from_data(used, {heads}, x.device()));
  }

  DilatedBranches branches_;
};

}  // namespace poolgrad::attention::testing_support
