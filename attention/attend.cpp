#include "attention/attend.h"

#include <memory>

#include "allocator/memory_scope.h"
#include "attention/attend_call.h"
#include "autograd/engine/definition.h"
#include "autograd/engine/record.h"
#include "kernels/attention.h"

namespace poolgrad::attention {

namespace {

/// All passes; those before the last leave their result in the compute dtype.
void run_forward(const AttendCall& call, const AttendOperands& x, const Tensor& out, const Tensor& lse) {
  const auto& passes = call.compiled.passes;
  Tensor carry = out;
  if (passes.size() > 1 && out.dtype() != lse.dtype()) {
    const MemoryScope scope(Category::temp);
    carry = Tensor::empty(out.shape(), lse.options());
  }
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const bool first = i == 0, last = i + 1 == passes.size();
    kernels::attention_forward(current_stream(out.device()), passes[i], call.scores(x), x.q.view(), x.k.view(),
                               x.v.view(), (last ? out : carry).view(), lse.view(), first ? View{} : carry.view(),
                               first ? View{} : lse.view());
  }
}

}  // namespace

Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, const AttendOptions& options,
                CallSite) {
  const bool differentiable = check_attend(q, k, v, options);
  const AttendOperands x = prepare_operands(q, k, v, options);
  AttendCall call = prepare_call(x.q.size(3), x.queries(), x.keys(), pattern, options);
  call.compiled = pattern.compile(x.heads(), kernels::PositionMap::contiguous(x.queries(), call.q_offset),
                                  kernels::PositionMap::contiguous(x.keys()));
  if (options.out_over_q) check_out_over_q(call, x, differentiable);

  const MemoryScope scope("attend", Category::output);
  const Tensor out = options.out_over_q
                         ? x.q.detach()
                         : Tensor::empty({x.batch(), x.queries(), x.heads(), x.v.size(3)}, x.q.options());
  const Tensor lse = Tensor::empty({x.batch(), x.heads(), x.queries()}, {compute_dtype(x.q.dtype()), x.q.device()});
  run_forward(call, x, out, lse);
  if (options.out_over_q) Tensor(out).bump_version();
  if (!differentiable) return {out, lse};

  const std::vector<Tensor> inputs{x.q, x.k, x.v, x.bias, x.sinks};
  std::vector<SavedTensor> saved(inputs.begin(), inputs.end());
  record("attend", inputs, {out, lse},
         [call = std::make_shared<const AttendCall>(std::move(call)), saved = std::move(saved),
          alibi = SavedTensor(x.alibi), saved_out = SavedTensor::output(out, 0),
          saved_lse = SavedTensor::output(lse, 1)](const BackwardCall& backward) -> Gradients {
           std::vector<Tensor> again;
           for (const SavedTensor& one : saved) again.push_back(one.unpack());
           const auto operands = [slopes = alibi.unpack()](const std::vector<Tensor>& y) {
             return AttendOperands{y[0], y[1], y[2], y[3], slopes, y[4]};
           };
           if (grad_enabled()) {
             const auto definition = [&](const std::vector<Tensor>& y) -> std::vector<Tensor> {
               auto [o, l] = attend_by_definition(operands(y), *call);
               return {o, l};
             };
             return differentiable_gradients(definition, again, {backward.gradient(0), backward.gradient(1)});
           }
           const MemoryScope gradients("attend", Category::gradient);
           return attend_gradients(*call, operands(again), saved_out.unpack(), saved_lse.unpack(), backward);
         });
  return {out, lse};
}

}  // namespace poolgrad::attention
