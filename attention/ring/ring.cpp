#include "attention/ring/ring.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/ring/pass.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"

namespace poolgrad::attention {

namespace {

AttendOptions without_padding(AttendOptions options) {
  options.key_padding = {};
  return options;
}

/// Throws the errors of ring_attend() that do not depend on the layout, for a whole sequence of `keys`. Returns whether
/// a gradient is wanted.
bool check_ring(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t keys, const AttendOptions& options) {
  const bool differentiable = check_attend(q, k, v, without_padding(options));
  check_key_padding("ring_attend", q, keys, options.key_padding);
  const auto refuse = [&](const char* reason) {
    fail<ValueError>("ring_attend", reason, {{"q", q}, {"k", k}, {"v", v}, {"bias", options.bias}});
  };
  if (options.bias.defined()) refuse("a bias of all pairs is not divided among ranks");
  if (!options.documents.empty()) refuse("documents by row are not divided among ranks");
  if (options.key_positions.gap > 0) refuse("keys with a gap are not divided among ranks");
  if (options.out_over_q || options.dq_over_out) refuse("out_over_q and dq_over_out are not for rings");
  return differentiable;
}

/// Returns this rank's operands: as prepare_operands(), except for the key padding, which belongs to the ring.
AttendOperands ring_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
  return prepare_operands(q, k, v, without_padding(options));
}

/// Prepares a call for whole sequences of `queries` and `keys`. With dropout, takes a range of the generator.
RingCall prepare_ring(const AttendOperands& x, const Pattern& pattern, int ranks, const RingOptions& options,
                      std::int64_t queries, std::int64_t keys) {
  const AttendCall call = prepare_call(x.q.size(3), queries, keys, pattern, options.attend);
  return {RingPlan::of(call.pattern, options.layout, ranks, x.heads(), queries, keys, call.q_offset), options.exchange,
          call, padding_bias(options.attend.key_padding, compute_dtype(x.q.dtype()))};
}

void check_shard(const Tensor& x, const char* name, const kernels::PositionMap& map, const RingOptions& options,
                 const Communicator& communicator) {
  if (x.size(1) == map.count) return;
  fail<ShapeError>("ring_attend",
                   fmt::format("rank {} of {} has {} positions of the {} layout, not those of {}", communicator.rank(),
                               communicator.size(), map.count, to_string(options.layout), name),
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
                     const std::shared_ptr<Communicator>& communicator, const RingOptions& options, CallSite) {
  if (const auto cast = autocast("ring_attend", {q, k, v}); !cast.empty())
    return ring_attend(cast[0], cast[1], cast[2], pattern, communicator, options);
  const int ranks = communicator->size(), rank = communicator->rank();
  if (!options.devices.empty())
    throw ValueError("[ring_attend] devices is only for ring_attend_all; a rank computes on the device of its tensors");
  const std::int64_t keys = options.keys.value_or(k.defined() && k.dim() == 4 ? k.size(1) * ranks : 0);
  const bool differentiable = check_ring(q, k, v, keys, options.attend);
  const AttendOperands x = ring_operands(q, k, v, options.attend);
  RingCall ring = prepare_ring(x, pattern, ranks, options, options.queries.value_or(x.queries() * ranks), keys);
  check_shard(q, "q", ring.plan->queries_of(rank), options, *communicator);
  check_shard(k, "k", ring.plan->keys_of(rank), options, *communicator);

  RingForward forward(ring, x, communicator);
  for (int phase = 0; phase < forward.phases(); ++phase) forward.run(phase);
  const Attended result = forward.result();
  if (options.statistics) *options.statistics += forward.statistics();
  if (!differentiable) return result;

  const std::vector<Tensor> inputs{x.q, x.k, x.v, x.sinks};
  std::vector<SavedTensor> saved(inputs.begin(), inputs.end());
  const SavedTensor padding(std::exchange(ring.padding, {}));
  record("ring_attend", inputs, {result.out, result.lse},
         [kept = ring, padding, communicator, statistics = options.statistics, saved = std::move(saved),
          alibi = SavedTensor(x.alibi), out = SavedTensor::output(result.out, 0),
          lse = SavedTensor::output(result.lse, 1)](const BackwardCall& backward) -> Gradients {
           if (grad_enabled())
             throw Error("[ring_attend] a rank has no second derivative: it would need the keys of all ranks");
           const AttendOperands again{saved[0].unpack(), saved[1].unpack(), saved[2].unpack(), {},
                                      alibi.unpack(),    saved[3].unpack()};
           RingCall call = kept;
           call.padding = padding.unpack();
           RingBackward pass(call, again, {out.unpack(), lse.unpack()}, backward.gradient(0), backward.gradient(1),
                             communicator);
           for (int phase = 0; phase < pass.phases(); ++phase) pass.run(phase);
           if (statistics) *statistics += pass.statistics();
           return {pass.result().q, pass.result().k, pass.result().v, pass.result().sinks};
         });
  return result;
}

// A ring within one process: whole tensors in, whole tensors out.

namespace {

/// The common part of forward and backward.
struct Ring {
  RingCall call;
  Layout layout;
  LocalGroup::Progress progress;
  std::shared_ptr<RingStatistics> statistics;
  Device home;                  // of whole tensors
  std::vector<Device> devices;  // of the ranks in turn; none: `home`

  int ranks() const { return call.plan->ranks(); }
  Device device_of(int rank) const {
    return devices.empty() ? home : devices[static_cast<std::size_t>(rank) % devices.size()];
  }
  /// Copies x, which every rank needs, to the rank's device.
  Tensor copy(const Tensor& x, int rank) const { return x.defined() ? to(x.detach(), device_of(rank)) : Tensor(); }
  Tensor part(const Tensor& whole, int rank, Category category, int dim = 1) const {
    const MemoryScope scope("ring_attend", category);
    return whole.defined() ? copy(take_shard(whole.detach(), layout, rank, ranks(), dim), rank) : Tensor();
  }
  AttendOperands operands(const AttendOperands& x, int rank) const {
    return {part(x.q, rank, Category::query),
            part(x.k, rank, Category::key),
            part(x.v, rank, Category::value),
            {},
            copy(x.alibi, rank),
            copy(x.sinks, rank)};
  }
  RingCall call_of(int rank) const {
    RingCall own = call;
    own.padding = copy(call.padding, rank);
    return own;
  }
  /// Runs a pass on every rank. Calls make(rank, communicator) on the rank's thread.
  template <class Pass, class Make>
  std::vector<std::unique_ptr<Pass>> run(int phases, const Make& make) const {
    LocalGroup group(ranks(), progress);
    const Stream stream = current_stream(home);
    std::vector<Stream> streams;
    for (int rank = 0; rank < ranks(); ++rank) streams.push_back(current_stream(device_of(rank)));
    std::vector<std::unique_ptr<Pass>> passes(static_cast<std::size_t>(ranks()));
    group.run(phases, [&](Communicator& communicator, int phase) {
      const int rank = communicator.rank();
      const StreamGuard whole(stream), own(streams[static_cast<std::size_t>(rank)]);
      std::unique_ptr<Pass>& pass = passes[static_cast<std::size_t>(rank)];
      if (phase == 0) pass = make(rank, group.communicator(rank));
      pass->run(phase);
    });
    if (statistics)
      for (const auto& pass : passes) *statistics += pass->statistics();
    return passes;
  }
  /// Joins part(pass) of every pass.
  template <class Pass, class Part>
  Tensor joined(const std::vector<std::unique_ptr<Pass>>& passes, int dim, const Part& part) const {
    std::vector<Tensor> parts;
    for (const auto& pass : passes) parts.push_back(to(part(*pass), home));
    return join_shards(parts, layout, dim);
  }
};

Gradients gradients(const Ring& ring, const AttendOperands& x, const Attended& forward, const BackwardCall& backward) {
  const int hops = static_cast<int>(ring.call.plan->visited().size());
  const auto passes =
      ring.run<RingBackward>(hops + (hops > 1), [&](int rank, const std::shared_ptr<Communicator>& communicator) {
        const Attended own{ring.part(forward.out, rank, Category::output),
                           ring.part(forward.lse, rank, Category::output, 2)};
        return std::make_unique<RingBackward>(
            ring.call_of(rank), ring.operands(x, rank), own, ring.part(backward.gradient(0), rank, Category::gradient),
            ring.part(backward.gradient(1), rank, Category::gradient, 2), communicator);
      });
  const MemoryScope scope("ring_attend", Category::gradient);
  Tensor sinks = passes[0]->result().sinks;
  if (sinks.defined()) sinks = to(sinks, ring.home);
  for (std::size_t rank = 1; rank < passes.size() && sinks.defined(); ++rank)
    sinks = add(sinks, to(passes[rank]->result().sinks, ring.home));
  return {ring.joined(passes, 1, [](const RingBackward& pass) { return pass.result().q; }),
          ring.joined(passes, 1, [](const RingBackward& pass) { return pass.result().k; }),
          ring.joined(passes, 1, [](const RingBackward& pass) { return pass.result().v; }), sinks};
}

}  // namespace

Attended ring_attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, int ranks,
                         const RingOptions& options, LocalGroup::Progress progress, CallSite) {
  if (const auto cast = autocast("ring_attend_all", {q, k, v}); !cast.empty())
    return ring_attend_all(cast[0], cast[1], cast[2], pattern, ranks, options, progress);
  const bool differentiable =
      check_ring(q, k, v, k.defined() && k.dim() == 4 ? k.size(1) : 0, options.attend);  // it refuses the rest
  if (ranks < 1) throw ValueError("[ring_attend_all] needs at least one rank, got " + std::to_string(ranks));
  const AttendOperands x = ring_operands(q, k, v, options.attend);
  const Ring ring{prepare_ring(x, pattern, ranks, options, x.queries(), x.keys()),
                  options.layout,
                  progress,
                  options.statistics,
                  q.device(),
                  options.devices};
  Attended result;
  {
    const auto passes = ring.run<RingForward>(static_cast<int>(ring.call.plan->visited().size()),
                                              [&](int rank, const std::shared_ptr<Communicator>& communicator) {
                                                return std::make_unique<RingForward>(
                                                    ring.call_of(rank), ring.operands(x, rank), communicator);
                                              });
    const MemoryScope scope("ring_attend", Category::output);
    result.out = ring.joined(passes, 1, [](const RingForward& pass) { return pass.result().out; });
    result.lse = ring.joined(passes, 2, [](const RingForward& pass) { return pass.result().lse; });
  }
  if (!differentiable) return result;

  const std::vector<Tensor> inputs{x.q, x.k, x.v, x.sinks};
  std::vector<SavedTensor> saved(inputs.begin(), inputs.end());
  const SavedTensor padding(ring.call.padding);
  Ring kept = ring;
  kept.call.padding = {};
  record(
      "ring_attend_all", inputs, {result.out, result.lse},
      [kept, padding, saved = std::move(saved), alibi = SavedTensor(x.alibi), out = SavedTensor::output(result.out, 0),
       lse = SavedTensor::output(result.lse, 1)](const BackwardCall& backward) -> Gradients {
        Ring whole = kept;
        whole.call.padding = padding.unpack();
        std::vector<Tensor> again;
        for (const SavedTensor& one : saved) again.push_back(one.unpack());
        const auto operands = [&whole, slopes = alibi.unpack()](const std::vector<Tensor>& y) {
          return AttendOperands{y[0], y[1], y[2], whole.call.padding, slopes, y[3]};
        };
        if (!grad_enabled()) return gradients(whole, operands(again), {out.unpack(), lse.unpack()}, backward);
        const auto definition = [&](const std::vector<Tensor>& y) -> std::vector<Tensor> {
          auto [o, l] = attend_by_definition(operands(y), whole.call.attend);
          return {o, l};
        };
        return differentiable_gradients(definition, again, {backward.gradient(0), backward.gradient(1)});
      });
  return result;
}

}  // namespace poolgrad::attention
