// One branch of readable dilated attention; attention/dilated_attention.h mixes them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/pattern.h"
#include "kernels/attention_dropout.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Branches as Pattern::dilated() has them.
struct DilatedBranches {
  std::vector<std::int64_t> segment_lengths, dilation_rates;
  DilatedOptions options;
  int count() const { return static_cast<int>(segment_lengths.size()); }
};

/// Heads first, first + step, ..., `count` of them, which take the positions `phase` (mod rate) of a branch.
struct PhaseClass {
  std::int64_t first, step, count, phase;
};

/// The heads that run a branch, by phase; none is empty.
std::vector<PhaseClass> phase_classes(const DilatedBranches& branches, int branch, std::int64_t heads);
/// The phase of one head in a branch; longnet mode.
std::int64_t phase_of(const DilatedBranches& branches, int branch, std::int64_t head, std::int64_t heads);

/// What does not change from branch to branch.
struct DilatedCall {
  Tensor q, k, v;  // (B, Nq, H, D), (B, Nk, H, D), (B, Nk, H, Dv) in the compute dtype
  Tensor bias;     // as AttentionCall::bias, or undefined
  bool causal = false;
  double scale = 1.0;
  double dropout_probability = 0.0;
  kernels::AttentionDropout dropout;
};

/// out (B, Nq, H, Dv) and lse (B, Nq, H, 1); 0 and -infinity where the branch does not cover the query.
struct BranchResult {
  Tensor out, lse;
};
BranchResult dilated_branch(const DilatedBranches& branches, int branch, const DilatedCall& call);

}  // namespace poolgrad::attention
