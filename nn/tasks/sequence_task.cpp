#include "nn/tasks/sequence_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/base/random.h"
#include "allocator/error.h"

namespace poolgrad::nn {

namespace {

std::vector<std::int64_t> in_order(std::int64_t count) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

}  // namespace

/// Numbers of one sequence.
class TaskDraws {
 public:
  TaskDraws(std::uint64_t seed, std::uint64_t index) : seed_(random_bits(seed, index)) {}

  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_below(seed_, count_++, static_cast<std::uint64_t>(bound)));
  }
  /// In [0, 1).
  double unit() { return random_unit(seed_, count_++); }
  /// 0 .. count - 1 in any order (Fisher-Yates).
  std::vector<std::int64_t> permutation(std::int64_t count) {
    std::vector<std::int64_t> result = in_order(count);
    for (std::int64_t i = count; i > 1; --i)
      std::swap(result[static_cast<std::size_t>(i - 1)], result[static_cast<std::size_t>(below(i))]);
    return result;
  }
  /// `count` different numbers below `bound`.
  std::vector<std::int64_t> distinct(std::int64_t count, std::int64_t bound) {
    std::vector<std::int64_t> all = in_order(bound);
    for (std::int64_t i = 0; i < count; ++i)
      std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(i + below(bound - i))]);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }

 private:
  std::uint64_t seed_, count_ = 0;
};

namespace {

std::int64_t put(TaskSequence& sequence, std::int64_t position, std::int64_t token) {
  sequence.tokens[static_cast<std::size_t>(position)] = token;
  return position;
}

std::int64_t first_value(const SequenceTask& task) { return task.kind->fillers + task.keys; }

std::int64_t span_of_slots(const SequenceTask& task) {
  return task.pairs * (task.spacing + task.question_spacing()) + 2 * task.align;
}

std::int64_t span_of_mqar(const SequenceTask& task) { return 4 * task.pairs; }
std::int64_t span_of_copy(const SequenceTask& task) { return 2 * task.pairs + task.spacing - 1; }

/// States pairs in slots, and asks for them behind the fillers. `value_of(p, place)` puts the value of pair p, or its
/// reference to an earlier pair, at a place, and returns the question that it answers.
template <class F>
void make_in_slots(const SequenceTask& task, TaskDraws& draw, TaskSequence& result,
                   const std::vector<std::int64_t>& keys, const std::vector<std::int64_t>& order, const F& value_of) {
  const auto key = [&](std::size_t p) { return task.kind->fillers + keys[p]; };
  const std::int64_t residue = draw.below(task.align);
  const std::int64_t places = (task.spacing - 2) / task.align + 1;  // of a pair within its slot
  std::vector<TaskSequence::Question> statements;
  for (std::size_t p = 0; p < order.size(); ++p) {
    const std::int64_t slot = residue + static_cast<std::int64_t>(p) * task.spacing + task.align * draw.below(places);
    put(result, slot, key(p));
    statements.push_back(value_of(p, slot + 1));
  }
  const std::int64_t earliest = task.align + task.pairs * task.spacing + task.distance;
  const std::int64_t first_question = earliest + (residue + 1 + task.align - earliest % task.align) % task.align;
  const std::int64_t width = task.question_spacing();
  for (std::int64_t q = 0; q < task.pairs; ++q) {
    const auto asked = static_cast<std::size_t>(order[static_cast<std::size_t>(q)]);
    auto& question = result.questions.emplace_back(statements[asked]);
    question.position =
        put(result, first_question + q * width + task.align * draw.below(width / task.align), key(asked));
  }
}

/// With the order of keys and questions drawn, or as it is.
template <bool any_order>
void make_recall(const SequenceTask& task, TaskDraws& draw, TaskSequence& result) {
  const std::vector<std::int64_t> keys = any_order ? draw.permutation(task.keys) : in_order(task.keys);
  const std::vector<std::int64_t> order = any_order ? draw.permutation(task.pairs) : in_order(task.pairs);
  make_in_slots(task, draw, result, keys, order, [&](std::size_t, std::int64_t place) {
    const std::int64_t value = first_value(task) + draw.below(task.values);
    return TaskSequence::Question{0, put(result, place, value), value};
  });
}

void make_induction(const SequenceTask& task, TaskDraws& draw, TaskSequence& result) {
  for (std::int64_t& token : result.tokens) token = first_value(task) + draw.below(task.values);
  make_recall<true>(task, draw, result);
}

/// Variables in generations: those of the first have values, each other one is assigned one of the generation before.
void make_variables(const SequenceTask& task, TaskDraws& draw, TaskSequence& result) {
  const std::vector<std::int64_t> keys = draw.permutation(task.keys), order = draw.permutation(task.pairs);
  const std::int64_t generation = (task.pairs + task.hops) / (task.hops + 1);
  std::vector<TaskSequence::Question> known;  // the value of each variable so far
  make_in_slots(task, draw, result, keys, order, [&](std::size_t p, std::int64_t place) {
    const auto number = static_cast<std::int64_t>(p);
    if (number < generation) {
      const std::int64_t value = first_value(task) + draw.below(task.values);
      known.push_back({0, put(result, place, value), value});
    } else {
      const auto source = static_cast<std::size_t>((number / generation - 1) * generation + draw.below(generation));
      put(result, place, task.kind->fillers + keys[source]);
      known.push_back(TaskSequence::Question(known[source]));
    }
    return known.back();
  });
}

/// Questions at even places of the part behind the pairs, with probabilities that fall with the place x as x^(a - 1).
void make_mqar(const SequenceTask& task, TaskDraws& draw, TaskSequence& result) {
  constexpr double a = 0.01;
  for (std::int64_t& token : result.tokens) token = draw.below(task.vocabulary());
  const std::int64_t most = task.drawn > 0 ? task.drawn : std::max(task.keys, task.values);
  const std::vector<std::int64_t> keys = draw.distinct(task.pairs, std::min(task.keys, most));
  const std::vector<std::int64_t> values = draw.distinct(task.pairs, std::min(task.values, most));
  std::vector<std::pair<double, std::int64_t>> places;  // the earliest of exponential clocks: drawn without repetition
  const std::int64_t behind = 2 * task.pairs;
  for (std::int64_t place = 0; place < (task.length() - behind) / 2; ++place)
    places.emplace_back(-std::log1p(-draw.unit()) * std::pow(static_cast<double>(place + 1), 1 - a), place);
  std::ranges::sort(places);
  for (std::int64_t p = 0; p < task.pairs; ++p) {
    const auto i = static_cast<std::size_t>(p);
    const std::int64_t key = task.kind->fillers + keys[i], value = first_value(task) + values[i];
    put(result, 2 * p, key);
    put(result, 2 * p + 1, value);
    result.questions.push_back({put(result, behind + 2 * places[i].second, key), 2 * p + 1, value});
  }
}

void make_copy(const SequenceTask& task, TaskDraws& draw, TaskSequence& result) {
  const std::int64_t begin = draw.below(task.spacing), marker = task.length() - task.pairs;
  put(result, marker, task.kind->fillers);
  for (std::int64_t p = 0; p < task.pairs; ++p) {
    const std::int64_t value = first_value(task) + draw.below(task.values);
    result.questions.push_back({marker + p, put(result, begin + p, value), value});
    if (p + 1 < task.pairs) put(result, marker + p + 1, value);
  }
}

}  // namespace

const std::vector<TaskKind>& task_kinds() {
  static const std::vector<TaskKind> all{
      {"recall", "pair", 16, 16, 16, 1, true, false, span_of_slots, make_recall<true>},
      {"passkey", "digit", 8, 0, 10, 8, true, false, span_of_slots, make_recall<false>},
      {"mqar", "pair", 64, 4096, 4096, 0, true, true, span_of_mqar, make_mqar},
      {"copy", "symbol", 8, 1, 16, 1, false, false, span_of_copy, make_copy},
      {"induction", "pair", 1, 0, 16, 1, true, false, span_of_slots, make_induction},
      {"variables", "variable", 6, 16, 16, 1, true, false, span_of_slots, make_variables}};
  return all;
}

const TaskKind& parse_task_kind(std::string_view name) {
  const auto found = std::ranges::find(task_kinds(), name, &TaskKind::name);
  if (found != task_kinds().end()) return *found;
  throw ValueError(fmt::format("[recall] --task must be one of {}, but is {}",
                               fmt::join(task_kinds() | std::views::transform(&TaskKind::name), ", "),
                               printable(std::string(name))));
}

void SequenceTask::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[recall] " + reason); };
  for (const auto& [name, value] : {std::pair{"distance", distance}, {"pairs", pairs}, {"hops", hops}})
    if (value < 1) refuse(fmt::format("--{} must be at least 1, but is {}", name, value));
  if (values < 2) refuse(fmt::format("--values must be at least 2, but is {}", values));
  if (spacing < 2) refuse(fmt::format("--spacing must hold a key and a value, 2 tokens, but is {}", spacing));
  if (align < 1 || spacing % align != 0)
    refuse(fmt::format("--spacing must be a multiple of --align, but they are {} and {}", spacing, align));
  if (pairs > keys && kind->own_keys) refuse(fmt::format("--pairs {} need a key each, but --keys is {}", pairs, keys));
  if (pairs > values && kind->own_values)
    refuse(fmt::format("--pairs {} need a value each, but --values is {}", pairs, values));
}

TaskSequence SequenceTask::make(std::uint64_t seed, std::uint64_t index) const {
  TaskDraws draw(seed, index);
  TaskSequence result;
  result.tokens.resize(static_cast<std::size_t>(length()));
  if (kind->fillers > 0)
    for (std::size_t i = 0; i < result.tokens.size(); ++i)
      result.tokens[i] = static_cast<std::int64_t>(i) % kind->fillers;
  kind->make(*this, draw, result);
  return result;
}

std::vector<SequenceTask> task_levels(const SequenceTask& goal) {
  SequenceTask task = goal;
  task.pairs = std::min<std::int64_t>(4, goal.pairs);
  task.distance = std::min<std::int64_t>(8, goal.distance);
  task.spacing = std::max<std::int64_t>(2, task.align);
  const auto few = [&] { return goal.kind->own_values ? 4 * task.pairs : 0; };
  task.drawn = few();
  std::vector<SequenceTask> levels{task};
  task.spacing = goal.spacing;
  do {
    task.pairs = std::min(2 * task.pairs, goal.pairs);
    task.drawn = few();
    levels.push_back(task);
  } while (task.pairs < goal.pairs);
  levels.back().drawn = task.drawn = goal.drawn;
  while (task.distance < goal.distance) {
    task.distance = std::min(2 * task.distance, goal.distance);
    levels.push_back(task);
  }
  return levels;
}

const SequenceTask& TaskCurriculum::task(std::int64_t step) const {
  if (!repeats(step)) return current();
  return levels_[random_below(seed_, static_cast<std::uint64_t>(step), level_)];
}

void TaskCurriculum::observe(std::int64_t step, double accuracy, double used) {
  if (repeats(step)) return;
  accuracy_ += 0.1 * (accuracy - accuracy_);
  if (level_ + 1 < levels_.size() && (accuracy_ > 0.9 || used >= latest_start(level_ + 1))) {
    ++level_;
    accuracy_ = 0.0;
  }
}

double TaskCurriculum::latest_start(std::size_t level) const {
  const auto others = static_cast<double>(std::max<std::size_t>(levels_.size() - 2, 1));
  return 0.5 + 0.3 * static_cast<double>(level - 1) / others;
}

}  // namespace poolgrad::nn
