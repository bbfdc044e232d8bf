// Millions of random operations on random pools, compared with a shadow after each. POOLGRAD_FUZZ_OPERATIONS sets their
// total number.
#include "tests/allocator/fuzz/episode.h"

namespace poolgrad::testing {
namespace {

// Runs episodes of random setups until `operations` operations are done.
void fuzz(std::uint64_t salt, std::size_t operations, std::size_t per_episode, unsigned threads) {
  for (std::size_t done = 0, episode = 0; done < operations; done += per_episode, ++episode) {
    Random random(test_seed() + salt + 1000 * episode);
    const PoolSetup setup = random_setup(random);
    Shape shape = random_shape(random, setup);
    shape.threads = threads;
    const Script script = random_script(random, setup, shape, std::min(per_episode, operations - done));
    const auto failure = run_episode(setup, script);
    ASSERT_FALSE(failure) << "episode " << episode << " of seed " << test_seed() << ": " << failure->text();
  }
}

TEST(ModelFuzz, FindsNoDifferenceToTheShadow) { fuzz(1, fuzz_operations(200000), 5000, 1); }

TEST(ModelFuzz, FindsNoDifferenceWithSeveralThreadsInTurn) { fuzz(2, fuzz_operations(200000) / 8, 2500, 3); }

}  // namespace
}  // namespace poolgrad::testing
