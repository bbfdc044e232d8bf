// A ring within one process: whole tensors in, whole tensors out.
#include <memory>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/ring/call.h"
#include "autograd/engine/definition.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"

namespace poolgrad::attention {

namespace {

/// What forward and backward share.
struct Ring {
  RingCall call;
  Layout layout;
  LocalGroup::Progress progress;
  std::shared_ptr<RingStatistics> statistics;

  int ranks() const { return call.plan->ranks(); }
  Tensor part(const Tensor& whole, int rank, Category category, int dim = 1) const {
    const MemoryScope scope("ring_attend", category);
    return whole.defined() ? take_shard(whole.detach(), layout, rank, ranks(), dim) : Tensor();
  }
  AttendOperands operands(const AttendOperands& x, int rank) const {
    return {part(x.q, rank, Category::query),
            part(x.k, rank, Category::key),
            part(x.v, rank, Category::value),
            {},
            x.alibi,
            x.sinks.defined() ? x.sinks.detach() : Tensor()};
  }
  /// Runs a pass on every rank; make(rank, communicator) is called where the rank lives.
  template <class Pass, class Make>
  std::vector<std::unique_ptr<Pass>> run(int phases, Stream stream, const Make& make) const {
    LocalGroup group(ranks(), progress);
    std::vector<std::unique_ptr<Pass>> passes(static_cast<std::size_t>(ranks()));
    group.run(phases, [&](Communicator& communicator, int phase) {
      const StreamGuard guard(stream);
      const int rank = communicator.rank();
      std::unique_ptr<Pass>& pass = passes[static_cast<std::size_t>(rank)];
      if (phase == 0) pass = make(rank, group.communicator(rank));
      pass->run(phase);
    });
    if (statistics)
      for (const auto& pass : passes) *statistics += pass->statistics();
    return passes;
  }
};

/// Joins what `part` takes of every pass.
template <class Pass, class Part>
Tensor joined(const std::vector<std::unique_ptr<Pass>>& passes, Layout layout, int dim, const Part& part) {
  std::vector<Tensor> parts;
  for (const auto& pass : passes) parts.push_back(part(*pass));
  return join_shards(parts, layout, dim);
}

Gradients gradients(const Ring& ring, const AttendOperands& x, const Attended& forward, const BackwardCall& backward) {
  const int hops = static_cast<int>(ring.call.plan->visited().size());
  const auto passes = ring.run<RingBackward>(
      hops + (hops > 1), current_stream(x.q.device()),
      [&](int rank, const std::shared_ptr<Communicator>& communicator) {
        const Attended own{ring.part(forward.out, rank, Category::output),
                           ring.part(forward.lse, rank, Category::output, 2)};
        return std::make_unique<RingBackward>(
            ring.call, ring.operands(x, rank), own, ring.part(backward.gradient(0), rank, Category::gradient),
            ring.part(backward.gradient(1), rank, Category::gradient, 2), communicator);
      });
  const MemoryScope scope("ring_attend", Category::gradient);
  Tensor sinks = passes[0]->result().sinks;
  for (std::size_t rank = 1; rank < passes.size() && sinks.defined(); ++rank)
    sinks = add(sinks, passes[rank]->result().sinks);
  return {joined(passes, ring.layout, 1, [](const RingBackward& pass) { return pass.result().q; }),
          joined(passes, ring.layout, 1, [](const RingBackward& pass) { return pass.result().k; }),
          joined(passes, ring.layout, 1, [](const RingBackward& pass) { return pass.result().v; }), sinks};
}

}  // namespace

Attended ring_attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, int ranks,
                         const RingOptions& options, LocalGroup::Progress progress) {
  const bool differentiable =
      check_ring(q, k, v, k.defined() && k.rank() == 4 ? k.size(1) : 0, options.attend);  // it refuses the rest
  if (ranks < 1) throw ValueError("[ring_attend_all] needs at least one rank, got " + std::to_string(ranks));
  const AttendOperands x = ring_operands(q, k, v, options.attend);
  const Ring ring{prepare_ring(x, pattern, ranks, options, x.queries(), x.keys()), options.layout, progress,
                  options.statistics};
  Attended result;
  {
    const auto passes =
        ring.run<RingForward>(static_cast<int>(ring.call.plan->visited().size()), current_stream(q.device()),
                              [&](int rank, const std::shared_ptr<Communicator>& communicator) {
                                return std::make_unique<RingForward>(ring.call, ring.operands(x, rank), communicator);
                              });
    const MemoryScope scope("ring_attend", Category::output);
    result.out = joined(passes, ring.layout, 1, [](const RingForward& pass) { return pass.result().out; });
    result.lse = joined(passes, ring.layout, 2, [](const RingForward& pass) { return pass.result().lse; });
  }
  if (!differentiable) return result;

  const std::vector<Tensor> inputs{x.q, x.k, x.v, x.sinks};
  std::vector<SavedTensor> saved(inputs.begin(), inputs.end());
  record("ring_attend_all", inputs, {result.out, result.lse},
         [ring, saved = std::move(saved), alibi = SavedTensor(x.alibi), out = SavedTensor::output(result.out, 0),
          lse = SavedTensor::output(result.lse, 1)](const BackwardCall& backward) -> Gradients {
           std::vector<Tensor> again;
           for (const SavedTensor& one : saved) again.push_back(one.unpack());
           const auto operands = [&ring, slopes = alibi.unpack()](const std::vector<Tensor>& y) {
             return AttendOperands{y[0], y[1], y[2], ring.call.padding, slopes, y[3]};
           };
           if (!grad_enabled()) return gradients(ring, operands(again), {out.unpack(), lse.unpack()}, backward);
           const auto definition = [&](const std::vector<Tensor>& y) -> std::vector<Tensor> {
             auto [o, l] = attend_by_definition(operands(y), ring.call.attend);
             return {o, l};
           };
           return differentiable_gradients(definition, again, {backward.gradient(0), backward.gradient(1)});
         });
  return result;
}

}  // namespace poolgrad::attention
