// A ring on paper: which steps it visits, what its busiest rank computes in each and what a rank sends, for so many
// ranks that nobody could list their pairs. RingPlan says the same of a ring that is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/pattern/pattern.h"
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

/// What causes a step to be visited, or its work to change, lies at few places of a pattern: ends of bands, segments
/// and blocks, the first and the last positions. There every step is looked at with the functions of a plan, for the
/// ranks at those places; between them, one period of steps stands for all.
class RingOutline {
 public:
  /// Throws ValueError where the ranks do not divide the tokens, and for patterns of documents or listed blocks. Blocks
  /// that are drawn count by their probability.
  RingOutline(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t tokens);

  int ranks() const { return ranks_; }
  std::int64_t share() const { return tokens_ / ranks_; }
  /// RingPlan::visited(), passes(), computes().
  const std::vector<int>& visited() const { return visited_; }
  std::size_t passes() const { return passes_.size(); }
  bool computes(int rank, int step) const;
  /// Pairs of each pass that `rank` has in `step`.
  std::vector<double> pairs(int rank, int step) const;
  /// Those of the rank that has most, in the step visited()[phase].
  const std::vector<double>& most_pairs(std::size_t phase) const { return work_[most_[phase]]; }

  /// What `rank` starts in a forward or a backward, in its order.
  std::vector<RingSend> sends(int rank, const RingShare& share, Exchange exchange, bool backward) const;
  /// Of a rank that computes in every step.
  RingMemory memory(const RingShare& share, Exchange exchange) const;

 private:
  struct Pass {
    kernels::AttentionSchedule schedule;
    double share = 1;  // of its pairs that count
  };
  kernels::PositionMap shard(int rank) const { return shard_map(layout_, tokens_, rank, ranks_); }
  int owner(std::int64_t position) const;
  bool repeats_rows() const;
  std::vector<Pass> passes_at(int rank, int step, std::int64_t rows) const;
  std::vector<double> count(int rank, int step, std::int64_t rows) const;

  std::vector<int> corner_ranks() const;
  std::vector<std::int64_t> places_seen_from(std::int64_t position) const;
  std::vector<int> corner_steps(const std::vector<int>& ranks) const;
  std::int64_t period() const;
  std::vector<int> uneven_ranks() const;
  void look();

  Pattern pattern_;
  Layout layout_;
  int ranks_;
  std::int64_t tokens_;
  std::vector<Pass> passes_;
  std::vector<int> visited_;
  std::vector<std::size_t> most_;  // by phase, in work_
  std::vector<std::vector<double>> work_;
};

}  // namespace poolgrad::attention
