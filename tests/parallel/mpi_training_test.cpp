// Ranks that are processes train like one process, and with the bits of ranks that are threads.
#include <filesystem>

#include "kernels/parallel.h"
#include "tests/parallel/mpi_support.h"
#include "tests/parallel/training_support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using attention::LocalGroup;

class MpiTraining : public ::testing::Test {
 protected:
  void SetUp() override { kernels::set_num_threads(1); }

  /// Returns this rank's history.
  std::vector<double> history_here(const SharedRun& run, const Grid& grid, Layout layout = Layout::zigzag) {
    std::vector<double> result;
    world_.run([&] {
      RankOfRun rank(run, world_.communicator(), grid, layout);
      result = history(rank);
    });
    return result;
  }
  /// Returns every possible division of the work.
  std::vector<Grid> grids() const {
    std::vector<Grid> all;
    for (int ring = 1; ring <= ranks(); ++ring)
      if (ranks() % ring == 0) all.push_back({ring, ranks() / ring});
    return all;
  }

  MpiWorld world_;
};

TEST_F(MpiTraining, MatchesOneProcessForEveryGrid) {
  const SharedRun run{.batch = 8, .context = 29, .dropout = 0.1};
  RankOfRun alone(run);
  const std::vector<double> want = history(alone);
  for (const Grid& grid : grids())
    EXPECT_LT(largest_difference(history_here(run, grid), want), 1e-10) << to_string(grid);
}

TEST_F(MpiTraining, HasTheBitsOfThreadRanks) {
  SharedRun run{.batch = 8, .steps = 4, .dtype = DType::f32};
  const Grid grid = grids()[grids().size() / 2];
  std::vector<double> threads;
  LocalGroup group(ranks());
  group.run(1, [&](Communicator& one, int) {
    RankOfRun thread(run, group.communicator(one.rank()), grid, Layout::striped);
    std::vector<double> found = history(thread);
    if (one.rank() == 0) threads = std::move(found);
  });
  EXPECT_EQ(history_here(run, grid, Layout::striped), threads);
  run.shard = true;
  EXPECT_EQ(history_here(run, grid, Layout::striped), threads);
}

TEST_F(MpiTraining, SavesOneFileThatOneProcessResumes) {
  const SharedRun run{.batch = 8, .shard = true};
  const std::string path = "mpi_training_" + std::to_string(ranks()) + ".safetensors";
  std::vector<double> rest;
  world_.run([&] {
    RankOfRun rank(run, world_.communicator(), grids().back());
    rank.losses(3);
    rank.trainer.save(path);
    rest = rank.losses(3);
    RankOfRun again(run, world_.communicator(), grids().back());
    again.trainer.resume(path);
    EXPECT_EQ(again.losses(3), rest);
    RankOfRun alone({.batch = 8});
    alone.trainer.resume(path);
    EXPECT_LT(largest_difference(alone.losses(3), rest), 1e-10);
    double all_have_read = 1;
    rank.ranks->sum({&all_have_read, 1});
  });
  if (rank() == 0) std::filesystem::remove(path);
}

TEST_F(MpiTraining, NamesADifferingOption) {
  NEEDS_RANKS(2);
  world_.run([&] {
    TrainingRanks all(world_.communicator(), {1, ranks()});
    EXPECT_EQ(error_of<ValueError>([&] {
                all.agree({{"--lr", rank() == 1 ? "0.1" : "0.003"}});
              }),
              "[parallel] ranks differ in --lr: it is 0.003 on rank 0, and 0.1 on rank 1");
  });
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
