// Synthetic tasks of recall: a sequence states facts and asks for them much later. All are generators of one interface.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::nn {

struct TaskSequence {
  struct Question {
    std::int64_t position;        // of the question's token, at which the model predicts the answer
    std::int64_t value_position;  // of the requested value
    std::int64_t answer;          // its token
  };
  std::vector<std::int64_t> tokens;
  std::vector<Question> questions;
};

struct SequenceTask;
class TaskDraws;

/// A kind of task: its usual size and its generator.
///
/// recall: values with keys, asked for by key in another order (associative recall; Ba et al. 2016). passkey: a number
/// in a repeated sentence, with the places of its digits as keys, asked for in order (Mohtashami & Jaggi 2023). mqar:
/// pairs at the start and questions between random tokens, most of them soon, by a power law (multi-query associative
/// recall; Arora et al. 2023, "Zoology"). copy: symbols to repeat after a marker, each shown before the next is asked
/// for (copying memory; Hochreiter & Schmidhuber 1997, Arjovsky et al. 2016). induction: as recall, among random values
/// in place of fillers (Olsson et al. 2022; Fu et al. 2023). variables: names assigned to values or to earlier names
/// (variable tracking; Hsieh et al. 2024, "RULER").
struct TaskKind {
  std::string_view name, unit;       // "mqar"; "pair", the unit of SequenceTask::pairs
  std::int64_t pairs, keys, values;  // the usual numbers; keys 0: as many as pairs
  std::int64_t fillers;              // different tokens that state nothing
  bool own_keys, own_values;         // each pair has a key, or a value, of its own
  std::int64_t (*span)(const SequenceTask&);
  void (*make)(const SequenceTask&, TaskDraws&, TaskSequence&);
};
/// All kinds; recall is first.
const std::vector<TaskKind>& task_kinds();
/// Throws ValueError that names all kinds.
const TaskKind& parse_task_kind(std::string_view name);

/// A task of a size. The layout of recall, passkey, induction and variables:
///
///   .k7v3. . . .k2v9. . . . | . . . . . . . . | k2. k7. . k4
///   statements, each in a    fillers            questions: at each key, the model predicts its value
///   slot of `spacing` tokens
///
/// Values, order and place within a slot are random in each sequence, so only the sequence itself contains the answers.
/// The distance from a question back to its statement varies too.
struct SequenceTask {
  const TaskKind* kind = &task_kinds().front();
  /// From a value to its question: in [distance, distance + span()). mqar: tokens between the questions.
  std::int64_t distance = 4096;
  std::int64_t pairs = 16;  // stated and queried in each sequence; digits, symbols or variables
  std::int64_t keys = 16;   // available keys; each pair has its own
  std::int64_t values = 16;
  std::int64_t spacing = 8;  // a multiple of align
  /// Values and questions of a sequence lie at positions congruent mod `align`, at any residue, because a dilated
  /// branch joins only such positions. 1: anywhere; information must then first hop to a neighbor. Not of mqar and
  /// copy.
  std::int64_t align = 4;
  std::int64_t drawn = 0;  // mqar: only so many keys and values occur, at early levels; 0: all
  std::int64_t hops = 2;   // variables: most references from a variable to its value

  /// Tokens are fillers, then keys, then values.
  std::int64_t vocabulary() const { return kind->fillers + keys + values; }
  std::int64_t question_spacing() const { return align == 1 ? 2 : align; }
  std::int64_t span() const { return kind->span(*this); }
  std::int64_t length() const { return distance + span(); }
  /// The accuracy of random guesses.
  double chance() const { return 1.0 / static_cast<double>(values); }

  /// Throws ValueError, one sentence.
  void check() const;
  /// The index-th sequence of a seed; the same on every machine.
  TaskSequence make(std::uint64_t seed, std::uint64_t index) const;
};

/// From four pairs at a distance of a few tokens to `goal`: doubles pairs first, then distances. Of the thousands of
/// keys of mqar, four times as many as pairs occur until all pairs do.
std::vector<SequenceTask> task_levels(const SequenceTask& goal);

/// A level ends at 90 % accuracy, or when its share of the budget is used: half for the first, in which the mechanism
/// is learned; equal parts of the next three tenths for the others; at least a fifth for the last. Every other step
/// repeats an earlier level, drawn by seed and step, against forgetting.
class TaskCurriculum {
 public:
  explicit TaskCurriculum(const SequenceTask& goal, std::uint64_t seed) : levels_(task_levels(goal)), seed_(seed) {}

  /// The task of a step; steps count from 1.
  const SequenceTask& task(std::int64_t step) const;
  /// Records the accuracy of that step, and the used fraction of the budget in [0, 1].
  void observe(std::int64_t step, double accuracy, double used);

  std::size_t level() const { return level_; }
  std::size_t levels() const { return levels_.size(); }
  const SequenceTask& current() const { return levels_[level_]; }
  /// Running mean over steps of the current level.
  double accuracy() const { return accuracy_; }
  /// Accuracy above 99 % at the last level.
  bool done() const { return level_ + 1 == levels_.size() && accuracy_ > 0.99; }

 private:
  bool repeats(std::int64_t step) const { return level_ > 0 && step % 2 == 0; }
  double latest_start(std::size_t level) const;

  std::vector<SequenceTask> levels_;
  std::uint64_t seed_;
  std::size_t level_ = 0;
  double accuracy_ = 0.0;
};

}  // namespace poolgrad::nn
