// Ranks that are threads train like one process.
#include "tests/parallel/training_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "autograd/engine/engine.h"
#include "autograd/operators/arithmetic.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using attention::Communicator;
using attention::LocalGroup;
using poolgrad::testing_support::error_of;
using poolgrad::testing_support::read_bytes;
using poolgrad::testing_support::TemporaryFolder;
using ::testing::HasSubstr;

constexpr Layout layouts[] = {Layout::contiguous, Layout::zigzag, Layout::striped};

TEST(TrainingOnRanks, DataParallelMatchesOneProcess) {
  const SharedRun run{.batch = 8};
  const std::vector<double> alone = history_alone(run);
  for (const int ranks : {1, 2, 4, 8})
    EXPECT_LT(largest_difference(history_of(run, {1, ranks}), alone), 1e-10) << ranks;
}

TEST(TrainingOnRanks, SequenceParallelMatchesOneProcessInEveryLayout) {
  const SharedRun run{.batch = 2, .context = 37};
  const std::vector<double> alone = history_alone(run);
  for (const Layout layout : layouts)
    for (const int ranks : {1, 2, 4})
      EXPECT_LT(largest_difference(history_of(run, {ranks, 1}, layout), alone), 1e-10)
          << ranks << " " << attention::to_string(layout);
  EXPECT_LT(largest_difference(history_of(run, {8, 1}), alone), 1e-10);
}

TEST(TrainingOnRanks, BothAxesMatchOneProcess) {
  const SharedRun run{.batch = 5, .context = 26};  // shares of 2 and 3, and of 13
  const std::vector<double> alone = history_alone(run);
  EXPECT_LT(largest_difference(history_of(run, {2, 2}), alone), 1e-10);
  EXPECT_LT(largest_difference(history_of(run, {4, 2}, Layout::striped), alone), 1e-10);
}

TEST(TrainingOnRanks, AccumulatesToTheGradientOfALargerBatch) {
  const SharedRun run{.batch = 2, .accumulate = 4};
  EXPECT_LT(largest_difference(RankOfRun(run).losses(20), RankOfRun({.batch = 8}).losses(20)), 1e-10);
  const std::vector<double> alone = history_alone(run);
  for (const Grid grid : {Grid{1, 2}, Grid{2, 1}, Grid{2, 2}})
    EXPECT_LT(largest_difference(history_of(run, grid), alone), 1e-10) << to_string(grid);
}

TEST(TrainingOnRanks, SupportsPatternsPositionsAndDropout) {
  const Pattern patterns[] = {Pattern::window(6, 0), Pattern::dilated({4, 16, 32}, {1, 2, 4}) & Pattern::causal(),
                              Pattern::documents({0, 9, 20, 30}) & Pattern::causal(),
                              Pattern::strided(5) & Pattern::causal()};
  int number = 0;
  for (const Pattern& pattern : patterns) {
    const SharedRun run{.pattern = pattern,
                        .batch = 2,
                        .context = 30,
                        .dropout = 0.2,
                        .attention_dropout = 0.2,
                        .positions = number % 2 == 0 ? nn::Positions::rope : nn::Positions::learned,
                        .steps = 6};
    const std::vector<double> alone = history_alone(run);
    EXPECT_LT(largest_difference(history_of(run, {2, 2}, layouts[number % 3]), alone), 1e-10) << pattern.to_string();
    EXPECT_LT(largest_difference(history_of(run, {3, 1}, layouts[(number + 1) % 3]), alone), 1e-10)
        << pattern.to_string();
    ++number;
  }
}

TEST(TrainingOnRanks, RestoresTheModelEvenAfterAFailedStep) {
  on_ranks({.dropout = 0.1}, {1, 1}, Layout::zigzag, [](RankOfRun& rank) {
    nn::LanguageModel& model = rank.trainer.model();
    HookHandle hook = register_hook(model.parameters()[0], [](const Tensor&) -> Tensor { throw ValueError("no"); });
    EXPECT_EQ(error_of<ValueError>([&] { rank.trainer.step(); }), "no");
    hook.remove();
    EXPECT_TRUE(model.training());
    EXPECT_EQ(model.hidden(zeros({6, 24}, {DType::i64})).size(0), 6) << "more than the batch";
  });
}

TEST(TrainingOnRanks, ValidatesAndResumesWithTheAverage) {
  const TemporaryFolder folder;
  const std::string path = folder.file("averages.safetensors");
  SharedRun run{.batch = 4, .steps = 9, .ema = 0.8};
  const std::vector<double> alone = history_alone(run);
  EXPECT_GT(largest_difference(history_alone({.batch = 4, .steps = 9}), alone), 1e-4) << "which is another one";
  EXPECT_LT(largest_difference(history_of(run, {2, 2}), alone), 1e-10);
  run.shard = true;
  on_ranks(run, {1, 4}, Layout::zigzag, [&](RankOfRun& rank) {
    rank.losses(5);
    rank.trainer.save(path);
  });
  on_ranks(run, {2, 1}, Layout::zigzag, [&](RankOfRun& rank) {
    rank.trainer.resume(path);
    std::vector<double> rest = rank.losses(4);
    rest.push_back(rank.trainer.validate(2).loss);
    EXPECT_LT(largest_difference(rest, {alone.begin() + 10, alone.begin() + 19}), 1e-10);
  });
}

TEST(TrainingOnRanks, HasTheSameBitsEachTime) {
  const SharedRun run{.dropout = 0.1, .steps = 5, .dtype = DType::f32};
  EXPECT_EQ(history_of(run, {2, 2}), history_of(run, {2, 2}));
}

/// Counts the started messages.
class Counting final : public Communicator {
 public:
  explicit Counting(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  std::unique_ptr<attention::Transfer> start(Stream stream, int to, attention::Message out, int from,
                                             attention::Message in) override {
    ++started;
    return ranks_->start(stream, to, out, from, in);
  }
  int started = 0;

 private:
  std::shared_ptr<Communicator> ranks_;
};

TEST(TrainingOnRanks, SendsGradientsDuringTheBackwardPass) {
  LocalGroup group(2);
  group.run(1, [&](Communicator& one, int) {
    const auto counting = std::make_shared<Counting>(group.communicator(one.rank()));
    RankOfRun rank({}, counting, {1, 2});
    int before_the_last = 0;  // gradient
    const std::vector<Tensor> parameters = rank.trainer.model().parameters();
    const HookHandle hook = register_post_accumulate_hook(
        parameters[1],
        [&, before = counting->started](const Tensor&) { before_the_last = counting->started - before; });
    const int before = counting->started;
    rank.losses(1);
    EXPECT_GE(before_the_last, 4) << "two buckets, of which one is added up";
    EXPECT_LT(before_the_last, counting->started - before);
  });
}

TEST(TrainingOnRanks, ShardedOptimizerHasTheSameBits) {
  for (const auto kind :
       {nn::OptimizerKind::adamw, nn::OptimizerKind::sgd, nn::OptimizerKind::lion, nn::OptimizerKind::muon}) {
    SharedRun run{.optimizer = kind, .steps = 6, .dtype = DType::f32};
    const std::vector<double> whole = history_of(run, {1, 4});
    run.shard = true;
    EXPECT_EQ(history_of(run, {1, 4}), whole) << nn::to_string(kind);
    EXPECT_EQ(history_of(run, {2, 2}).size(), whole.size());
  }
}

TEST(TrainingOnRanks, ShardedOptimizerHoldsOnlyOwnedState) {
  const SharedRun run{.shard = true, .dtype = DType::f32};
  RankOfRun alone(run);
  const std::vector<Tensor> parameters = alone.trainer.model().parameters();
  const std::vector<int> owners = nn::owners_of(parameters, 4);
  std::int64_t largest = 0;
  std::vector<std::uint64_t> want(4), got(4);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    want[static_cast<std::size_t>(owners[i])] += 8u * static_cast<std::uint64_t>(parameters[i].numel());  // two moments
    largest = std::max(largest, parameters[i].numel());
  }
  on_ranks(run, {1, 4}, Layout::zigzag, [&](RankOfRun& rank) {
    got[static_cast<std::size_t>(rank.ranks->rank())] = rank.trainer.optimizer_bytes();
  });
  EXPECT_EQ(got, want);
  EXPECT_EQ(got[0] + got[1] + got[2] + got[3], alone.trainer.optimizer_bytes());
  for (const std::uint64_t own : got)
    EXPECT_LE(own, alone.trainer.optimizer_bytes() / 4 + 8u * static_cast<std::uint64_t>(largest));
}

TEST(TrainingOnRanks, NonFiniteGradientsOnOneRankSkipTheStepOnAll) {
  const SharedRun run{.dtype = DType::f32, .loss_scale = nn::LossScalerOptions{.initial = 1024}};
  on_ranks(run, {1, 2}, Layout::zigzag, [&](RankOfRun& rank) {
    HookHandle hook;
    if (rank.ranks->rank() == 1)
      hook = register_hook(rank.trainer.model().parameters()[1],
                           [](const Tensor& gradient) { return gradient * HUGE_VAL; });
    EXPECT_EQ(rank.trainer.step().skipped_steps, 1);
    hook.remove();
    const nn::StepRecord next = rank.trainer.step();
    EXPECT_EQ(next.skipped_steps, 1);
    EXPECT_EQ(next.loss_scale, 512);
  });
}

/// Returns the losses from step 5 on.
std::vector<double> resumed(const SharedRun& run, const Grid& grid, const std::string& path) {
  std::vector<double> result;
  on_ranks(run, grid, Layout::zigzag, [&](RankOfRun& rank) {
    rank.trainer.resume(path);
    const std::vector<double> losses = rank.losses(4);
    if (rank.ranks->rank() == 0) result = losses;
  });
  return result;
}

TEST(TrainingOnRanks, SavesOneFileThatAnyNumberOfRanksResumes) {
  const TemporaryFolder folder;
  for (const auto kind : {nn::OptimizerKind::adamw, nn::OptimizerKind::muon})
    for (const bool shard : {false, true}) {
      const SharedRun run{.batch = 8, .dropout = 0.1, .optimizer = kind, .shard = shard};
      const std::string path = folder.file("four.safetensors");
      std::vector<double> rest;
      on_ranks(run, {2, 2}, Layout::zigzag, [&](RankOfRun& rank) {
        rank.losses(5);
        rank.trainer.save(path);
        const std::vector<double> losses = rank.losses(4);
        if (rank.ranks->rank() == 0) rest = losses;
      });
      EXPECT_EQ(resumed(run, {2, 2}, path), rest) << "bit for bit";
      for (const Grid& grid : {Grid{1, 1}, Grid{1, 2}, Grid{2, 1}, Grid{2, 4}})
        EXPECT_LT(largest_difference(resumed(run, grid, path), rest), 1e-10) << to_string(grid);
      RankOfRun alone(run);
      alone.trainer.resume(path);
      EXPECT_LT(largest_difference(alone.losses(4), rest), 1e-10);
    }
}

TEST(TrainingOnRanks, ShardedOptimizerWritesTheSameFile) {
  const TemporaryFolder folder;
  for (const auto kind : {nn::OptimizerKind::adamw, nn::OptimizerKind::muon}) {
    const auto saved = [&](bool shard) {
      const SharedRun run{.optimizer = kind, .shard = shard, .dtype = DType::f32};
      const std::string path = folder.file("saved.safetensors");
      on_ranks(run, {1, 4}, Layout::zigzag, [&](RankOfRun& rank) {
        rank.losses(2);
        rank.trainer.save(path);
      });
      return read_bytes(path);
    };
    EXPECT_TRUE(saved(true) == saved(false)) << nn::to_string(kind);
  }
}

TEST(TrainingOnRanks, RefusesATruncatedCheckpointOnEveryRank) {
  const TemporaryFolder folder;
  const SharedRun run{.shard = true};
  const std::string path = folder.file("whole.safetensors"), cut = folder.file("cut.safetensors");
  on_ranks(run, {1, 2}, Layout::zigzag, [&](RankOfRun& rank) {
    rank.losses(1);
    rank.trainer.save(path);
  });
  const std::string bytes = read_bytes(path);
  std::ofstream(cut, std::ios::binary) << bytes.substr(0, bytes.size() - 100);
  on_ranks(run, {1, 2}, Layout::zigzag, [&](RankOfRun& rank) {
    EXPECT_THAT(error_of<FileError>([&] { rank.trainer.resume(cut); }), HasSubstr("cut.safetensors"));
    rank.trainer.resume(path);
    EXPECT_EQ(rank.trainer.steps_done(), 1);
  });
}

TEST(TrainingOnRanks, NamesTheRankWithAnotherText) {
  LocalGroup group(2);
  const std::string error = error_of<ValueError>([&] {
    group.run(1, [&](Communicator& one, int) {
      TrainingRanks ranks(group.communicator(one.rank()), {1, 2});
      const nn::Corpus corpus = text_of_ranks(static_cast<std::uint8_t>('x' + one.rank()));
      Generator generator(1);
      nn::Trainer trainer(
          attention::make_language_model({.context = 8, .layers = 1, .width = 8, .heads = 1, .kv_heads = 1},
                                         Pattern::causal(), {.generator = &generator}),
          corpus, {.batch = 2, .generator = &generator, .ranks = &ranks});
    });
  });
  EXPECT_THAT(error, ::testing::MatchesRegex(".parallel. ranks differ in text: it is .* on rank 0, and .* on rank 1"));
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
