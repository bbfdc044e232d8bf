// Associative recall: a sequence states values with keys, and asks for them by key much later. A curriculum goes from
// few pairs at short distances to many at long ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poolgrad::examples {

/// kv: keys in random order, queried in another order. passkey: a number in a repeated sentence, with its digit
/// positions as keys, queried at the end.
enum class RecallKind { kv, passkey };

/// Throws ValueError naming both.
RecallKind parse_recall_kind(const std::string& text);

/// The layout of a sequence:
///
///   .k7v3. . . .k2v9. . . . | . . . . . . . . | k2. k7. . k4
///   statements, each in a    fillers            questions: at each key, the model predicts its value
///   slot of `spacing` tokens
///
/// Values, order and place within a slot are random in each sequence, so only the sequence itself contains the answers.
/// The distance from a question back to its statement varies too.
struct RecallTask {
  RecallKind kind = RecallKind::kv;
  std::int64_t distance = 4096;  // from a value to its question: in [distance, distance + span())
  std::int64_t pairs = 16;       // stated and queried in each sequence
  std::int64_t keys = 16;        // available keys; each pair has its own
  std::int64_t values = 16;
  std::int64_t spacing = 8;  // a multiple of align
  /// Values and questions of a sequence lie at positions congruent mod `align`, at any residue, because a dilated
  /// branch joins only such positions. 1: anywhere; information must then first hop to a neighbor.
  std::int64_t align = 4;

  /// Tokens are fillers, then keys, then values.
  std::int64_t fillers() const { return kind == RecallKind::passkey ? 8 : 1; }
  std::int64_t vocabulary() const { return fillers() + keys + values; }
  std::int64_t question_spacing() const { return align == 1 ? 2 : align; }
  std::int64_t span() const { return pairs * (spacing + question_spacing()) + 2 * align; }
  std::int64_t length() const { return distance + span(); }
  /// The accuracy of random guesses.
  double chance() const { return 1.0 / static_cast<double>(values); }

  /// Throws ValueError, one sentence.
  void check() const;
};

struct RecallSequence {
  struct Question {
    std::int64_t position;        // of the question's key
    std::int64_t value_position;  // of the requested value
    std::int64_t answer;          // its token
  };
  std::vector<std::int64_t> tokens;
  std::vector<Question> questions;
};

/// The index-th sequence of a seed; the same on every machine.
RecallSequence make_recall_sequence(const RecallTask& task, std::uint64_t seed, std::uint64_t index);

/// From four pairs at a distance of a few tokens to `goal`: doubles pairs first, then distances.
std::vector<RecallTask> recall_levels(const RecallTask& goal);

/// A level ends at 90 % accuracy, or when its share of the budget is used: half for the first, in which the mechanism
/// is learned; equal parts of the next three tenths for the others; at least a fifth for the last. Every other step
/// repeats an earlier level, drawn by seed and step, against forgetting.
class RecallCurriculum {
 public:
  explicit RecallCurriculum(const RecallTask& goal, std::uint64_t seed) : levels_(recall_levels(goal)), seed_(seed) {}

  /// The task of a step; steps count from 1.
  const RecallTask& task(std::int64_t step) const;
  /// Records the accuracy of that step, and the used fraction of the budget in [0, 1].
  void observe(std::int64_t step, double accuracy, double used);

  std::size_t level() const { return level_; }
  std::size_t levels() const { return levels_.size(); }
  const RecallTask& current() const { return levels_[level_]; }
  /// Running mean over steps of the current level.
  double accuracy() const { return accuracy_; }
  /// Accuracy above 99 % at the last level.
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
