#include "attention/ring/pass.h"

#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/shared.h"
#include "kernels/elementwise.h"
#include "tensor/geometry.h"

namespace poolgrad::attention {

AttendOperands RingCall::operands(const AttendOperands& own, int rank, int step, const Tensor& k,
                                  const Tensor& v) const {
  AttendOperands met = own;
  met.k = k, met.v = v;
  if (padding.defined()) {
    const MemoryScope scope("ring_attend", Category::mask);
    met.bias = plan->keys_part(padding, rank, step, 3);
  }
  return met;
}

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
    kernels::attention_forward(current_stream(x_.q.device()), compiled.passes[i], call_.attend.scores_of(met),
                               met.q.view(), met.k.view(), met.v.view(), (final ? result_.out : carry_).view(),
                               result_.lse.view(), first ? View{} : carry_.view(), first ? View{} : result_.lse.view());
  }
  statistics_.computed += 1;
}

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
    const auto met = computes ? std::optional(meet(step, keys)) : std::nullopt;
    // On a GPU each side has its own kernel: the one for queries runs while the gradients of the keys arrive. On the
    // CPU both sides share their scores, which saves more.
    kernels::AttentionGradients into{.dq = dq_.view(), .dk = {}, .dv = {}, .dbias = {}, .accumulate = step > 0};
    if (met && allocator_for(x_.q.device()).memory().queues_work()) {
      compute(*met, into);
      into.dq = {};
    }
    const RingSlots::Pair place = travelling_ ? travelling_->place(number) : home_;
    into.dk = place.first.view(), into.dv = place.second.view();
    if (met) compute(*met, into);
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

RingBackward::StepOperands RingBackward::meet(int step, const RingSlots::Pair& keys) const {
  const int rank = communicator_->rank();
  return {call_.plan->compile(rank, step), call_.operands(x_, rank, step, keys.first, keys.second)};
}

void RingBackward::compute(const StepOperands& met, kernels::AttentionGradients into) {
  const AttendOperands& x = met.operands;
  for (const kernels::AttentionSchedule& pass : met.pattern.passes) {
    kernels::attention_backward(current_stream(x.q.device()), pass, call_.attend.scores_of(x), x.q.view(), x.k.view(),
                                x.v.view(), lse_.view(), delta_.view(), view_or_none(grad_out_), into);
    into.accumulate = true;
  }
}

// The two exchanges of keys, values and their gradients.

namespace {

void copy_pair(const RingSlots::Pair& to, const RingSlots::Pair& from) {
  Tensor(to.first).copy_from(from.first.detach());
  Tensor(to.second).copy_from(from.second.detach());
}

void add_pair(const RingSlots::Pair& to, const RingSlots::Pair& from) {
  const Stream stream = current_stream(to.first.device());
  for (const auto& [sum, part] : {std::pair{&to.first, &from.first}, {&to.second, &from.second}})
    kernels::axpby(stream, sum->view(), 1.0, sum->view(), 1.0, part->view());
}

}  // namespace

RingKeys::RingKeys(const RingPlan& plan, Exchange exchange, Communicator& communicator, RingStatistics& statistics,
                   const Tensor& k, const Tensor& v)
    : plan_(plan),
      exchange_(exchange),
      rank_(communicator.rank()),
      own_{k, v},
      slots_(plan, communicator, statistics, k, v, k.dtype(),
             plan.visited().size() == 1   ? 0
             : exchange == Exchange::ring ? 2
                                          : plan.visited().size()) {}

RingSlots::Pair RingKeys::meet(std::size_t phase) {
  const std::vector<int>& visited = plan_.visited();
  const int step = visited[phase], owner = plan_.owner(rank_, step);
  if (phase > 0) slots_.wait();
  if (phase == 0 && visited.size() > 1) copy_pair(slots_.pair(0, rank_), own_);
  if (exchange_ == Exchange::ring) {
    // One buffer is in use and sent on, while the other receives the keys of the rank behind.
    if (phase + 1 < visited.size())
      slots_.start(visited[phase + 1] - step, {phase % 2, owner},
                   {(phase + 1) % 2, plan_.owner(rank_, visited[phase + 1])});
    return phase == 0 ? own_ : slots_.pair(phase % 2, owner);
  }
  // Directly from the owners to all ranks that use them.
  for (std::size_t later = 1; phase == 0 && later < visited.size(); ++later) {
    const int distance = visited[later], receiver = (rank_ + distance) % plan_.ranks();
    slots_.start(distance, {0, plan_.computes(receiver, distance) ? rank_ : RingSlots::nobody},
                 {later, plan_.computes(rank_, distance) ? plan_.owner(rank_, distance) : RingSlots::nobody});
  }
  return phase == 0 ? own_ : slots_.pair(phase, owner);
}

RingGradients::RingGradients(const RingPlan& plan, Exchange exchange, Communicator& communicator,
                             RingStatistics& statistics, const Tensor& k, const Tensor& v, DType dtype)
    : plan_(plan),
      exchange_(exchange),
      rank_(communicator.rank()),
      slots_(plan, communicator, statistics, k, v, dtype, exchange == Exchange::ring ? 2 : 3) {}

// Ring: an owner's sums travel with its keys from buffer to buffer and return to it at the end. All-gather: buffer 0
// holds this rank's sums, buffer 1 sums computed here for another rank, buffer 2 sums computed elsewhere for this rank.

RingSlots::Pair RingGradients::place(std::size_t phase) {
  const int owner = plan_.owner(rank_, plan_.visited()[phase]);
  receive(phase);
  if (exchange_ == Exchange::ring) return slots_.pair(phase % 2, owner);
  const RingSlots::Pair pair = slots_.pair(phase == 0 ? 0 : 1, owner);
  if (phase > 0) Tensor(pair.first).fill(0.0), Tensor(pair.second).fill(0.0);
  return pair;
}

/// Receives the message sent in the phase before.
void RingGradients::receive(std::size_t phase) {
  if (exchange_ == Exchange::ring) {
    if (phase > 0) slots_.wait();
    return;
  }
  if (phase < 2) return;
  slots_.wait();
  const int step = plan_.visited()[phase - 1], sender = (rank_ + step) % plan_.ranks();
  if (plan_.computes(sender, step)) add_pair(slots_.pair(0, rank_), slots_.pair(2, rank_));
}

void RingGradients::send(std::size_t phase) {
  const std::vector<int>& visited = plan_.visited();
  const int step = visited[phase], owner = plan_.owner(rank_, step);
  if (exchange_ == Exchange::ring) {
    const int next = phase + 1 < visited.size() ? visited[phase + 1] : plan_.ranks();
    slots_.start(next - step, {phase % 2, owner}, {(phase + 1) % 2, plan_.owner(rank_, next)});
  } else if (phase > 0) {
    const int sender = (rank_ + step) % plan_.ranks();
    slots_.start(plan_.ranks() - step, {1, plan_.computes(rank_, step) ? owner : RingSlots::nobody},
                 {2, plan_.computes(sender, step) ? rank_ : RingSlots::nobody});
  }
}

RingSlots::Pair RingGradients::home() {
  const std::size_t phases = plan_.visited().size();
  receive(phases);
  return slots_.pair(exchange_ == Exchange::ring ? phases % 2 : 0, rank_);
}

namespace {

/// Returns the elements before the second tensor of a message, which begins at a multiple of 16 bytes.
std::int64_t begin_of_second(const Shape& first, DType dtype) {
  const auto unit = static_cast<std::int64_t>(16 / size_of(dtype));
  return kernels::ceil_div(count(first), unit) * unit;
}

std::int64_t message_bytes(const Shape& first, const Shape& second, DType dtype) {
  return (begin_of_second(first, dtype) + count(second)) * static_cast<std::int64_t>(size_of(dtype));
}

Shape with_tokens(Shape shape, std::int64_t tokens) {
  shape[1] = tokens;
  return shape;
}

}  // namespace

std::int64_t ring_message_bytes(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t width,
                                std::int64_t value_width, DType dtype) {
  return message_bytes({batch, tokens, heads, width}, {batch, tokens, heads, value_width}, dtype);
}

RingSlots::RingSlots(const RingPlan& plan, Communicator& communicator, RingStatistics& statistics, const Tensor& first,
                     const Tensor& second, DType dtype, std::size_t buffers)
    : plan_(plan),
      communicator_(communicator),
      statistics_(statistics),
      first_(first.shape()),
      second_(second.shape()),
      buffers_(buffers) {
  const MemoryScope scope(Category::comm);
  const std::int64_t most = plan.most_keys();
  const std::int64_t bytes = message_bytes(with_tokens(first_, most), with_tokens(second_, most), dtype);
  for (Tensor& buffer : buffers_)
    buffer = Tensor::empty({bytes / static_cast<std::int64_t>(size_of(dtype))}, {dtype, first.device()});
}

RingSlots::Pair RingSlots::pair(std::size_t number, int owner) const {
  const Tensor& whole = buffers_[number];
  const std::int64_t tokens = plan_.keys_of(owner).count;
  const Shape first = with_tokens(first_, tokens), second = with_tokens(second_, tokens);
  return {whole.alias({first, contiguous_strides(first), 0}),
          whole.alias({second, contiguous_strides(second), begin_of_second(first, whole.dtype())})};
}

Message RingSlots::message(End end) const {
  const std::int64_t tokens = end.owner == nobody ? 0 : plan_.keys_of(end.owner).count;
  if (tokens == 0) return {};
  const Tensor& whole = buffers_[end.buffer];
  return {whole.view().data, message_bytes(with_tokens(first_, tokens), with_tokens(second_, tokens), whole.dtype())};
}

void RingSlots::start(int distance, End out, End in) {
  const int ranks = communicator_.size(), rank = communicator_.rank();
  const Message sent = message(out);
  transfers_.push_back(communicator_.start(current_stream(buffers_[0].device()), (rank + distance) % ranks, sent,
                                           (rank + ranks - distance % ranks) % ranks, message(in)));
  statistics_.messages += out.owner == nobody ? 0 : 1;
  statistics_.bytes_sent += sent.bytes;
}

void RingSlots::wait() {
  transfers_.front()->wait();
  transfers_.pop_front();
}

}  // namespace poolgrad::attention
