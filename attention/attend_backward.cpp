// The gradients of attend() by the fused kernels: first delta, then the share of every pass.
#include <algorithm>
#include <limits>
#include <vector>

#include "allocator/memory_scope.h"
#include "attention/attend_call.h"
#include "attention/modules/heads.h"
#include "autograd/operators.h"
#include "autograd/operators/shared.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

/// Allocates the gradients of q, k and v: (B, N, H, D) like the operands; undefined if not wanted.
std::vector<Tensor> places(const AttendCall& call, const AttendOperands& x, const Tensor& out, const Tensor& grad_out,
                           const BackwardCall& backward) {
  const Tensor* operands[] = {&x.q, &x.k, &x.v};
  const bool over_out = call.dq_over_out && !(grad_out.defined() && grad_out.shares_storage_with(out));
  std::vector<Tensor> wanted, result(3);
  for (int i = over_out ? 1 : 0; i < 3; ++i)
    if (backward.needs(i)) wanted.push_back(*operands[i]);
  std::size_t next = 0;
  const std::vector<Tensor> fresh = empty_like_heads(wanted);
  for (int i = over_out ? 1 : 0; i < 3; ++i)
    if (backward.needs(i)) result[static_cast<std::size_t>(i)] = fresh[next++];
  if (over_out && backward.needs(0)) {
    result[0] = out.detach();
    result[0].bump_version();
  }
  return result;
}

}  // namespace

/// d lse / d sink is the share of the sink, e^(sink - lse).
Tensor sinks_gradient(const Tensor& sinks, const Tensor& lse, const Tensor& delta) {
  const MemoryScope scope(Category::temp);
  const double lowest = -std::numeric_limits<double>::infinity();
  const Tensor sees_nothing = equal(lse, full({}, lowest, lse.options()));  // the delta of such a row may be NaN
  const Tensor share = exp(masked_fill(unsqueeze(sinks, 1) - lse, sees_nothing, lowest));
  return -sum(masked_fill(share * delta, sees_nothing, 0.0), {0, 2});
}

Gradients attend_gradients(const AttendCall& call, const AttendOperands& x, Tensor out, const Tensor& lse,
                           const BackwardCall& backward) {
  const Stream stream = current_stream(x.q.device());
  const Tensor grad_out = backward.gradient(0).defined() ? with_unit_rows(backward.gradient(0)) : Tensor();
  Tensor delta;
  {
    const MemoryScope scope(Category::temp);
    delta = Tensor::empty(lse.shape(), lse.options());
  }
  kernels::attention_delta(stream, out.view(), view_or_none(grad_out), view_or_none(backward.gradient(1)),
                           delta.view());
  Gradients result = places(call, x, out, grad_out, backward);
  out = {};

  Tensor bias, sinks;
  const bool whole_bias = x.bias.defined() && x.bias.shape() == Shape{x.batch(), x.heads(), x.queries(), x.keys()};
  if (backward.needs(3)) {
    if (whole_bias)
      bias = Tensor::empty(x.bias.shape(), x.bias.options());
    else
      bias = broadcast_bias_gradient(call, x, lse, delta, grad_out);
  }
  if (backward.needs(4)) sinks = sinks_gradient(x.sinks, lse, delta);

  // Several passes accumulate in the compute dtype.
  const auto& passes = call.compiled.passes;
  std::vector<Tensor> sums = result;
  if (passes.size() > 1 && x.q.dtype() != lse.dtype()) {
    const MemoryScope scope(Category::temp);
    for (Tensor& part : sums)
      if (part.defined()) part = Tensor::empty(part.shape(), lse.options());
  }
  kernels::AttentionGradients gradients{.dq = view_or_none(sums[0]),
                                        .dk = view_or_none(sums[1]),
                                        .dv = view_or_none(sums[2]),
                                        .dbias = whole_bias ? view_or_none(bias) : View{}};
  for (const kernels::AttentionSchedule& pass : passes) {
    kernels::attention_backward(stream, pass, call.scores_of(x), x.q.view(), x.k.view(), x.v.view(), lse.view(),
                                delta.view(), view_or_none(grad_out), gradients);
    gradients.accumulate = true;
  }
  for (std::size_t i = 0; i < 3; ++i)
    if (sums[i].defined() && !sums[i].is_same(result[i])) result[i].copy_from(sums[i]);
  result.push_back(bias);
  result.push_back(sinks);
  return result;
}

Tensor broadcast_bias_gradient(const AttendCall& call, const AttendOperands& x, const Tensor& lse, const Tensor& delta,
                               const Tensor& grad_out) {
  const Tensor result = zeros(x.bias.shape(), x.bias.options());
  if (x.batch() * x.heads() * x.queries() * x.keys() == 0) return result;
  constexpr std::int64_t elements = std::int64_t{1} << 22;  // in memory at a time
  const std::int64_t rows = std::min(x.queries(), std::max<std::int64_t>(1, elements / (x.heads() * x.keys())));
  const Tensor whole = x.bias.alias(expanded(x.bias.geometry(), {x.batch(), x.heads(), x.queries(), x.keys()}));
  const MemoryScope scope(Category::temp);
  for (std::int64_t b = 0; b < x.batch(); ++b)
    for (std::int64_t begin = 0; begin < x.queries(); begin += rows) {
      const std::int64_t end = std::min(begin + rows, x.queries());
      const auto part = [&](const Tensor& y, std::int64_t dim) {  // of this batch and these queries
        return slice(slice(y, 0, b, b + 1), dim, begin, end);
      };
      const auto one = [&](const Tensor& y) { return slice(y, 0, b, b + 1); };
      AttendOperands y{part(x.q, 1), one(x.k), one(x.v), part(whole, 2), x.alibi, x.sinks};
      kernels::AttentionScores scores = call.scores_of(y);
      scores.first_batch += b;
      const Tensor slab = Tensor::empty(y.bias.shape(), x.bias.options());
      kernels::AttentionGradients gradients{.dq = {}, .dk = {}, .dv = {}, .dbias = slab.view()};
      const auto compiled = call.pattern.compile(
          x.heads(), kernels::PositionMap::contiguous(end - begin, call.q_offset + begin), call.keys);
      for (const kernels::AttentionSchedule& pass : compiled.passes) {
        kernels::attention_backward(current_stream(x.q.device()), pass, scores, y.q.view(), y.k.view(), y.v.view(),
                                    part(lse, 2).view(), part(delta, 2).view(),
                                    grad_out.defined() ? part(grad_out, 1).view() : View{}, gradients);
        gradients.accumulate = true;
      }
      Tensor place = x.bias.size(0) == 1 ? result : slice(result, 0, b, b + 1);
      if (x.bias.size(2) != 1) place = slice(place, 2, begin, end);
      place.copy_from(place + sum_to(slab, place.shape()));
    }
  return result;
}

}  // namespace poolgrad::attention
