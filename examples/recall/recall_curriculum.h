// Short and few before far and many: what a recall model is trained on, level by level.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/recall/recall_task.h"

namespace poolgrad::examples {

/// From four pairs side by side and a few tokens away to `goal`: pairs double first, then distances.
std::vector<RecallTask> recall_levels(const RecallTask& goal);

/// A level ends when nine of ten answers are right, or when its time is over: half of the budget for the first, in
/// which the mechanism is found; equal parts of the next three tenths for the others; at least a fifth for the last,
/// whatever a model can do. Every other step repeats an earlier level, drawn by seed and step, so that nothing is
/// forgotten.
class RecallCurriculum {
 public:
  explicit RecallCurriculum(const RecallTask& goal, std::uint64_t seed) : levels_(recall_levels(goal)), seed_(seed) {}

  /// What the step trains on; steps count from 1.
  const RecallTask& task(std::int64_t step) const;
  /// The share of right answers in that step, and the part of the budget that is used up, in [0, 1].
  void observe(std::int64_t step, double accuracy, double used);

  std::size_t level() const { return level_; }
  std::size_t levels() const { return levels_.size(); }
  const RecallTask& current() const { return levels_[level_]; }
  /// Running mean over steps of the present level.
  double accuracy() const { return accuracy_; }
  /// 99 of 100 answers right at the last level.
  bool done() const { return level_ + 1 == levels_.size() && accuracy_ > 0.99; }

 private:
  bool repeats(std::int64_t step) const { return level_ > 0 && step % 2 == 0; }
  double latest_start(std::size_t level) const;

  std::vector<RecallTask> levels_;
  std::uint64_t seed_;
  std::size_t level_ = 0;
  double accuracy_ = 0.0;
};

}  // namespace poolgrad::examples
