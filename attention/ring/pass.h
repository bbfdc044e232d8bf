// The two passes over a ring, phase by phase for one rank, and their messages. A message is a pair of tensors: keys and
// values, or their gradients. A phase waits only for messages that other ranks started in earlier phases, so ranks may
// run on threads or in turns.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "attention/attend_call.h"
#include "attention/ring/communicator.h"
#include "attention/ring/plan.h"
#include "attention/ring/ring.h"
#include "kernels/attention.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Buffers for pairs and the transfers between them, Category::comm. Each is as large as the largest message.
class RingSlots {
 public:
  /// Pairs have the shapes of `first` and `second`, except for the tokens (dimension 1), which follow the owner.
  /// References must outlive the slots.
  RingSlots(const RingPlan& plan, Communicator& communicator, RingStatistics& statistics, const Tensor& first,
            const Tensor& second, DType dtype, std::size_t buffers);

  struct Pair {
    Tensor first, second;
  };
  /// Returns buffer `number` as the owner's pair.
  Pair pair(std::size_t number, int owner) const;

  /// A buffer with the pair of an owner; with owner -1, nothing is transferred.
  struct End {
    std::size_t buffer;
    int owner;
  };
  static constexpr int nobody = -1;
  /// Starts to send `out` to the rank `distance` ranks on, and to receive `in` from the rank as far behind.
  void start(int distance, End out, End in);
  /// Waits for the oldest transfer.
  void wait();

 private:
  Message message(End end) const;

  const RingPlan& plan_;
  Communicator& communicator_;
  RingStatistics& statistics_;
  Shape first_, second_;
  std::vector<Tensor> buffers_;
  std::deque<std::unique_ptr<Transfer>> transfers_;  // destroyed before the buffers
};

/// The keys and values of all ranks, in the order in which one rank uses them.
class RingKeys {
 public:
  RingKeys(const RingPlan& plan, Exchange exchange, Communicator& communicator, RingStatistics& statistics,
           const Tensor& k, const Tensor& v);
  /// Waits for and returns the keys and values of a phase, step visited()[phase]. Phases come in order. The transfer
  /// for the next phase has started when this returns.
  RingSlots::Pair meet(std::size_t phase);

 private:
  const RingPlan& plan_;
  Exchange exchange_;
  int rank_;
  RingSlots::Pair own_;
  RingSlots slots_;
};

/// The gradients of keys and values, which accumulate across the ranks and return to their owner.
class RingGradients {
 public:
  /// Allocates gradients for keys and values like k and v; sums are in `dtype`.
  RingGradients(const RingPlan& plan, Exchange exchange, Communicator& communicator, RingStatistics& statistics,
                const Tensor& k, const Tensor& v, DType dtype);
  /// Returns the sums to which the gradients of the phase's keys are added; phase 0 writes them.
  RingSlots::Pair place(std::size_t phase);
  /// Sends the sums on.
  void send(std::size_t phase);
  /// Returns the sums of this rank's own keys, once every rank has sent its last message.
  RingSlots::Pair home();

 private:
  void receive(std::size_t phase);

  const RingPlan& plan_;
  Exchange exchange_;
  int rank_;
  RingSlots slots_;
};

/// The constant part of a call, for both passes and all ranks.
struct RingCall {
  std::shared_ptr<const RingPlan> plan;
  Exchange exchange = Exchange::ring;
  AttendCall attend;  // without its compiled pattern: every step has its own
  Tensor padding;     // padding_bias() of the whole sequence, or undefined

  /// Returns a rank's operands with the keys and values of a step.
  AttendOperands operands(const AttendOperands& own, int rank, int step, const Tensor& k, const Tensor& v) const;
};

/// Accumulates results from phase to phase in the compute dtype: in `out` itself if it has that dtype.
class RingForward {
 public:
  RingForward(RingCall call, AttendOperands x, std::shared_ptr<Communicator> communicator);
  RingForward(const RingForward&) = delete;
  RingForward& operator=(const RingForward&) = delete;

  int phases() const { return static_cast<int>(call_.plan->visited().size()); }
  /// Phases run once each, in order.
  void run(int phase);

  const Attended& result() const { return result_; }
  const RingStatistics& statistics() const { return statistics_; }

 private:
  void compute(int step, const Tensor& k, const Tensor& v, bool last);

  RingCall call_;
  AttendOperands x_;
  std::shared_ptr<Communicator> communicator_;
  int last_ = 0;  // the last step in which this rank computes
  Attended result_;
  Tensor carry_;
  RingStatistics statistics_;
  std::optional<RingKeys> keys_;
};

/// The gradients of keys and values travel with them, in the compute dtype, and return to their owner with a last
/// message.
class RingBackward {
 public:
  /// `forward` and its gradients are this rank's; either gradient may be undefined.
  RingBackward(RingCall call, AttendOperands x, const Attended& forward, const Tensor& grad_out, const Tensor& grad_lse,
               std::shared_ptr<Communicator> communicator);
  RingBackward(const RingBackward&) = delete;
  RingBackward& operator=(const RingBackward&) = delete;

  int phases() const { return static_cast<int>(call_.plan->visited().size()) + (travelling_ ? 1 : 0); }
  void run(int phase);

  struct Result {
    Tensor q, k, v;
    Tensor sinks;  // the share of this rank's queries, in the compute dtype; undefined without sinks
  };
  const Result& result() const { return result_; }
  const RingStatistics& statistics() const { return statistics_; }

 private:
  /// The operands of a step, for any number of kernels.
  struct StepOperands {
    Pattern::Compiled pattern;
    AttendOperands operands;
  };
  StepOperands meet(int step, const RingSlots::Pair& keys) const;
  void compute(const StepOperands& met, kernels::AttentionGradients into);

  RingCall call_;
  AttendOperands x_;
  std::shared_ptr<Communicator> communicator_;
  Tensor grad_out_, lse_, delta_;
  RingSlots::Pair home_;  // the first and, without messages, the final gradients of k and v
  Tensor dq_;             // the sum so far
  Result result_;
  RingStatistics statistics_;
  std::optional<RingKeys> keys_;
  std::optional<RingGradients> travelling_;
};

}  // namespace poolgrad::attention
