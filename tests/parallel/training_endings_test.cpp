// A rank that throws at any moment of training ends all ranks with its reason, and leaves no incomplete file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/moments.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using attention::Communicator;
using attention::LocalGroup;
using poolgrad::testing_support::TemporaryFolder;
using ::testing::AnyOf, ::testing::Each, ::testing::ElementsAre, ::testing::IsEmpty, ::testing::StartsWith;

constexpr int ranks = 4;

/// Returns the error of every rank when one of them throws at `moment`.
std::vector<std::string> heard_where(int culprit, Moment moment, const std::string& path) {
  std::vector<std::string> heard(ranks);
  LocalGroup group(ranks);
  try {
    group.run(1, [&](Communicator& one, int) {
      const auto strikes = [&](Moment now) { return one.rank() == culprit && now == moment; };
      try {
        train_until(strikes, group.communicator(one.rank()), {2, 2}, path);
      } catch (const std::exception& error) {
        heard[static_cast<std::size_t>(one.rank())] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return heard;
}

class TrainingEndings : public ::testing::TestWithParam<Moment> {};
INSTANTIATE_TEST_SUITE_P(At, TrainingEndings, ::testing::ValuesIn(all_moments),
                         [](const auto& one) { return to_string(one.param); });

TEST_P(TrainingEndings, AFailedRankEndsAllRanksAndTheCheckpointIsWhole) {
  const Moment moment = GetParam();
  for (int culprit = 0; culprit < ranks; ++culprit) {
    SCOPED_TRACE(culprit);
    const TemporaryFolder folder;
    const std::string path = folder.file("run.safetensors");
    std::vector<std::string> heard = heard_where(culprit, moment, path);

    const bool file_fails = culprit == 0 && (moment == Moment::writing || moment == Moment::renaming);
    const std::string own = heard[static_cast<std::size_t>(culprit)];
    EXPECT_THAT(own, StartsWith(file_fails ? "[write] " + path + ": cannot " : "out of luck"));
    heard.erase(heard.begin() + culprit);
    const std::string told = "[exchange] rank " + std::to_string(culprit) + " failed: " + own;
    if (moment == Moment::end)  // at the end no rank depends on another
      EXPECT_THAT(heard, Each(AnyOf(told, "")));
    else
      EXPECT_THAT(heard, Each(told));

    const std::int64_t steps = steps_of(path);
    if (moment < Moment::forward)
      EXPECT_EQ(steps, 0);
    else if (moment < Moment::renaming || file_fails)
      EXPECT_EQ(steps, 2);
    else if (moment == Moment::end || culprit == 0)
      EXPECT_EQ(steps, 3);
    else
      EXPECT_THAT(steps, AnyOf(2, 3)) << "rank 0 hears of it before it writes, or after";
    EXPECT_THAT(folder.names(), AnyOf(IsEmpty(), ElementsAre("run.safetensors"))) << "nothing is left behind";
  }
}

TEST(TrainingEndings, ARunWithoutFailuresEndsNormally) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  EXPECT_THAT(heard_where(-1, Moment::end, path), Each(""));
  EXPECT_EQ(steps_of(path), 3);
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
