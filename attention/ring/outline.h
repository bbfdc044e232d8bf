// A ring on paper: its steps, the pairs of its busiest rank in each, the messages and the memory of a rank. All of it
// follows from the RingPlan that a real ring runs.
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

  /// Of a message with keys and values, and of one with their gradients.
  std::int64_t key_bytes() const;
  std::int64_t gradient_bytes() const;
};

/// Starts an exchange with the rank `distance` ranks on; no bytes where that one sees none of them.
struct RingSend {
  int distance;
  std::int64_t bytes;
  friend bool operator==(const RingSend&, const RingSend&) = default;
};

/// Bytes of a rank's tensors at once, but for the kernels' scratch.
struct RingMemory {
  std::int64_t forward = 0, backward = 0;  // slots among them
  std::int64_t forward_slots = 0, backward_slots = 0;
};

/// Counts the pairs of every rank in every step: ranks * visited().size() times RingPlan::compile().
class RingOutline {
 public:
  /// Throws ValueError where the ranks do not divide the tokens.
  RingOutline(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t tokens);

  const RingPlan& plan() const { return plan_; }
  /// Pairs of each pass that the rank with most has in the step plan().visited()[phase].
  const std::vector<double>& most_pairs(std::size_t phase) const { return most_pairs_[phase]; }

  /// What `rank` starts in a forward or a backward, in its order.
  std::vector<RingSend> sends(int rank, const RingShare& share, Exchange exchange, bool backward) const;
  /// Of a rank that computes in every step.
  RingMemory memory(const RingShare& share, Exchange exchange) const;

 private:
  RingPlan plan_;
  std::vector<std::vector<double>> most_pairs_;  // by phase
};

}  // namespace poolgrad::attention
