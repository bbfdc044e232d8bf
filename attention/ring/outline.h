// Predicts a ring without running it: its steps, the pairs of the busiest rank in each step, the messages and the
// memory of a rank. Uses the RingPlan of a real ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/pattern/pattern.h"
#include "attention/ring/plan.h"
#include "attention/ring/ring.h"

namespace poolgrad::attention {

/// A rank's q, k and v: (batch, tokens, heads or kv_heads, width or value_width).
struct RingShare {
  std::int64_t batch = 1, tokens = 0, heads = 1, kv_heads = 1, width = 0, value_width = 0;
  DType dtype = DType::f32;

  /// Bytes of a message with keys and values, and of one with their gradients.
  std::int64_t key_bytes() const;
  std::int64_t gradient_bytes() const;
};

/// The start of an exchange with the rank `distance` ranks on; 0 bytes if that rank sees none of the keys.
struct RingSend {
  int distance;
  std::int64_t bytes;
  friend bool operator==(const RingSend&, const RingSend&) = default;
};

/// Peak bytes of a rank's tensors, without the kernels' scratch.
struct RingMemory {
  std::int64_t forward = 0, backward = 0;  // including slots
  std::int64_t forward_slots = 0, backward_slots = 0;
};

/// Counts the pairs of every rank in every step: ranks * visited().size() times RingPlan::compile().
class RingCostModel {
 public:
  /// Throws ValueError if the ranks do not divide the tokens.
  RingCostModel(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t tokens);

  const RingPlan& plan() const { return plan_; }
  /// Returns the pairs of each pass for the busiest rank in step plan().visited()[phase].
  const std::vector<double>& most_pairs(std::size_t phase) const { return most_pairs_[phase]; }

  /// Returns the messages that `rank` starts in a forward or a backward pass, in order.
  std::vector<RingSend> sends(int rank, const RingShare& share, Exchange exchange, bool backward) const;
  /// Returns the memory of a rank that computes in every step.
  RingMemory memory(const RingShare& share, Exchange exchange) const;

 private:
  RingPlan plan_;
  std::vector<std::vector<double>> most_pairs_;  // by phase
};

}  // namespace poolgrad::attention
