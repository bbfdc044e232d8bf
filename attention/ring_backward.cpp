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
    if (plan.computes(communicator_->rank(), step)) passes += plan.compile(communicator_->rank(), step).passes.size();
  result_.q = dq_ = Tensor::empty_like(x_.q);
  result_.k = home_.first = Tensor::empty_like(x_.k);
  result_.v = home_.second = Tensor::empty_like(x_.v);
  {
    const MemoryScope temporary(Category::temp);
    delta_ = Tensor::empty(lse_.shape(), lse_.options());
    if (passes > 1 && dq_.dtype() != compute.dtype) {
      dq_ = Tensor::empty(x_.q.shape(), compute);
      if (plan.visited().size() == 1) {
        home_.first = Tensor::empty(x_.k.shape(), compute);
        home_.second = Tensor::empty(x_.v.shape(), compute);
      }
    }
    kernels::attention_delta(current_stream(compute.device), forward.out.view(), view_or_none(grad_out_),
                             view_or_none(grad_lse), delta_.view());
    if (x_.sinks.defined()) {
      result_.sinks = sinks_gradient(x_.sinks, lse_, delta_);
    }
  }
  if (plan.visited().size() > 1) {
    slots_.emplace(plan, x_.k, x_.v, x_.k.dtype());
    gradient_slots_.emplace(plan, x_.k, x_.v, compute.dtype);
    home_ = gradient_slots_->pair(0, communicator_->rank());
  }
  statistics_.steps = plan.ranks();
}

void RingBackward::run(int phase) {
  const RingPlan& plan = *call_.plan;
  const std::vector<int>& visited = plan.visited();
  const int rank = communicator_->rank(), hops = static_cast<int>(visited.size());
  if (phase == hops) {
    gradient_slots_->wait();
    const RingSlots::Pair arrived = gradient_slots_->pair(phase, rank);
    result_.k.copy_from(arrived.first);
    result_.v.copy_from(arrived.second);
    gradient_slots_.reset();
    return;
  }
  const int step = visited[static_cast<std::size_t>(phase)], owner = plan.owner(rank, step);
  const bool computes = plan.computes(rank, step);
  RingSlots::Pair keys{x_.k, x_.v}, gradients = home_;
  if (phase > 0) {
    slots_->wait();
    keys = slots_->pair(phase, owner);
  }
  if (phase + 1 < hops) {
    if (phase == 0) {
      slots_->pair(0, rank).first.copy_from(x_.k);
      slots_->pair(0, rank).second.copy_from(x_.v);
    }
    slots_->start(*communicator_, phase, owner, visited[static_cast<std::size_t>(phase) + 1] - step, statistics_);
  }
  if (computes) compute(step, keys.first, keys.second, {.dq = dq_.view(), .dk = {}, .dv = {}, .dbias = {}});
  if (phase > 0) {
    gradient_slots_->wait();
    gradients = gradient_slots_->pair(phase, owner);
  }
  if (computes)
    compute(step, keys.first, keys.second,
            {.dq = {}, .dk = gradients.first.view(), .dv = gradients.second.view(), .dbias = {}});
  statistics_.computed += computes ? 1 : 0;
  if (gradient_slots_) {
    const int next = phase + 1 < hops ? visited[static_cast<std::size_t>(phase) + 1] : plan.ranks();
    gradient_slots_->start(*communicator_, phase, owner, next - step, statistics_);
  }
  if (phase + 1 < hops) return;
  statistics_.skipped = statistics_.steps - statistics_.computed;
  for (const auto& [result, sum] :
       {std::pair{&result_.q, &dq_}, {&result_.k, &home_.first}, {&result_.v, &home_.second}})
    if (!gradient_slots_ || result == &result_.q)
      if (!result->is_same(*sum)) result->copy_from(*sum);
  dq_ = {}, home_ = {};
}

/// The gradients of keys begin in step 0 on their own rank, and so do those of queries.
void RingBackward::compute(int step, const Tensor& k, const Tensor& v, kernels::AttentionGradients into) {
  const Pattern::Compiled compiled = call_.plan->compile(communicator_->rank(), step);
  into.accumulate = step > 0;
  for (const kernels::AttentionSchedule& pass : compiled.passes) {
    kernels::attention_backward(current_stream(x_.q.device()), pass, call_.attend.scores(x_), x_.q.view(), k.view(),
                                v.view(), lse_.view(), delta_.view(), view_or_none(grad_out_), into);
    into.accumulate = true;
  }
}

}  // namespace poolgrad::attention
