// The ownership of positions in a ring, and the steps in which a rank needs the keys of another. Every rank makes the
// same plan from the same pattern and lengths, without communication.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/pattern/pattern.h"
#include "attention/ring/ring.h"

namespace poolgrad::attention {

/// Returns whether the rows of a pass have something to compute with its keys; never false if a pair counts.
bool computes_anything(const kernels::AttentionSchedule& pass);

/// In step s of a ring of R ranks, rank r meets the keys of rank (r - s) mod R. Queries lie at positions q_offset, ...;
/// keys at 0, ....
class RingPlan {
 public:
  RingPlan(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
           std::int64_t keys, std::int64_t q_offset);
  /// Returns the same plan from a cache of the last few. Any thread may call it.
  static std::shared_ptr<const RingPlan> of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads,
                                            std::int64_t queries, std::int64_t keys, std::int64_t q_offset);

  int ranks() const { return ranks_; }
  kernels::PositionMap queries_of(int rank) const { return shard_map(layout_, queries_, rank, ranks_, q_offset_); }
  kernels::PositionMap keys_of(int rank) const { return shard_map(layout_, keys_, rank, ranks_); }
  /// Returns the keys of the rank that has most.
  std::int64_t most_keys() const;

  /// Returns the part of `whole` for the keys that `rank` meets in `step`; dimension `dim` of `whole` is the keys.
  Tensor keys_part(const Tensor& whole, int rank, int step, int dim) const {
    return take_shard(whole, layout_, owner(rank, step), ranks_, dim);
  }

  /// The steps in which some rank computes, ascending, beginning with 0. Keys skip the other steps by moving several
  /// ranks at once.
  const std::vector<int>& visited() const { return visited_; }
  int owner(int rank, int step) const { return (rank + ranks_ - step % ranks_) % ranks_; }
  /// Compiles the pattern for `rank` in `step`.
  Pattern::Compiled compile(int rank, int step) const;
  /// Returns the number of passes, which is the same for every rank and step.
  std::size_t passes() const { return any_.passes.size(); }
  /// Returns whether `rank` computes in `step`; always true for step 0. Computed on first use, because a rank needs
  /// only its own steps and those of its neighbors. Any thread may call it.
  bool computes(int rank, int step) const;

  /// Returns whether the constructor would make this plan from these arguments.
  bool is_of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
             std::int64_t keys, std::int64_t q_offset) const;

 private:
  /// Adds the steps in which `rank` computes to visited_, except those in `found`.
  void find_steps(int rank, std::vector<bool>& found);

  Pattern pattern_;
  Layout layout_;
  int ranks_;
  std::int64_t heads_, queries_, keys_, q_offset_;
  Pattern::Compiled any_;                                 // of any rank and step: others differ in positions only
  mutable std::vector<std::atomic<std::uint8_t>> known_;  // [rank * ranks + step]
  std::vector<int> visited_;
};

}  // namespace poolgrad::attention
