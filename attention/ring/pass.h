// The two passes over a ring, as one rank goes through them phase by phase. What a phase waits for was started by the
// other ranks in phases before it, so that ranks may run on threads or take turns.
#pragma once

#include <memory>
#include <optional>

#include "attention/attend_call.h"
#include "attention/ring/plan.h"
#include "attention/ring/ring.h"
#include "attention/ring/slots.h"
#include "kernels/attention.h"

namespace poolgrad::attention {

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
  void compute(int step, const RingSlots::Pair& keys, kernels::AttentionGradients into);

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
