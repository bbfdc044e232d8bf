#include "attention/attend.h"

#include <cmath>
#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/definition.h"
#include "attention/heads.h"
#include "autograd/check.h"
#include "autograd/definition.h"
#include "autograd/record.h"
#include "autograd/views.h"
#include "kernels/attention.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

void check(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const Operands operands{{"q", q}, {"k", k}, {"v", v}};
  check_floating("attend", operands);
  const auto refuse = [&](const std::string& reason) { fail<ShapeError>("attend", reason, operands); };
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) refuse("q, k and v must be (B, N, H, D)");
  if (q.size(0) != k.size(0) || q.size(0) != v.size(0)) refuse("batch sizes differ");
  if (k.size(1) != v.size(1)) refuse("k and v differ in length");
  if (k.size(2) != v.size(2)) refuse("k and v differ in heads");
  if (q.size(3) != k.size(3)) refuse("q and k differ in width per head");
  if (k.size(2) == 0 || q.size(2) % k.size(2) != 0) refuse("the heads of q are not a multiple of those of k");
  if (!std::isfinite(scale)) fail<ValueError>("attend", "the scale is not finite", operands);
}

/// x with stride 1 in the last dimension, as the kernels want it.
Tensor rows(const Tensor& x) { return x.size(3) <= 1 || x.strides().back() == 1 ? x : contiguous(x); }

}  // namespace

Attended attend(const Tensor& query, const Tensor& key, const Tensor& value, const Pattern& pattern,
                const AttendOptions& options) {
  const bool four = query.defined() && query.rank() == 4;
  const double scale =
      options.scale.value_or(four && query.size(3) > 0 ? 1.0 / std::sqrt(static_cast<double>(query.size(3))) : 1.0);
  check(query, key, value, scale);
  const Tensor q = rows(query), k = rows(key), v = rows(value);
  const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2);
  const Stream stream = current_stream(q.device());
  const kernels::BandSchedule schedule = pattern.schedule(queries, k.size(1), options.alignment);

  const MemoryScope scope("attend", Category::output);
  const Tensor out = Tensor::empty({batch, queries, heads, v.size(3)}, q.options());
  const Tensor lse = Tensor::empty({batch, heads, queries}, {compute_dtype(q.dtype()), q.device()});
  kernels::attention_forward(stream, schedule, scale, q.view(), k.view(), v.view(), out.view(), lse.view());

  if (wants_gradient({q, k, v}))
    record("attend", {q, k, v}, {out, lse},
           [=, q = SavedTensor(q), k = SavedTensor(k), v = SavedTensor(v), out = SavedTensor::output(out, 0),
            lse = SavedTensor::output(lse, 1)](const BackwardCall& call) -> Gradients {
             const std::vector<Tensor> inputs{q.unpack(), k.unpack(), v.unpack()};
             if (grad_enabled()) {
               const auto definition = [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                 auto [o, l] = attend_by_definition(x[0], x[1], x[2], pattern, scale, options.alignment);
                 return {o, l};
               };
               return differentiable_gradients(definition, inputs, {call.gradient(0), call.gradient(1)});
             }
             const MemoryScope backward("attend", Category::gradient);
             const Tensor o = out.unpack(), l = lse.unpack();
             const Tensor grad_out = call.gradient(0).defined() ? rows(call.gradient(0)) : zeros_like(o);
             const View grad_lse = call.gradient(1).defined() ? call.gradient(1).view() : View{};
             const std::vector<Tensor> gradients = empty_like_heads(inputs);
             kernels::attention_backward(stream, schedule, scale, inputs[0].view(), inputs[1].view(), inputs[2].view(),
                                         o.view(), l.view(), grad_out.view(), grad_lse, gradients[0].view(),
                                         gradients[1].view(), gradients[2].view());
             return gradients;
           });
  return {out, lse};
}

}  // namespace poolgrad::attention
