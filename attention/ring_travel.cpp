// The two ways in which keys, values and their gradients travel.
#include <utility>

#include "attention/ring_slots.h"
#include "kernels/elementwise.h"

namespace poolgrad::attention {

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
    // One buffer is computed with and sent on, while what the rank behind has goes into the other.
    if (phase + 1 < visited.size())
      slots_.start(visited[phase + 1] - step, {phase % 2, owner},
                   {(phase + 1) % 2, plan_.owner(rank_, visited[phase + 1])});
    return phase == 0 ? own_ : slots_.pair(phase % 2, owner);
  }
  // Straight from their owners to all that compute with them.
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

// Ring: the sums of an owner go round with its keys, from buffer to buffer, and get home in the end.
// All-gather: buffer 0 has the own sums, 1 what is computed for another rank, 2 what another has computed for this one.

RingSlots::Pair RingGradients::place(std::size_t phase) {
  const int owner = plan_.owner(rank_, plan_.visited()[phase]);
  receive(phase);
  if (exchange_ == Exchange::ring) return slots_.pair(phase % 2, owner);
  const RingSlots::Pair pair = slots_.pair(phase == 0 ? 0 : 1, owner);
  if (phase > 0) Tensor(pair.first).fill(0.0), Tensor(pair.second).fill(0.0);
  return pair;
}

/// What was sent in the phase before.
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

}  // namespace poolgrad::attention
