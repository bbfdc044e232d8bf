// Properties of every modelled allocator.
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>

#include "tests/allocator/lab/policies/model_testing.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

struct Named {
  const char* name;
  Model::Factory make;
};

const Named models[] = {
    {"PytorchNative", make_pytorch_native},
    {"PytorchExpandable", make_pytorch_expandable},
    {"CudaAsync", make_cuda_async},
    {"RmmPool", make_rmm_pool},
    {"RmmArena", make_rmm_arena},
    {"RmmBinning", make_rmm_binning},
    {"TensorflowBfc", make_tensorflow_bfc},
    {"Cub", make_cub},
    {"Gmlake", make_gmlake},
    {"GmlakeLimited", policy_named("gmlake:fragment_limit=8MiB").make},
    {"SizeMapLru", make_size_map_lru},
    {"PytorchCollected",
     policy_named("pytorch:garbage_collection_threshold=0.5,roundup_power2_divisions=4,max_split=32MiB").make},
    {"PytorchExpandableSmall", policy_named("pytorch-expandable:large_segment=2MiB,roundup_power2_divisions=2").make},
    {"CudaAsyncKeeping", policy_named("cuda-async:release_threshold=32MiB,opportunistic=off").make},
    {"RmmPoolBegun", policy_named("rmm-pool:initial_size=2MiB").make},
    {"RmmBinningSmall", policy_named("rmm-binning:smallest_bin=4KiB,largest_bin=64KiB,blocks=8").make},
    {"TensorflowBfcWhole", policy_named("tensorflow-bfc:allow_growth=off,fragmentation_fraction=0.1").make},
    {"SizeMapLimited", policy_named("size-map-lru:memory_limit=0.5,cache_limit=4MiB").make},
};

class PolicyContract : public ::testing::TestWithParam<Named> {
 protected:
  Model model(std::size_t capacity, std::uint16_t streams = 1) const {
    return Model(GetParam().make, capacity, streams);
  }
};
INSTANTIATE_TEST_SUITE_P(Models, PolicyContract, ::testing::ValuesIn(models),
                         [](const auto& test) { return test.param.name; });

using Step = std::tuple<bool, std::size_t, std::size_t>;  // served, reserved, active

// Makes random operations under a capacity; checks each state and returns all of them.
std::vector<Step> run(Model& model, std::size_t capacity, std::uint16_t streams, int operations) {
  std::mt19937_64 random(seed_or(20));
  struct Live {
    std::uint32_t block;
    std::uint16_t stream;
  };
  std::vector<Live> live;
  std::vector<Step> steps;
  const auto check = [&](bool served) {
    ASSERT_LE(model.reserved(), capacity);
    ASSERT_LE(model.active(), model.reserved());
    ASSERT_LE(model.requested(), model.active());
    steps.emplace_back(served, model.reserved(), model.active());
  };
  for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
    const auto stream = static_cast<std::uint16_t>(random() % streams);
    const auto choice = random() % 100;
    if (choice == 0) model.step();
    if (choice == 1) model.finish_work();
    if (choice == 2) model.order(stream, static_cast<std::uint16_t>(random() % streams));
    if (choice == 3 && !live.empty()) model.use(live[random() % live.size()].block, stream);
    if (choice < 55) {
      const std::size_t bytes = random() % (std::size_t{1} << random() % 26);
      const auto block = model.allocate(bytes, stream);
      if (block) live.push_back({*block, stream});
      check(block.has_value());
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      model.free(live.back().block, random() % 8 == 0 ? stream : live.back().stream);
      live.pop_back();
      check(true);
    }
  }
  for (const Live& block : live) model.free(block.block, block.stream);
  model.finish_work();
  // Some policies notice only at the next operation that no work is pending.
  if (const auto last = model.allocate(1)) model.free(last);
  check(true);
  return steps;
}

TEST_P(PolicyContract, StaysWithinItsCapacityAndCountsItsBytes) {
  SCOPED_TRACE("seed " + std::to_string(seed_or(20)));
  for (const std::size_t capacity : {40 * MiB, 200 * MiB, 3 * GiB}) {
    for (const std::uint16_t streams : {1, 3}) {
      Model tested = model(capacity, streams);
      run(tested, capacity, streams, 5000);
      EXPECT_EQ(tested.active(), 0u) << capacity << " bytes, " << streams << " streams";
    }
  }
}

TEST_P(PolicyContract, StaysWithinOddCapacities) {
  for (const std::size_t capacity : {std::size_t{0}, std::size_t{1}, 2 * MiB - 1, 2 * MiB, 3 * MiB + 5, 33 * MiB}) {
    Model tested = model(capacity, 2);
    run(tested, capacity, 2, 500);
    EXPECT_EQ(tested.active(), 0u) << capacity;
  }
}

TEST_P(PolicyContract, RepeatsItself) {
  Model first = model(200 * MiB, 3);
  Model second = model(200 * MiB, 3);
  EXPECT_EQ(run(first, 200 * MiB, 3, 3000), run(second, 200 * MiB, 3, 3000));
  EXPECT_EQ(first.counters().nanoseconds, second.counters().nanoseconds);
}

TEST_P(PolicyContract, ContinuesAfterRequestsBeyondTheCapacity) {
  Model tested = model(1 * GiB);
  for (const std::size_t bytes : {1 * GiB + 1, std::size_t{1} << 40, std::size_t{1} << 63, ~std::size_t{0}}) {
    EXPECT_FALSE(tested.allocate(bytes)) << bytes;
    EXPECT_EQ(tested.active(), 0u);
  }
  const auto block = tested.allocate(5 * MiB);
  ASSERT_TRUE(block);
  tested.free(block);
}

TEST_P(PolicyContract, ServesRequestsWithinTheLargestCapacity) {
  Model tested = model(~std::size_t{0});
  EXPECT_TRUE(tested.allocate(std::size_t{1} << 45));
  EXPECT_FALSE(tested.allocate(std::size_t{1} << 60));
}

TEST_P(PolicyContract, TakesNothingForBlocksOfNoBytes) {
  Model tested = model(64 * MiB, 2);
  const std::size_t before = tested.reserved();
  const auto block = tested.allocate(0);
  ASSERT_TRUE(block);
  tested.use(block, 1);
  tested.free(block, 1);
  EXPECT_EQ(tested.active(), 0u);
  EXPECT_EQ(tested.reserved(), before);
  EXPECT_EQ(tested.counters().events, 0u);
}

TEST_P(PolicyContract, ReusesOneBlock) {
  Model tested = model(1 * GiB);
  for (const std::size_t bytes : {100 * KiB, 5 * MiB}) {
    tested.free(tested.allocate(bytes));
    const std::size_t reserved = tested.reserved();
    for (int i = 0; i < 100; ++i) tested.free(tested.allocate(bytes));
    EXPECT_LE(tested.reserved(), reserved);
  }
}

TEST_P(PolicyContract, ReusesBlocksOfOtherStreams) {
  // One block fills most of the capacity; in each round it moves to the other stream.
  Model tested = model(200 * MiB, 2);
  for (int i = 0; i < 50; ++i) {
    const auto stream = static_cast<std::uint16_t>(i % 2);
    const auto block = tested.allocate(120 * MiB, stream);
    ASSERT_TRUE(block) << i;
    tested.use(block, 1 - stream);
    tested.free(block, 1 - stream);
  }
}

TEST_P(PolicyContract, NeverWaitsForTheOnlyStream) {
  Model tested = model(200 * MiB);
  run(tested, 200 * MiB, 1, 3000);
  EXPECT_EQ(tested.counters().waits, 0u);
}

}  // namespace
}  // namespace poolgrad::testing
