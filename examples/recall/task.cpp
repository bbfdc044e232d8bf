#include "examples/recall/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "allocator/base/printable.h"
#include "allocator/base/random.h"
#include "allocator/error.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

namespace {

/// Numbers of one sequence.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t index) : seed_(random_bits(seed, index)) {}

  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_below(seed_, count_++, static_cast<std::uint64_t>(bound)));
  }
  /// 0 .. count - 1 in any order (Fisher-Yates).
  std::vector<std::int64_t> permutation(std::int64_t count) {
    std::vector<std::int64_t> result(static_cast<std::size_t>(count));
    std::iota(result.begin(), result.end(), 0);
    for (std::int64_t i = count; i > 1; --i)
      std::swap(result[static_cast<std::size_t>(i - 1)], result[static_cast<std::size_t>(below(i))]);
    return result;
  }

 private:
  std::uint64_t seed_, count_ = 0;
};

std::vector<std::int64_t> in_order(std::int64_t count) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

}  // namespace

RecallKind parse_recall_kind(const std::string& text) {
  if (text == "kv") return RecallKind::kv;
  if (text == "passkey") return RecallKind::passkey;
  throw ValueError("[recall] --task must be kv or passkey, but is " + printable(text));
}

void RecallTask::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[recall] " + reason); };
  check_at_least_one("recall", {{"distance", distance}, {"pairs", pairs}});
  if (values < 2) refuse(fmt::format("--values must be at least 2, but is {}", values));
  if (spacing < 2) refuse(fmt::format("--spacing must hold a key and a value, 2 tokens, but is {}", spacing));
  if (align < 1 || spacing % align != 0)
    refuse(fmt::format("--spacing must be a multiple of --align, but they are {} and {}", spacing, align));
  if (pairs > keys) refuse(fmt::format("--pairs {} need a key each, but --keys is {}", pairs, keys));
}

RecallSequence make_recall_sequence(const RecallTask& task, std::uint64_t seed, std::uint64_t index) {
  Draws draw(seed, index);
  const bool any_order = task.kind == RecallKind::kv;
  const std::vector<std::int64_t> keys = any_order ? draw.permutation(task.keys) : in_order(task.keys);
  const std::vector<std::int64_t> order = any_order ? draw.permutation(task.pairs) : in_order(task.pairs);
  const std::int64_t first_key = task.fillers(), first_value = first_key + task.keys;

  RecallSequence result;
  result.tokens.resize(static_cast<std::size_t>(task.length()));
  for (std::size_t i = 0; i < result.tokens.size(); ++i)
    result.tokens[i] = static_cast<std::int64_t>(i) % task.fillers();
  const auto put = [&](std::int64_t position, std::int64_t token) {
    result.tokens[static_cast<std::size_t>(position)] = token;
    return position;
  };

  const std::int64_t residue = draw.below(task.align);
  const std::int64_t places = (task.spacing - 2) / task.align + 1;  // of a pair within its slot
  std::vector<RecallSequence::Question> statements;
  for (std::int64_t p = 0; p < task.pairs; ++p) {
    const std::int64_t slot = residue + p * task.spacing + task.align * draw.below(places);
    put(slot, first_key + keys[static_cast<std::size_t>(p)]);
    const std::int64_t value = first_value + draw.below(task.values);
    statements.push_back({0, put(slot + 1, value), value});
  }
  const std::int64_t earliest = task.align + task.pairs * task.spacing + task.distance;
  const std::int64_t first_question = earliest + (residue + 1 + task.align - earliest % task.align) % task.align;
  const std::int64_t width = task.question_spacing();
  for (std::int64_t q = 0; q < task.pairs; ++q) {
    const auto asked = static_cast<std::size_t>(order[static_cast<std::size_t>(q)]);
    auto& question = result.questions.emplace_back(statements[asked]);
    question.position =
        put(first_question + q * width + task.align * draw.below(width / task.align), first_key + keys[asked]);
  }
  return result;
}

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
