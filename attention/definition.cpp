#include "attention/definition.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "attention/attend_call.h"
#include "autograd/operators.h"
#include "kernels/definition/attention_dropout.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

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

  Tensor scores =
      matmul(permute(to(x.q, compute), {0, 2, 1, 3}), transpose(repeated_for_queries(to(x.k, compute), group), 2, 3)) *
      call.scale;
  if (call.softcap > 0.0) scores = call.softcap * tanh(scores / call.softcap);
  if (x.bias.defined()) scores = scores + x.bias;
  if (x.alibi.defined()) {
    const Tensor distance = tabulated({1, 1, queries, keys}, options, [&](auto, auto, auto i, auto j) {
      return static_cast<double>(std::abs(i + call.q_offset - j));
    });
    scores = scores - reshape(x.alibi, {1, heads, 1, 1}) * distance;
  }
  // A pair that counts m times is one with log m added; log 0 = -infinity.
  scores = scores + tabulated({1, heads, queries, keys}, options, [&](auto, auto h, auto i, auto j) {
             return std::log(static_cast<double>(call.pattern.multiplicity(h, heads, i + call.q_offset, j)));
           });
  if (x.sinks.defined())
    scores = cat({scores, expand(reshape(x.sinks, {1, heads, 1, 1}), {batch, heads, queries, 1})}, 3);

  Tensor weights = slice(softmax(scores, -1), 3, 0, keys);
  if (call.dropout > 0.0) {
    const auto dropout = kernels::AttentionDropout::make(call.dropout_key, call.dropout);
    weights = weights * tabulated({batch, heads, queries, keys}, options, [&](auto b, auto h, auto i, auto j) {
                return dropout.keeps(b, h, i + call.q_offset, j) ? 1.0 / (1.0 - call.dropout) : 0.0;
              });
  }
  const Tensor out = permute(matmul(weights, repeated_for_queries(to(x.v, compute), group)), {0, 2, 1, 3});
  return {to(out, x.q.dtype()), log_sum_exp(scores, -1)};
}

Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                              const AttendOptions& options) {
  check_attend(q, k, v, options);
  const AttendOperands x = prepare_operands(q, k, v, options);
  return attend_by_definition(x, prepare_call(x.q.size(3), x.queries(), x.keys(), pattern, options));
}

}  // namespace poolgrad::attention
