#include "attention/ring/ring.h"

#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "attention/ring/call.h"
#include "autograd/engine/record.h"
#include "autograd/operators/check.h"

namespace poolgrad::attention {

namespace {

void check_shard(const Tensor& x, const char* name, const kernels::PositionMap& map, const RingOptions& options,
                 const Communicator& communicator) {
  if (x.size(1) == map.count) return;
  fail<ShapeError>("ring_attend",
                   "rank " + std::to_string(communicator.rank()) + " of " + std::to_string(communicator.size()) +
                       " has " + std::to_string(map.count) + " positions of the " + to_string(options.layout) +
                       " layout, not those of " + name,
                   {{name, x}});
}

}  // namespace

RingStatistics& RingStatistics::operator+=(const RingStatistics& other) {
  steps += other.steps;
  computed += other.computed;
  skipped += other.skipped;
  messages += other.messages;
  bytes_sent += other.bytes_sent;
  return *this;
}

Attended ring_attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                     const std::shared_ptr<Communicator>& communicator, const RingOptions& options) {
  const int ranks = communicator->size(), rank = communicator->rank();
  const std::int64_t keys = options.keys.value_or(k.defined() && k.rank() == 4 ? k.size(1) * ranks : 0);
  const bool differentiable = check_ring(q, k, v, keys, options.attend);
  const AttendOperands x = ring_operands(q, k, v, options.attend);
  const RingCall ring = prepare_ring(x, pattern, ranks, options, options.queries.value_or(x.queries() * ranks), keys);
  check_shard(q, "q", ring.plan->queries_of(rank), options, *communicator);
  check_shard(k, "k", ring.plan->keys_of(rank), options, *communicator);

  RingForward forward(ring, x, communicator);
  for (int phase = 0; phase < forward.phases(); ++phase) forward.run(phase);
  const Attended result = forward.result();
  if (options.statistics) *options.statistics += forward.statistics();
  if (!differentiable) return result;

  const std::vector<Tensor> inputs{x.q, x.k, x.v, x.sinks};
  std::vector<SavedTensor> saved(inputs.begin(), inputs.end());
  record("ring_attend", inputs, {result.out, result.lse},
         [ring, communicator, statistics = options.statistics, saved = std::move(saved), alibi = SavedTensor(x.alibi),
          out = SavedTensor::output(result.out, 0),
          lse = SavedTensor::output(result.lse, 1)](const BackwardCall& backward) -> Gradients {
           if (grad_enabled())
             throw Error("[ring_attend] a rank has no second derivative: it would need the keys of all ranks");
           const AttendOperands again{saved[0].unpack(), saved[1].unpack(), saved[2].unpack(), {},
                                      alibi.unpack(),    saved[3].unpack()};
           RingBackward pass(ring, again, {out.unpack(), lse.unpack()}, backward.gradient(0), backward.gradient(1),
                             communicator);
           for (int phase = 0; phase < pass.phases(); ++phase) pass.run(phase);
           if (statistics) *statistics += pass.statistics();
           return {pass.result().q, pass.result().k, pass.result().v, pass.result().sinks};
         });
  return result;
}

}  // namespace poolgrad::attention
