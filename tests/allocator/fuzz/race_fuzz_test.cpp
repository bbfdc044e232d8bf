// Random programs of several streams on a device that detects races. The pool has no race, and a pool that does not
// wait fails at once.
#include "tests/allocator/fuzz/episode.h"
#include "tests/allocator/fuzz/mutant_pools.h"

namespace poolgrad::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

PoolSetup racing_setup(Random& random) {
  PoolSetup setup;
  setup.device = random.pick(std::array{"sim", "sim", "host", "handles"});
  setup.config.budget = page * (3 + random.below(12));
  setup.config.deterministic = random.one_in(2);
  setup.config.magazines = !random.one_in(4);
  setup.delayed = !random.one_in(3);
  setup.detect_races = true;
  return setup;
}

template <class PoolType>
std::optional<Failure> hunt(std::size_t episodes, std::uint64_t salt) {
  for (std::size_t episode = 0; episode < episodes; ++episode) {
    Random random(test_seed() + salt + 1000 * episode);
    const PoolSetup setup = racing_setup(random);
    const Shape shape{.slots = 30, .octaves = 23, .streams = 4, .threads = 1 + static_cast<unsigned>(random.below(2))};
    if (auto failure = run_episode<PoolType>(setup, random_script(random, setup, shape, 1500))) return failure;
  }
  return std::nullopt;
}

TEST(RaceFuzz, FindsNoRaceInThePool) {
  const auto failure = hunt<CachingAllocator>(30, 1);
  EXPECT_FALSE(failure) << "seed " << test_seed() << ": " << failure->text();
}

TEST(RaceFuzz, FindsAPoolThatDoesNotWait) {
  const auto failure = hunt<RushingPool>(30, 2);
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->what, AnyOf(HasSubstr("no event orders the two"), HasSubstr("used by another stream")))
      << failure->text();
  EXPECT_LE(failure->script.size(), 8u) << failure->text();
}

}  // namespace
}  // namespace poolgrad::testing
