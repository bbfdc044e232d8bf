#include <utility>

#include "allocator/memory_scope.h"
#include "attention/ring_pass.h"

namespace poolgrad::attention {

RingForward::RingForward(RingCall call, AttendOperands x, std::shared_ptr<Communicator> communicator)
    : call_(std::move(call)), x_(std::move(x)), communicator_(std::move(communicator)) {
  const MemoryScope scope("ring_attend", Category::output);
  const RingPlan& plan = *call_.plan;
  const std::int64_t batch = x_.q.size(0), queries = x_.q.size(1), heads = x_.q.size(2);
  result_.out = Tensor::empty({batch, queries, heads, x_.v.size(3)}, x_.q.options());
  result_.lse = Tensor::empty({batch, heads, queries}, {compute_dtype(x_.q.dtype()), x_.q.device()});
  carry_ = result_.out;
  std::size_t passes = 0;
  for (const int step : plan.visited()) {
    if (!plan.computes(communicator_->rank(), step)) continue;
    last_ = step;
    passes += plan.passes();
  }
  if (passes > 1 && carry_.dtype() != result_.lse.dtype()) {
    const MemoryScope temporary(Category::temp);
    carry_ = Tensor::empty(carry_.shape(), result_.lse.options());
  }
  keys_.emplace(plan, call_.exchange, *communicator_, statistics_, x_.k, x_.v);
  statistics_.steps = plan.ranks();
}

void RingForward::run(int phase) {
  const RingPlan& plan = *call_.plan;
  const int step = plan.visited()[static_cast<std::size_t>(phase)];
  const RingSlots::Pair keys = keys_->meet(static_cast<std::size_t>(phase));
  if (plan.computes(communicator_->rank(), step)) compute(step, keys.first, keys.second, step == last_);
  if (phase + 1 < phases()) return;
  statistics_.skipped = statistics_.steps - statistics_.computed;
  keys_.reset();
  carry_ = {};
}

void RingForward::compute(int step, const Tensor& k, const Tensor& v, bool last) {
  const Pattern::Compiled compiled = call_.plan->compile(communicator_->rank(), step);
  const AttendOperands met = call_.operands(x_, communicator_->rank(), step, k, v);
  for (std::size_t i = 0; i < compiled.passes.size(); ++i) {
    const bool first = step == 0 && i == 0, final = last && i + 1 == compiled.passes.size();
    kernels::attention_forward(current_stream(x_.q.device()), compiled.passes[i], call_.attend.scores(met),
                               met.q.view(), met.k.view(), met.v.view(), (final ? result_.out : carry_).view(),
                               result_.lse.view(), first ? View{} : carry_.view(), first ? View{} : result_.lse.view());
  }
  statistics_.computed += 1;
}

}  // namespace poolgrad::attention
