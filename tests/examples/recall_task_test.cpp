// The guarantees of the recall task for every sequence.
#include "examples/recall/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "allocator/error.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::examples {
namespace {

using testing_support::error_of;

const std::vector<RecallTask>& tasks() {
  static const std::vector<RecallTask> all{
      {},
      {.distance = 1},
      {.distance = 33, .pairs = 5, .keys = 11, .values = 3, .spacing = 2, .align = 1},
      {.distance = 100, .pairs = 1, .keys = 1, .values = 2, .spacing = 3, .align = 3},
      {.kind = RecallKind::passkey, .distance = 77, .pairs = 8, .keys = 8, .values = 10}};
  return all;
}

template <class F>
void for_many_sequences(const F& f) {
  const std::uint64_t seed = test_seed();
  for (const RecallTask& task : tasks())
    for (std::uint64_t index = 0; index < 50; ++index) f(task, make_recall_sequence(task, seed, index));
}

bool is_key(const RecallTask& task, std::int64_t token) {
  return token >= task.fillers() && token < task.fillers() + task.keys;
}
bool is_value(const RecallTask& task, std::int64_t token) {
  return token >= task.fillers() + task.keys && token < task.vocabulary();
}

TEST(RecallTask, TheSequenceAloneDeterminesEveryAnswer) {
  for_many_sequences([](const RecallTask& task, const RecallSequence& sequence) {
    std::map<std::int64_t, std::int64_t> stated;  // the value of each key so far
    for (std::size_t i = 1; i < sequence.tokens.size(); ++i)
      if (is_value(task, sequence.tokens[i])) {
        ASSERT_TRUE(is_key(task, sequence.tokens[i - 1]));
        ASSERT_TRUE(stated.emplace(sequence.tokens[i - 1], sequence.tokens[i]).second) << "a key stated twice";
      }
    ASSERT_EQ(stated.size(), static_cast<std::size_t>(task.pairs));
    for (const auto& question : sequence.questions)
      EXPECT_EQ(stated.at(sequence.tokens[static_cast<std::size_t>(question.position)]), question.answer);
  });
}

TEST(RecallTask, EveryPairIsAskedForOnceAndNoAnswerIsWrittenBehindTheStatements) {
  for_many_sequences([](const RecallTask& task, const RecallSequence& sequence) {
    std::set<std::int64_t> asked;
    for (const auto& question : sequence.questions) asked.insert(question.value_position);
    EXPECT_EQ(asked.size(), static_cast<std::size_t>(task.pairs));
    EXPECT_EQ(std::ranges::count_if(sequence.tokens, [&](std::int64_t token) { return is_value(task, token); }),
              task.pairs);
  });
}

TEST(RecallTask, QuestionsAreAsFarFromTheirValuesAsPromised) {
  for_many_sequences([](const RecallTask& task, const RecallSequence& sequence) {
    ASSERT_EQ(static_cast<std::int64_t>(sequence.tokens.size()), task.length());
    for (const auto& question : sequence.questions) {
      EXPECT_GE(question.position - question.value_position, task.distance);
      EXPECT_LT(question.position - question.value_position, task.distance + task.span());
    }
  });
}

TEST(RecallTask, ValuesAndQuestionsOfASequenceAgreeModTheAlignmentAtEveryResidue) {
  for (const RecallTask& task : tasks()) {
    std::set<std::int64_t> residues;
    for (std::uint64_t index = 0; index < 50; ++index)
      for (const auto& question : make_recall_sequence(task, 1, index).questions) {
        EXPECT_EQ((question.position - question.value_position) % task.align, 0);
        residues.insert(question.position % task.align);
      }
    EXPECT_EQ(residues.size(), static_cast<std::size_t>(task.align));
  }
}

TEST(RecallTask, NoFixedDistanceBackFindsTheAnswers) {
  const RecallTask task{.distance = 64};
  std::map<std::int64_t, int> distances;
  for (std::uint64_t index = 0; index < 50; ++index)
    for (const auto& question : make_recall_sequence(task, 1, index).questions)
      ++distances[question.position - question.value_position];
  for (const auto& [distance, count] : distances) EXPECT_LT(count, 50 * 16 / 20) << distance;
}

TEST(RecallTask, WhoKnowsNothingIsRightAsOftenAsTheChanceSays) {
  const RecallTask task;
  std::map<std::int64_t, int> answers;
  int asked = 0;
  for (std::uint64_t index = 0; index < 1000; ++index)
    for (const auto& question : make_recall_sequence(task, 1, index).questions) {
      ++answers[question.answer];
      ++asked;
    }
  ASSERT_EQ(answers.size(), static_cast<std::size_t>(task.values));
  for (const auto& [answer, count] : answers)
    EXPECT_NEAR(static_cast<double>(count) / asked, task.chance(), 0.01) << answer;
}

TEST(RecallTask, ADigitTellsNothingOfAnother) {
  const RecallTask task{.kind = RecallKind::passkey, .distance = 16, .pairs = 2, .keys = 2, .values = 2};
  std::map<std::pair<std::int64_t, std::int64_t>, int> both;
  for (std::uint64_t index = 0; index < 1000; ++index) {
    const auto sequence = make_recall_sequence(task, 1, index);
    ++both[{sequence.questions[0].answer, sequence.questions[1].answer}];
  }
  ASSERT_EQ(both.size(), 4u);
  for (const auto& [pair, count] : both) EXPECT_NEAR(count, 250, 60);
}

TEST(RecallTask, IsAFunctionOfSeedAndIndex) {
  const RecallTask task;
  EXPECT_EQ(make_recall_sequence(task, 3, 4).tokens, make_recall_sequence(task, 3, 4).tokens);
  EXPECT_NE(make_recall_sequence(task, 3, 4).tokens, make_recall_sequence(task, 3, 5).tokens);
  EXPECT_NE(make_recall_sequence(task, 3, 4).tokens, make_recall_sequence(task, 4, 4).tokens);
}

TEST(RecallTask, RefusesInOneSentence) {
  const auto refusal = [](const RecallTask& task) { return error_of<ValueError>([&] { task.check(); }); };
  EXPECT_EQ(refusal({.distance = 0}), "[recall] --distance must be at least 1, but is 0");
  EXPECT_EQ(refusal({.pairs = 17}), "[recall] --pairs 17 need a key each, but --keys is 16");
  EXPECT_EQ(refusal({.values = 1}), "[recall] --values must be at least 2, but is 1");
  EXPECT_EQ(refusal({.spacing = 1}), "[recall] --spacing must hold a key and a value, 2 tokens, but is 1");
  EXPECT_EQ(refusal({.spacing = 6}), "[recall] --spacing must be a multiple of --align, but they are 6 and 4");
  EXPECT_EQ(refusal({.align = 0}), "[recall] --spacing must be a multiple of --align, but they are 8 and 0");
  EXPECT_EQ(error_of<ValueError>([] { parse_recall_kind("copy"); }),
            "[recall] --task must be kv or passkey, but is copy");
}

TEST(RecallLevels, LeadFromFewPairsNearbyToTheGoalAndNoFurther) {
  const RecallTask goal{.distance = 100, .pairs = 12};
  const std::vector<RecallTask> levels = recall_levels(goal);
  EXPECT_EQ(levels.front().pairs, 4);
  EXPECT_EQ(levels.front().distance, 8);
  EXPECT_EQ(levels.back().pairs, goal.pairs);
  EXPECT_EQ(levels.back().distance, goal.distance);
  EXPECT_EQ(levels.back().spacing, goal.spacing);
  for (std::size_t i = 1; i < levels.size(); ++i) {
    EXPECT_GE(levels[i].pairs, levels[i - 1].pairs);
    EXPECT_GE(levels[i].distance, levels[i - 1].distance);
    EXPECT_LE(levels[i].length(), goal.length());
  }
}

TEST(RecallLevels, OfTheSmallestTaskAreTheTaskItself) {
  const RecallTask goal{.distance = 1, .pairs = 1, .spacing = 4};
  for (const RecallTask& level : recall_levels(goal)) EXPECT_EQ(level.length(), goal.length());
}

TEST(RecallCurriculum, GoesOnWhenALevelIsMastered) {
  RecallCurriculum curriculum({.distance = 16}, 1);
  std::int64_t step = 0;
  while (!curriculum.done() && step < 1000) {
    ++step;
    curriculum.observe(step, 1.0, 0.0);
  }
  EXPECT_TRUE(curriculum.done());
  EXPECT_EQ(curriculum.level() + 1, curriculum.levels());
}

TEST(RecallCurriculum, GivesALearnerOfNothingAFifthOfTheBudgetAtTheLastLevel) {
  RecallCurriculum curriculum({.distance = 4096}, 1);
  std::int64_t first = 0, last = 0;
  for (std::int64_t step = 1; step <= 1000; ++step) {
    first += curriculum.level() == 0;
    last += curriculum.level() + 1 == curriculum.levels();
    curriculum.observe(step, 0.0, static_cast<double>(step) / 1000);
  }
  EXPECT_NEAR(static_cast<double>(first), 500, 10);
  EXPECT_GE(last, 190);
  EXPECT_FALSE(curriculum.done());
}

TEST(RecallCurriculum, RepeatsEarlierLevelsEveryOtherStep) {
  RecallCurriculum curriculum({.distance = 64}, 1);
  for (std::int64_t step = 1; curriculum.level() < 3; ++step) curriculum.observe(step, 1.0, 0.0);
  std::set<std::int64_t> earlier;
  for (std::int64_t step = 1001; step < 1100; ++step) {
    const RecallTask& task = curriculum.task(step);
    if (step % 2)
      EXPECT_EQ(&task, &curriculum.current());
    else
      earlier.insert(task.length());
  }
  EXPECT_FALSE(earlier.contains(curriculum.current().length()));
  EXPECT_EQ(earlier.size(), 3u);
}

}  // namespace
}  // namespace poolgrad::examples
