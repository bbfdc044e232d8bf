// The guarantees of the tasks of recall for every sequence.
#include "nn/tasks/sequence_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "allocator/error.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::nn {
namespace {

using testing_support::error_of;

const TaskKind* const passkey = &parse_task_kind("passkey");

/// A task of a kind at its usual size.
SequenceTask usual(std::string_view name, std::int64_t distance = 40) {
  const TaskKind& kind = parse_task_kind(name);
  return {.kind = &kind,
          .distance = distance,
          .pairs = kind.pairs,
          .keys = std::max(kind.keys, kind.own_keys ? kind.pairs : 0),
          .values = kind.values,
          .align = 1};
}

const std::vector<SequenceTask>& tasks() {
  static const std::vector<SequenceTask> all{
      {},
      {.distance = 1},
      {.distance = 33, .pairs = 5, .keys = 11, .values = 3, .spacing = 2, .align = 1},
      {.distance = 100, .pairs = 1, .keys = 1, .values = 2, .spacing = 3, .align = 3},
      {.kind = passkey, .distance = 77, .pairs = 8, .keys = 8, .values = 10}};
  return all;
}

template <class F>
void for_many_sequences(const F& f) {
  const std::uint64_t seed = test_seed();
  for (const SequenceTask& task : tasks())
    for (std::uint64_t index = 0; index < 50; ++index) f(task, task.make(seed, index));
}

bool is_key(const SequenceTask& task, std::int64_t token) {
  return token >= task.kind->fillers && token < task.kind->fillers + task.keys;
}
bool is_value(const SequenceTask& task, std::int64_t token) {
  return token >= task.kind->fillers + task.keys && token < task.vocabulary();
}

TEST(SequenceTask, TheSequenceAloneDeterminesEveryAnswer) {
  for_many_sequences([](const SequenceTask& task, const TaskSequence& sequence) {
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

TEST(SequenceTask, AsksForEveryPairOnceWithoutShowingItsAnswer) {
  for_many_sequences([](const SequenceTask& task, const TaskSequence& sequence) {
    std::set<std::int64_t> asked;
    for (const auto& question : sequence.questions) asked.insert(question.value_position);
    EXPECT_EQ(asked.size(), static_cast<std::size_t>(task.pairs));
    EXPECT_EQ(std::ranges::count_if(sequence.tokens, [&](std::int64_t token) { return is_value(task, token); }),
              task.pairs);
  });
}

TEST(SequenceTask, PlacesQuestionsAtTheGivenDistance) {
  for_many_sequences([](const SequenceTask& task, const TaskSequence& sequence) {
    ASSERT_EQ(static_cast<std::int64_t>(sequence.tokens.size()), task.length());
    for (const auto& question : sequence.questions) {
      EXPECT_GE(question.position - question.value_position, task.distance);
      EXPECT_LT(question.position - question.value_position, task.distance + task.span());
    }
  });
}

TEST(SequenceTask, AlignsValuesAndQuestionsAtEveryResidue) {
  for (const SequenceTask& task : tasks()) {
    std::set<std::int64_t> residues;
    for (std::uint64_t index = 0; index < 50; ++index)
      for (const auto& question : task.make(1, index).questions) {
        EXPECT_EQ((question.position - question.value_position) % task.align, 0);
        residues.insert(question.position % task.align);
      }
    EXPECT_EQ(residues.size(), static_cast<std::size_t>(task.align));
  }
}

TEST(SequenceTask, NoFixedDistanceBackFindsTheAnswers) {
  const SequenceTask task{.distance = 64};
  std::map<std::int64_t, int> distances;
  for (std::uint64_t index = 0; index < 50; ++index)
    for (const auto& question : task.make(1, index).questions) ++distances[question.position - question.value_position];
  for (const auto& [distance, count] : distances) EXPECT_LT(count, 50 * 16 / 20) << distance;
}

TEST(SequenceTask, GuessesAreRightAsOftenAsChance) {
  const SequenceTask task;
  std::map<std::int64_t, int> answers;
  int asked = 0;
  for (std::uint64_t index = 0; index < 1000; ++index)
    for (const auto& question : task.make(1, index).questions) {
      ++answers[question.answer];
      ++asked;
    }
  ASSERT_EQ(answers.size(), static_cast<std::size_t>(task.values));
  for (const auto& [answer, count] : answers)
    EXPECT_NEAR(static_cast<double>(count) / asked, task.chance(), 0.01) << answer;
}

TEST(SequenceTask, DigitsAreIndependent) {
  const SequenceTask task{.kind = passkey, .distance = 16, .pairs = 2, .keys = 2, .values = 2};
  std::map<std::pair<std::int64_t, std::int64_t>, int> both;
  for (std::uint64_t index = 0; index < 1000; ++index) {
    const auto sequence = task.make(1, index);
    ++both[{sequence.questions[0].answer, sequence.questions[1].answer}];
  }
  ASSERT_EQ(both.size(), 4u);
  for (const auto& [pair, count] : both) EXPECT_NEAR(count, 250, 60);
}

TEST(SequenceTask, IsAFunctionOfSeedAndIndex) {
  const SequenceTask task;
  EXPECT_EQ(task.make(3, 4).tokens, task.make(3, 4).tokens);
  EXPECT_NE(task.make(3, 4).tokens, task.make(3, 5).tokens);
  EXPECT_NE(task.make(3, 4).tokens, task.make(4, 4).tokens);
}

TEST(SequenceTask, RefusesInOneSentence) {
  const auto refusal = [](const SequenceTask& task) { return error_of<ValueError>([&] { task.check(); }); };
  EXPECT_EQ(refusal({.distance = 0}), "[recall] --distance must be at least 1, but is 0");
  EXPECT_EQ(refusal({.pairs = 17}), "[recall] --pairs 17 need a key each, but --keys is 16");
  EXPECT_EQ(refusal({.values = 1}), "[recall] --values must be at least 2, but is 1");
  EXPECT_EQ(refusal({.spacing = 1}), "[recall] --spacing must hold a key and a value, 2 tokens, but is 1");
  EXPECT_EQ(refusal({.spacing = 6}), "[recall] --spacing must be a multiple of --align, but they are 6 and 4");
  EXPECT_EQ(refusal({.align = 0}), "[recall] --spacing must be a multiple of --align, but they are 8 and 0");
  EXPECT_EQ(refusal({.pairs = 1, .hops = 0}), "[recall] --hops must be at least 1, but is 0");
  SequenceTask mqar = usual("mqar");
  mqar.values = 63;
  EXPECT_EQ(refusal(mqar), "[recall] --pairs 64 need a value each, but --values is 63");
  EXPECT_EQ(error_of<ValueError>([] { parse_task_kind("kv"); }),
            "[recall] --task must be one of recall, passkey, mqar, copy, induction, variables, but is kv");
}

TEST(SequenceTask, HasItsLengthVocabularyAndOneQuestionPerPair) {
  const std::uint64_t seed = test_seed();
  for (const TaskKind& kind : task_kinds())
    for (const std::int64_t distance : {1, 7, 64}) {
      const SequenceTask task = usual(kind.name, distance);
      task.check();
      for (std::uint64_t index = 0; index < 20; ++index) {
        const TaskSequence sequence = task.make(seed, index);
        SCOPED_TRACE(std::string(kind.name) + ", distance " + std::to_string(distance) + ", seed " +
                     std::to_string(seed) + ", index " + std::to_string(index));
        EXPECT_EQ(sequence.tokens, task.make(seed, index).tokens);
        EXPECT_NE(sequence.tokens, task.make(seed + 1, index).tokens);
        ASSERT_EQ(std::ssize(sequence.tokens), task.length());
        EXPECT_GE(*std::ranges::min_element(sequence.tokens), 0);
        EXPECT_LT(*std::ranges::max_element(sequence.tokens), task.vocabulary());
        ASSERT_EQ(std::ssize(sequence.questions), task.pairs);
        std::set<std::int64_t> places;
        for (const auto& question : sequence.questions) {
          EXPECT_TRUE(places.insert(question.position).second) << "two questions at one place";
          EXPECT_EQ(sequence.tokens[static_cast<std::size_t>(question.value_position)], question.answer);
          EXPECT_LT(question.value_position, question.position);
          EXPECT_TRUE(is_value(task, question.answer));
          if (kind.name != "mqar") {
            EXPECT_GE(question.position - question.value_position, task.distance);
            EXPECT_LT(question.position - question.value_position, task.distance + task.span());
          }
        }
      }
    }
}

TEST(SequenceTask, MqarStatesDistinctPairsAndAsksMostlySoon) {
  const SequenceTask task = usual("mqar", 256);
  EXPECT_EQ(task.length(), 512);
  EXPECT_EQ(task.vocabulary(), 8192);
  int soon = 0, asked = 0;
  for (std::uint64_t index = 0; index < 50; ++index) {
    const TaskSequence sequence = task.make(1, index);
    std::map<std::int64_t, std::int64_t> stated;
    std::set<std::int64_t> values;
    for (std::size_t i = 0; i < 128; i += 2) {
      EXPECT_TRUE(stated.emplace(sequence.tokens[i], sequence.tokens[i + 1]).second);
      EXPECT_TRUE(values.insert(sequence.tokens[i + 1]).second);
    }
    for (const auto& question : sequence.questions) {
      EXPECT_EQ(stated.at(sequence.tokens[static_cast<std::size_t>(question.position)]), question.answer);
      EXPECT_EQ(question.position % 2, 0);
      EXPECT_GE(question.position, 128);
      soon += question.position < 128 + 2 * 48;  // a quarter of the places
      ++asked;
    }
  }
  EXPECT_GT(soon, asked / 2);
}

TEST(SequenceTask, CopyShowsEachSymbolBeforeItAsksForTheNext) {
  const SequenceTask task = usual("copy");
  std::set<std::int64_t> begins;
  for (std::uint64_t index = 0; index < 50; ++index) {
    const TaskSequence sequence = task.make(1, index);
    begins.insert(sequence.questions[0].value_position);
    for (std::size_t i = 0; i < sequence.questions.size(); ++i) {
      const auto& question = sequence.questions[i];
      EXPECT_EQ(question.value_position, sequence.questions[0].value_position + static_cast<std::int64_t>(i));
      const std::int64_t shown = i == 0 ? task.kind->fillers : sequence.questions[i - 1].answer;
      EXPECT_EQ(sequence.tokens[static_cast<std::size_t>(question.position)], shown);
    }
  }
  EXPECT_EQ(begins.size(), static_cast<std::size_t>(task.spacing)) << "the distance back varies";
}

TEST(SequenceTask, VariablesReachTheirValuesWithinTheHops) {
  for (const std::int64_t hops : {1, 2, 5}) {
    SequenceTask task = usual("variables");
    task.hops = hops;
    std::set<std::int64_t> lengths;
    for (std::uint64_t index = 0; index < 50; ++index) {
      const TaskSequence sequence = task.make(1, index);
      std::map<std::int64_t, std::int64_t> assigned;
      for (std::int64_t i = 0; i + 1 < task.pairs * task.spacing + task.align; ++i) {
        const std::int64_t token = sequence.tokens[static_cast<std::size_t>(i)];
        if (is_key(task, token) && !assigned.contains(token))
          assigned[token] = sequence.tokens[static_cast<std::size_t>(++i)];
      }
      for (const auto& question : sequence.questions) {
        std::int64_t token = sequence.tokens[static_cast<std::size_t>(question.position)], references = -1;
        for (; is_key(task, token); ++references) token = assigned.at(token);
        EXPECT_EQ(token, question.answer);
        EXPECT_LE(references, hops);
        lengths.insert(references);
      }
    }
    EXPECT_EQ(*lengths.rbegin(), hops);
    EXPECT_EQ(*lengths.begin(), 0);
  }
}

TEST(SequenceTask, InductionStatesItsPairsAmongRandomValues) {
  const SequenceTask task = usual("induction");
  std::map<std::int64_t, int> background;
  for (std::uint64_t index = 0; index < 50; ++index)
    for (const std::int64_t token : task.make(1, index).tokens) ++background[token];
  EXPECT_EQ(background.size(), static_cast<std::size_t>(task.values + task.keys));
  EXPECT_FALSE(background.contains(0)) << "no fillers";
}

TEST(TaskLevels, LeadFromFewNearPairsToTheGoal) {
  const SequenceTask goal{.distance = 100, .pairs = 12};
  const std::vector<SequenceTask> levels = task_levels(goal);
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

TEST(TaskLevels, AreTheTaskItselfForTheSmallestTask) {
  const SequenceTask goal{.distance = 1, .pairs = 1, .spacing = 4};
  for (const SequenceTask& level : task_levels(goal)) EXPECT_EQ(level.length(), goal.length());
}

TEST(TaskCurriculum, EndsALevelAtNineOfTenRightAnswers) {
  TaskCurriculum curriculum({.distance = 16}, 1);
  std::int64_t step = 0;
  while (!curriculum.done() && step < 1000) {
    ++step;
    curriculum.observe(step, 1.0, 0.0);
  }
  EXPECT_TRUE(curriculum.done());
  EXPECT_EQ(curriculum.level() + 1, curriculum.levels());
}

TEST(TaskCurriculum, GivesTheLastLevelAFifthOfTheBudget) {
  TaskCurriculum curriculum({.distance = 4096}, 1);
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

TEST(TaskCurriculum, RepeatsEarlierLevelsEveryOtherStep) {
  TaskCurriculum curriculum({.distance = 64}, 1);
  for (std::int64_t step = 1; curriculum.level() < 3; ++step) curriculum.observe(step, 1.0, 0.0);
  std::set<std::int64_t> earlier;
  for (std::int64_t step = 1001; step < 1100; ++step) {
    const SequenceTask& task = curriculum.task(step);
    if (step % 2)
      EXPECT_EQ(&task, &curriculum.current());
    else
      earlier.insert(task.length());
  }
  EXPECT_FALSE(earlier.contains(curriculum.current().length()));
  EXPECT_EQ(earlier.size(), 3u);
}

}  // namespace
}  // namespace poolgrad::nn
