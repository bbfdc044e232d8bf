#include <utility>

#include "allocator/memory_scope.h"
#include "attention/ring_pass.h"

namespace poolgrad::attention {

RingBackward::RingBackward(RingCall call, AttendOperands x, const Attended& forward, const Tensor& grad_out,
                           const Tensor& grad_lse, std::shared_ptr<Communicator> communicator)
    : call_(std::move(call)),
      x_(std::move(x)),
      communicator_(std::move(communicator)),
      grad_out_(grad_out.defined() ? with_unit_rows(grad_out) : grad_out),
      lse_(forward.lse) {
  const MemoryScope scope("ring_attend", Category::gradient);
  const RingPlan& plan = *call_.plan;
  const TensorOptions compute{compute_dtype(x_.q.dtype()), x_.q.device()};
  std::size_t passes = 0;
  for (const int step : plan.visited())
    if (plan.computes(communicator_->rank(), step)) passes += plan.passes();
  result_.q = dq_ = Tensor::empty_like(x_.q);
  result_.k = home_.first = Tensor::empty_like(x_.k);
  result_.v = home_.second = Tensor::empty_like(x_.v);
  {
    const MemoryScope temporary(Category::temp);
    delta_ = Tensor::empty(lse_.shape(), lse_.options());
    const bool travels = plan.visited().size() > 1;
    if ((passes > 1 || travels) && dq_.dtype() != compute.dtype) {
      dq_ = Tensor::empty(x_.q.shape(), compute);
      if (!travels) {
        home_.first = Tensor::empty(x_.k.shape(), compute);
        home_.second = Tensor::empty(x_.v.shape(), compute);
      }
    }
    kernels::attention_delta(current_stream(compute.device), forward.out.view(), view_or_none(grad_out_),
                             view_or_none(grad_lse), delta_.view());
    if (x_.sinks.defined()) result_.sinks = sinks_gradient(x_.sinks, lse_, delta_);
  }
  keys_.emplace(plan, call_.exchange, *communicator_, statistics_, x_.k, x_.v);
  if (plan.visited().size() > 1)
    travelling_.emplace(plan, call_.exchange, *communicator_, statistics_, x_.k, x_.v, compute.dtype);
  statistics_.steps = plan.ranks();
}

void RingBackward::run(int phase) {
  const RingPlan& plan = *call_.plan;
  const int hops = static_cast<int>(plan.visited().size());
  if (phase < hops) {
    const auto number = static_cast<std::size_t>(phase);
    const int step = plan.visited()[number];
    const bool computes = plan.computes(communicator_->rank(), step);
    const RingSlots::Pair keys = keys_->meet(number);
    // A GPU has a kernel for each side: that of the queries runs while the gradients of the keys arrive. On the CPU,
    // and on a simulated device, which is asked for what the CPU asks for, both sides share their scores, which is
    // worth more.
    kernels::AttentionGradients into{.dq = dq_.view(), .dk = {}, .dv = {}, .dbias = {}, .accumulate = step > 0};
    if (computes && x_.q.device().type == DeviceType::cuda) {
      compute(step, keys, into);
      into.dq = {};
    }
    const RingSlots::Pair place = travelling_ ? travelling_->place(number) : home_;
    into.dk = place.first.view(), into.dv = place.second.view();
    if (computes) compute(step, keys, into);
    statistics_.computed += computes ? 1 : 0;
    if (travelling_) travelling_->send(number);
  }
  if (phase + 1 < phases()) return;
  if (travelling_) home_ = travelling_->home();
  for (const auto& [result, sum] :
       {std::pair{&result_.q, &dq_}, {&result_.k, &home_.first}, {&result_.v, &home_.second}})
    if (!result->is_same(*sum)) result->copy_from(*sum);
  statistics_.skipped = statistics_.steps - statistics_.computed;
  dq_ = {}, home_ = {};
  travelling_.reset(), keys_.reset();
}

void RingBackward::compute(int step, const RingSlots::Pair& keys, kernels::AttentionGradients into) {
  const Pattern::Compiled compiled = call_.plan->compile(communicator_->rank(), step);
  const AttendOperands met = call_.operands(x_, communicator_->rank(), step, keys.first, keys.second);
  for (const kernels::AttentionSchedule& pass : compiled.passes) {
    kernels::attention_backward(current_stream(x_.q.device()), pass, call_.attend.scores(met), met.q.view(),
                                met.k.view(), met.v.view(), lse_.view(), delta_.view(), view_or_none(grad_out_), into);
    into.accumulate = true;
  }
}

}  // namespace poolgrad::attention
