// What expand_in_place() gives back of a block waits for its stream like a block that was freed.
#include "tests/allocator/fuzz/episode.h"

namespace poolgrad::testing {
namespace {

using Kind = Operation::Kind;

std::string run_shrinking(PoolSetup setup, const Script& script) {
  setup.shrink_blocks = true;
  return run_script<CachingAllocator>(setup, script);
}

TEST(ShrinkingBlocks, LetAnotherStreamWaitBeforeItTakesTheRest) {
  EXPECT_EQ(run_shrinking({.granularity = 64 * KiB, .delayed = true},
                          {{.kind = Kind::allocate, .slot = 0, .stream = 2, .bytes = 32768},
                           {.kind = Kind::expand, .slot = 0, .bytes = 0},
                           {.kind = Kind::allocate, .slot = 1, .stream = 0, .bytes = 64}}),
            "");
}

TEST(ShrinkingBlocks, KeepTheirPagesUntilTheStreamIsDone) {
  EXPECT_EQ(run_shrinking({}, {{.kind = Kind::allocate, .slot = 0, .stream = 0, .bytes = 4 * page},
                               {.kind = Kind::expand, .slot = 0, .bytes = 0},
                               {.kind = Kind::trim, .bytes = 64}}),
            "");
}

TEST(ShrinkingBlocks, HoldInRandomPrograms) {
  for (std::uint64_t episode = 0; episode < 20; ++episode) {
    Random random(fuzz_seed() + 9000 + episode);
    PoolSetup setup = random_setup(random);
    setup.shrink_blocks = true;
    const auto failure = run_episode(setup, random_script(random, setup, random_shape(random, setup), 3000));
    ASSERT_FALSE(failure) << "episode " << episode << " of seed " << fuzz_seed() << ": " << failure->text();
  }
}

}  // namespace
}  // namespace poolgrad::testing
