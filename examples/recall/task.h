// Associative recall: values are stated with keys, and asked for by key a long way later; and the way from short and
// few to far and many.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poolgrad::examples {

/// kv: keys in any order, asked for in another one. passkey: a number in a repeating sentence, its places the keys,
/// read out at the end.
enum class RecallKind { kv, passkey };

/// Throws ValueError naming both.
RecallKind parse_recall_kind(const std::string& text);

/// What a sequence is made of:
///
///   .k7v3. . . .k2v9. . . . | . . . . . . . . | k2. k7. . k4
///   statements, each in a    fillers            questions: the model is to predict the value where it reads the key
///   slot of `spacing` tokens
///
/// Values, order and place within a slot are drawn for each sequence: nothing but the sequence itself tells an answer,
/// and neither does the distance from a question back to its statement, which varies.
struct RecallTask {
  RecallKind kind = RecallKind::kv;
  std::int64_t distance = 4096;  // from a value to the question for it: in [distance, distance + span())
  std::int64_t pairs = 16;       // stated and asked for in each sequence
  std::int64_t keys = 16;        // there are; a pair has a key of its own
  std::int64_t values = 16;
  std::int64_t spacing = 8;  // a multiple of align
  /// Values and questions of a sequence lie at positions that agree mod `align`, at any residue: a dilated branch joins
  /// only such positions. 1: anywhere; information must then hop to a neighbour first.
  std::int64_t align = 4;

  /// Tokens are fillers, then keys, then values.
  std::int64_t fillers() const { return kind == RecallKind::passkey ? 8 : 1; }
  std::int64_t vocabulary() const { return fillers() + keys + values; }
  std::int64_t question_spacing() const { return align == 1 ? 2 : align; }
  std::int64_t span() const { return pairs * (spacing + question_spacing()) + 2 * align; }
  std::int64_t length() const { return distance + span(); }
  /// Right answers of who knows nothing of the statements.
  double chance() const { return 1.0 / static_cast<double>(values); }

  /// Throws ValueError, one sentence.
  void check() const;
};

struct RecallSequence {
  struct Question {
    std::int64_t position;        // of the question's key
    std::int64_t value_position;  // of the value that is asked for
    std::int64_t answer;          // its token
  };
  std::vector<std::int64_t> tokens;
  std::vector<Question> questions;
};

/// The index-th sequence of a seed; the same everywhere.
RecallSequence make_recall_sequence(const RecallTask& task, std::uint64_t seed, std::uint64_t index);

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
