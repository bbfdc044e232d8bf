// What travels in a ring: pairs of tensors (keys and values, or their gradients), each pair one message.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "attention/ring/communicator.h"
#include "attention/ring/plan.h"
#include "attention/ring/ring.h"
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

}  // namespace poolgrad::attention
