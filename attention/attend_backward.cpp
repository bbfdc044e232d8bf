// The gradients of attend(): by the fused kernels, delta first and then every pass's share, and, as second derivatives
// need them, by the definition.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "allocator/memory_scope.h"
#include "attention/attend_call.h"
#include "attention/modules/heads.h"
#include "autograd/operators.h"
#include "kernels/definition/attention_dropout.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

/// Where the gradients of q, k and v go: (B, N, H, D) like the operands; undefined where not wanted.
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
  const Tensor share = exp(masked_fill(unsqueeze(sinks, 1) - lse, equal(lse, full({}, lowest, lse.options())), lowest));
  return -sum(share * delta, {0, 2});
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

  // Several passes add up in the compute dtype.
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
    kernels::attention_backward(stream, pass, call.scores(x), x.q.view(), x.k.view(), x.v.view(), lse.view(),
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
  constexpr std::int64_t elements = std::int64_t{1} << 22;  // at a time
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
      kernels::AttentionScores scores = call.scores(y);
      scores.first_batch = call.first_batch + b;
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

namespace {

/// A constant of attention: value(h, i, j) for every head and every pair of indices, in the compute dtype.
template <class Value>
Tensor tabulated(const Shape& shape, const TensorOptions& options, const Value& value) {
  std::vector<double> table;
  table.reserve(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2]; ++i)
        for (std::int64_t j = 0; j < shape[3]; ++j) table.push_back(value(b, h, i, j));
  return to(to(from_data(table, shape), options.dtype), options.device);
}

/// (B, N, Hkv, D) -> (B, Hkv * group, N, D): every key head once per query head that uses it.
Tensor repeated_for_queries(const Tensor& x, std::int64_t group) {
  const std::int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), width = x.size(3);
  const Tensor repeated = expand(unsqueeze(permute(x, {0, 2, 1, 3}), 2), {batch, heads, group, length, width});
  return reshape(repeated, {batch, heads * group, length, width});
}

}  // namespace

Attended attend_by_definition(const AttendOperands& x, const AttendCall& call) {
  const DType compute = compute_dtype(x.q.dtype());
  const TensorOptions options{compute, x.q.device()};
  const std::int64_t batch = x.batch(), heads = x.heads(), queries = x.queries(), keys = x.keys();
  const std::int64_t group = heads / x.k.size(2);

  const Tensor lowest = full({}, -std::numeric_limits<double>::infinity(), options);
  // A pair that counts m times is one with log m added; log 0 = -infinity.
  const Tensor log_multiplicity = tabulated({1, heads, queries, keys}, options, [&](auto, auto h, auto i, auto j) {
    return std::log(static_cast<double>(call.pattern.multiplicity(h, heads, i + call.q_offset, call.keys.position(j))));
  });
  Tensor hidden = equal(log_multiplicity, lowest);
  if (x.bias.defined()) hidden = logical_or(hidden, equal(x.bias.detach(), lowest));
  // Rows of which no pair counts are zeros: 0 times NaN would be NaN.
  const Tensor counted = masked_fill(ones(hidden.shape(), options), hidden, 0.0);
  const auto without_pairs = [&](int others) {
    const Tensor pairs = unsqueeze(sum(counted, {others}), 3);
    return equal(pairs, zeros_like(pairs));
  };
  const Tensor lonely_queries = without_pairs(3), lonely_keys = without_pairs(2);
  const Tensor q = masked_fill(permute(to(x.q, compute), {0, 2, 1, 3}), lonely_queries, 0.0),
               k = masked_fill(repeated_for_queries(to(x.k, compute), group), lonely_keys, 0.0),
               v = masked_fill(repeated_for_queries(to(x.v, compute), group), lonely_keys, 0.0);

  Tensor scores = matmul(q, transpose(k, 2, 3)) * call.scale;
  if (call.softcap > 0.0) scores = call.softcap * tanh(scores / call.softcap);
  if (x.bias.defined()) scores = scores + x.bias;
  if (x.alibi.defined()) {
    const Tensor distance = tabulated({1, 1, queries, keys}, options, [&](auto, auto, auto i, auto j) {
      return static_cast<double>(std::abs(i + call.q_offset - call.keys.position(j)));
    });
    scores = scores - reshape(x.alibi, {1, heads, 1, 1}) * distance;
  }
  scores = masked_fill(scores + log_multiplicity, hidden, -std::numeric_limits<double>::infinity());
  if (x.sinks.defined())
    scores = cat({scores, expand(reshape(x.sinks, {1, heads, 1, 1}), {batch, heads, queries, 1})}, 3);

  Tensor weights = slice(softmax(scores, -1), 3, 0, keys);
  if (call.dropout > 0.0) {
    const auto dropout = kernels::AttentionDropout::make(call.dropout_key, call.dropout);
    weights = weights * tabulated({batch, heads, queries, keys}, options, [&](auto b, auto h, auto i, auto j) {
                return dropout.keeps(call.first_batch + b, h, i + call.q_offset, call.keys.position(j))
                           ? 1.0 / (1.0 - call.dropout)
                           : 0.0;
              });
  }
  const Tensor out = permute(masked_fill(matmul(weights, v), lonely_queries, 0.0), {0, 2, 1, 3});
  return {to(out, x.q.dtype()), log_sum_exp(scores, -1)};
}

Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                              const AttendOptions& options) {
  check_attend(q, k, v, options);
  const AttendOperands x = prepare_operands(q, k, v, options);
  return attend_by_definition(x, prepare_call(x.q.size(3), x.queries(), x.keys(), pattern, options));
}

}  // namespace poolgrad::attention
