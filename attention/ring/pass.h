// The two passes over a ring, as one rank goes through them phase by phase, and what travels meanwhile: pairs of
// tensors (keys and values, or their gradients), each pair one message. What a phase waits for was started by the other
// ranks in phases before it, so that ranks may run on threads or take turns.
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

/// Buffers for pairs and the transfers between them; Category::comm, each as large as the largest message.
class RingSlots {
 public:
  /// Pairs are shaped like `first` and `second` but for their tokens (dimension 1), which are those of the rank that
  /// they belong to. References must outlive the slots.
  RingSlots(const RingPlan& plan, Communicator& communicator, RingStatistics& statistics, const Tensor& first,
            const Tensor& second, DType dtype, std::size_t buffers);

  struct Pair {
    Tensor first, second;
  };
  /// Buffer `number` as the owner's pair.
  Pair pair(std::size_t number, int owner) const;

  /// A buffer with the pair of an owner; nothing travels where `owner` is `nobody`.
  struct End {
    std::size_t buffer;
    int owner;
  };
  static constexpr int nobody = -1;
  /// Begins to send `out` to the rank `distance` ranks on, and to receive `in` from as far behind.
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
  std::deque<std::unique_ptr<Transfer>> transfers_;  // die before the buffers
};

/// The keys and values of all ranks, as one rank meets them step by step.
class RingKeys {
 public:
  RingKeys(const RingPlan& plan, Exchange exchange, Communicator& communicator, RingStatistics& statistics,
           const Tensor& k, const Tensor& v);
  /// Those of a phase, the step visited()[phase], once they are there; phases come in order. What comes next is under
  /// way when this returns.
  RingSlots::Pair meet(std::size_t phase);

 private:
  const RingPlan& plan_;
  Exchange exchange_;
  int rank_;
  RingSlots::Pair own_;
  RingSlots slots_;
};

/// Their gradients, which gather on all ranks and come home.
class RingGradients {
 public:
  /// For keys and values like k and v; sums are in `dtype`.
  RingGradients(const RingPlan& plan, Exchange exchange, Communicator& communicator, RingStatistics& statistics,
                const Tensor& k, const Tensor& v, DType dtype);
  /// What the gradients of the phase's keys are to be added to; in phase 0 they are to be written there.
  RingSlots::Pair place(std::size_t phase);
  /// Sends them on.
  void send(std::size_t phase);
  /// The sums of this rank's own keys, when every rank has sent its last.
  RingSlots::Pair home();

 private:
  void receive(std::size_t phase);

  const RingPlan& plan_;
  Exchange exchange_;
  int rank_;
  RingSlots slots_;
};

/// What stays the same from forward to backward and from rank to rank.
struct RingCall {
  std::shared_ptr<const RingPlan> plan;
  Exchange exchange = Exchange::ring;
  AttendCall attend;  // its compiled pattern is not used: every step has its own
  Tensor padding;     // padding_bias() of the whole sequence, or undefined

  /// A rank's operands with the keys and values that it meets in a step.
  AttendOperands operands(const AttendOperands& own, int rank, int step, const Tensor& k, const Tensor& v) const;
};

/// The results so far are carried from phase to phase in the compute dtype: in `out` itself where that is its dtype.
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

/// The gradients of keys and values travel like them, in the compute dtype, and are home after a last hop.
class RingBackward {
 public:
  /// `forward` and its gradients, of which either may be undefined, are this rank's.
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
  /// What a step computes with, however many kernels it takes.
  struct Met {
    Pattern::Compiled pattern;
    AttendOperands operands;
  };
  Met meet(int step, const RingSlots::Pair& keys) const;
  void compute(const Met& met, kernels::AttentionGradients into);

  RingCall call_;
  AttendOperands x_;
  std::shared_ptr<Communicator> communicator_;
  Tensor grad_out_, lse_, delta_;
  RingSlots::Pair home_;  // where the gradients of k and v begin, and end where nothing travels
  Tensor dq_;             // the sum so far
  Result result_;
  RingStatistics statistics_;
  std::optional<RingKeys> keys_;
  std::optional<RingGradients> travelling_;
};

}  // namespace poolgrad::attention
