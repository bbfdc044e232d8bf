#include "examples/recall/recall_curriculum.h"

#include <algorithm>

#include "examples/support/random.h"

namespace poolgrad::examples {

std::vector<RecallTask> recall_levels(const RecallTask& goal) {
  RecallTask task = goal;
  task.pairs = std::min<std::int64_t>(4, goal.pairs);
  task.distance = std::min<std::int64_t>(8, goal.distance);
  task.spacing = std::max<std::int64_t>(2, task.align);
  std::vector<RecallTask> levels{task};
  task.spacing = goal.spacing;
  do {
    task.pairs = std::min(2 * task.pairs, goal.pairs);
    levels.push_back(task);
  } while (task.pairs < goal.pairs);
  while (task.distance < goal.distance) {
    task.distance = std::min(2 * task.distance, goal.distance);
    levels.push_back(task);
  }
  return levels;
}

const RecallTask& RecallCurriculum::task(std::int64_t step) const {
  if (!repeats(step)) return current();
  return levels_[random_below(seed_, static_cast<std::uint64_t>(step), level_)];
}

void RecallCurriculum::observe(std::int64_t step, double accuracy, double used) {
  if (repeats(step)) return;
  accuracy_ += 0.1 * (accuracy - accuracy_);
  if (level_ + 1 < levels_.size() && (accuracy_ > 0.9 || used >= latest_start(level_ + 1))) {
    ++level_;
    accuracy_ = 0.0;
  }
}

double RecallCurriculum::latest_start(std::size_t level) const {
  const auto others = static_cast<double>(std::max<std::size_t>(levels_.size() - 2, 1));
  return 0.5 + 0.3 * static_cast<double>(level - 1) / others;
}

}  // namespace poolgrad::examples
