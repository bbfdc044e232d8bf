#include "attention/attend_call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "allocator/memory_scope.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/cast.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

Tensor in_dtype(const Tensor& x, DType dtype) { return x.defined() ? to(x, dtype) : x; }

}  // namespace

AttendOperands prepare_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
  const MemoryScope scope("attend", Category::temp);
  const DType compute = compute_dtype(q.dtype());
  Tensor bias = in_dtype(options.bias, compute);
  if (options.key_padding.defined()) {
    const Tensor padding = padding_bias(options.key_padding, compute);
    bias = bias.defined() ? bias + padding : padding;
  }
  return {with_unit_rows(q),
          with_unit_rows(k),
          with_unit_rows(v),
          bias,
          in_dtype(options.alibi, compute),
          in_dtype(options.sinks, compute)};
}

Tensor padding_bias(const Tensor& padding, DType dtype) {
  if (!padding.defined()) return {};
  const MemoryScope scope("attend", Category::mask);
  const Tensor none = zeros({padding.size(0), 1, 1, padding.size(1)}, {dtype, padding.device()});
  return masked_fill(none, reshape(padding, none.shape()), -std::numeric_limits<double>::infinity());
}

AttendCall prepare_call(std::int64_t width, std::int64_t queries, std::int64_t keys, const Pattern& pattern,
                        const AttendOptions& options) {
  AttendCall call{.pattern = pattern, .compiled = {}, .dropout_key = {}};
  if (options.alignment == Alignment::bottom_right) call.q_offset = keys - queries;
  pattern.check_length(std::max(keys, call.q_offset + queries));
  call.scale = options.scale.value_or(width > 0 ? 1.0 / std::sqrt(static_cast<double>(width)) : 1.0);
  call.softcap = options.softcap.value_or(0.0);
  call.dropout = options.dropout;
  if (options.dropout > 0.0) call.dropout_key = (options.generator ? *options.generator : default_generator()).take(1);
  call.dq_over_out = options.dq_over_out;
  return call;
}

Tensor with_unit_rows(const Tensor& x) { return x.size(3) <= 1 || x.strides().back() == 1 ? x : contiguous(x); }

View view_or_none(const Tensor& x) { return x.defined() ? x.view() : View{}; }

kernels::AttentionScores AttendCall::scores(const AttendOperands& x) const {
  kernels::AttentionScores result;
  result.scale = scale;
  result.softcap = softcap;
  if (x.bias.defined())
    result.bias = x.bias.alias(expanded(x.bias.geometry(), {x.batch(), x.heads(), x.queries(), x.keys()})).view();
  result.alibi = view_or_none(x.alibi);
  result.sinks = view_or_none(x.sinks);
  result.dropout = dropout;
  result.dropout_key = dropout_key;
  return result;
}

}  // namespace poolgrad::attention
