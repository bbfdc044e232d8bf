// Who owns what in a ring, and who has to see whose keys. Every rank makes the same plan from the same pattern and
// lengths, without asking the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/pattern/pattern.h"
#include "attention/ring/ring.h"

namespace poolgrad::attention {

/// Whether the rows of a pass have something to compute with its keys: never no where a pair counts.
bool computes_anything(const kernels::AttentionSchedule& pass);

/// In step s of a ring of R ranks, rank r meets the keys of rank (r - s) mod R. Queries lie at positions q_offset, ...;
/// keys at 0, ....
class RingPlan {
 public:
  RingPlan(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
           std::int64_t keys, std::int64_t q_offset);
  /// The same, made once: the last few plans are kept for calls that are alike. Any thread.
  static std::shared_ptr<const RingPlan> of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads,
                                            std::int64_t queries, std::int64_t keys, std::int64_t q_offset);

  int ranks() const { return ranks_; }
  kernels::PositionMap queries_of(int rank) const { return shard_map(layout_, queries_, rank, ranks_, q_offset_); }
  kernels::PositionMap keys_of(int rank) const { return shard_map(layout_, keys_, rank, ranks_); }
  /// Keys of the rank that has most.
  std::int64_t most_keys() const;

  /// What `whole`, whose dimension `dim` is the keys, has for those that `rank` meets in `step`.
  Tensor keys_part(const Tensor& whole, int rank, int step, int dim) const {
    return take_shard(whole, layout_, owner(rank, step), ranks_, dim);
  }

  /// The steps in which keys are anywhere at all, ascending, beginning with 0: those in which some rank computes. Keys
  /// skip the other steps by travelling several ranks at once.
  const std::vector<int>& visited() const { return visited_; }
  int owner(int rank, int step) const { return (rank + ranks_ - step % ranks_) % ranks_; }
  /// What `rank` computes in `step`.
  Pattern::Compiled compile(int rank, int step) const;
  /// How many passes that takes, whatever the rank and the step.
  std::size_t passes() const { return any_.passes.size(); }
  /// Whether that is anything; only step 0 is computed in any case. Looked at when it is first asked: a rank asks of
  /// its own steps and those of its neighbours, not of all pairs. Any thread.
  bool computes(int rank, int step) const;

  /// The plan that the constructor makes of these.
  bool is_of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
             std::int64_t keys, std::int64_t q_offset) const;

 private:
  /// Adds the steps in which `rank` computes to visited_, but those that have been found.
  void find_steps(int rank, std::vector<bool>& found);

  Pattern pattern_;
  Layout layout_;
  int ranks_;
  std::int64_t heads_, queries_, keys_, q_offset_;
  Pattern::Compiled any_;                                 // of a rank and a step: others differ in positions alone
  mutable std::vector<std::atomic<std::uint8_t>> known_;  // [rank * ranks + step]
  std::vector<int> visited_;
};

}  // namespace poolgrad::attention
