// What travels round a ring: pairs of tensors (keys and values, or their gradients) in two buffers, each pair one
// message.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "attention/communicator.h"
#include "attention/ring.h"
#include "attention/ring_plan.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// While one buffer is read and sent, the other is received into. They are Category::comm, each as large as the
/// largest message.
class RingSlots {
 public:
  /// For messages of two tensors shaped like `first` and `second` but for their tokens (dimension 1), which are those
  /// of the rank that they belong to.
  RingSlots(const RingPlan& plan, const Tensor& first, const Tensor& second, DType dtype);

  struct Pair {
    Tensor first, second;
  };
  /// Buffer `number` mod 2 as the owner's pair.
  Pair pair(int number, int owner) const;
  /// Sends that buffer with the owner's pair `distance` ranks on, and receives into the other buffer what comes from as
  /// far behind. wait() must follow before the next start().
  void start(Communicator& communicator, int number, int owner, int distance, RingStatistics& statistics);
  void wait();

 private:
  Message message(int number, int owner) const;
  const Tensor& buffer(int number) const { return buffers_[static_cast<std::size_t>(number % 2)]; }

  const RingPlan& plan_;
  Shape first_, second_;
  std::array<Tensor, 2> buffers_;
  std::unique_ptr<Transfer> transfer_;  // dies before its buffers
};

}  // namespace poolgrad::attention
