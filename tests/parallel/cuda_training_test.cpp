// Ranks are threads with a device each. On two GPUs or emulated devices, under a race detector, they train as ranks on
// the CPU do.
#include <gtest/gtest.h>

#include <cstdlib>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "tests/parallel/training_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using poolgrad::testing_support::TemporaryFolder;

const std::vector<Device> both{{DeviceType::cuda, 0}, {DeviceType::cuda, 1}};

[[maybe_unused]] const bool two_devices = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  setenv("POOLGRAD_ALLOCATOR", "races:on", 1);
  return true;
}();

/// Compares losses, gradient norms and validation losses of both devices with those of the CPU.
void expect_what_the_cpu_finds(SharedRun run, const Grid& grid, Layout layout = Layout::zigzag) {
  run.steps = 3;
  const std::vector<double> here = history_of(run, grid, layout);
  run.devices = both;
  EXPECT_LT(largest_difference(history_of(run, grid, layout), here), 1e-10)
      << to_string(grid) << ", " << attention::to_string(layout);
}

TEST(TrainingOnDevices, DataParallelMatchesTheCpu) {
  expect_what_the_cpu_finds({.dropout = 0.1}, {1, 2});
  expect_what_the_cpu_finds({.optimizer = nn::OptimizerKind::muon, .shard = true}, {1, 2});
  for (const Device device : both) EXPECT_GT(allocator_for(device).statistics().requests, 0u) << to_string(device);
}

TEST(TrainingOnDevices, SequenceParallelMatchesTheCpu) {
  expect_what_the_cpu_finds({.batch = 2, .context = 37, .attention_dropout = 0.2}, {2, 1}, Layout::zigzag);
  expect_what_the_cpu_finds({.pattern = Pattern::window(6, 0), .batch = 2}, {2, 1}, Layout::striped);
}

TEST(TrainingOnDevices, BothAxesMatchTheCpuWithTwoRanksPerDevice) {
  expect_what_the_cpu_finds({.batch = 2, .shard = true}, {2, 2}, Layout::contiguous);
}

TEST(TrainingOnDevices, HasTheSameBitsEachTime) {
  const SharedRun run{.batch = 2, .steps = 2, .dtype = DType::f32, .devices = both};
  EXPECT_EQ(history_of(run, {2, 1}), history_of(run, {2, 1}));
}

TEST(TrainingOnDevices, ResumesOnTheCpuAndBack) {
  const TemporaryFolder folder;
  const std::string path = folder.file("devices.safetensors");
  SharedRun run{.batch = 2, .shard = true};
  std::vector<double> rest;
  const auto part = [&](const std::vector<Device>& devices, const Grid& grid, bool begins) {
    std::vector<double> losses;
    run.devices = devices;
    on_ranks(run, grid, Layout::zigzag, [&](RankOfRun& rank) {
      if (!begins) rank.trainer.resume(path);
      if (begins) rank.losses(2), rank.trainer.save(path);
      const std::vector<double> own = rank.losses(2);
      if (rank.ranks->rank() == 0) losses = own;
    });
    return losses;
  };
  const std::vector<double> whole = part(both, {1, 2}, true);
  EXPECT_EQ(part(both, {1, 2}, false), whole) << "bit for bit";
  EXPECT_LT(largest_difference(part({cpu}, {1, 2}, false), whole), 1e-10);
  part({cpu}, {1, 2}, true);
  EXPECT_LT(largest_difference(part(both, {2, 1}, false), whole), 1e-10);
}

TEST(TrainingOnDevices, AFailedRankLeavesBothDevicesUsable) {
  const SharedRun run{.batch = 2, .steps = 1, .devices = both};
  const std::vector<double> expected = history_of(run, {2, 1});
  std::vector<std::size_t> before;
  for (const Device device : both) before.push_back(allocator_for(device).statistics().allocated_bytes.current);
  const std::string error = poolgrad::testing_support::error_of<Error>([&] {
    on_ranks(run, {2, 1}, Layout::zigzag, [&](RankOfRun& rank) {
      HookHandle hook;
      if (rank.ranks->rank() == 1)
        hook = register_hook(rank.trainer.model().parameters()[1],
                             [](const Tensor&) -> Tensor { throw ValueError("out of luck"); });
      rank.trainer.step();
    });
  });
  EXPECT_EQ(error, "out of luck");
  for (const Device device : both)
    EXPECT_EQ(allocator_for(device).statistics().allocated_bytes.current, before[device.index]) << to_string(device);
  EXPECT_EQ(history_of(run, {2, 1}), expected);
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
