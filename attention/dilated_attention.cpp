#include "attention/dilated_attention.h"

#include <cmath>
#include <string>

#include "allocator/error.h"
#include "attention/attend_call.h"
#include "attention/dilated_branch.h"
#include "autograd/operators.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

/// Every key head once per query head that uses it.
Tensor per_query_head(const Tensor& x, std::int64_t heads) {
  if (x.size(2) == heads) return x;
  std::vector<std::int64_t> used;
  for (std::int64_t h = 0; h < heads; ++h) used.push_back(h / (heads / x.size(2)));
  return index_select(x, 2, from_data(used, {heads}, x.device()));
}

}  // namespace

DilatedAttention::DilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                                   const std::vector<std::int64_t>& dilation_rates, const DilatedOptions& dilated,
                                   const CoreOptions& options, const DilatedCompatibility& compatibility)
    : DilatedCore(segment_lengths, dilation_rates, dilated, options), compatibility_(compatibility) {
  if (!std::isfinite(compatibility.scale_out))
    throw ValueError("[dilated_attention] scale_out is not finite: " + std::to_string(compatibility.scale_out));
}

Tensor DilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  const AttendOptions checked = attend_options(call);
  check_attend(q, k, v, checked);
  check_heads(q.size(2));
  pattern().check_length(k.size(1));

  const DType compute = compute_dtype(q.dtype());
  DilatedCall inputs{.q = to(q, compute),
                     .k = per_query_head(to(k, compute), q.size(2)),
                     .v = per_query_head(to(v, compute), q.size(2)),
                     .bias = call.bias,
                     .causal = call.causal,
                     .scale = options_.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3)))),
                     .dropout_probability = checked.dropout,
                     .dropout = {}};
  if (checked.dropout > 0.0) {
    Generator& generator = checked.generator ? *checked.generator : default_generator();
    inputs.dropout = kernels::AttentionDropout::make(generator.take(1), checked.dropout);  // as attend() does
  }
  const DilatedBranches branches{segment_lengths_, dilation_rates_, dilated_};
  std::vector<Tensor> outs, lses;
  for (int b = 0; b < branches.count(); ++b) {
    const BranchResult result = dilated_branch(branches, b, inputs);
    outs.push_back(result.out);
    lses.push_back(result.lse);
  }
  const Tensor lse = stack(lses);
  const Tensor weights = softmax(compatibility_.detach_mix ? lse.detach() : lse, 0);  // exp(lse_b - log sum exp lse)
  const Tensor mixed = sum(weights * stack(outs), {0});
  return to(compatibility_.scale_out == 1.0 ? mixed : mixed * compatibility_.scale_out, q.dtype());
}

}  // namespace poolgrad::attention
