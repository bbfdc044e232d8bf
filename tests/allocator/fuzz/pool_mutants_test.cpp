// The fuzzer finds every seeded bug and shrinks it to a few operations.
#include "tests/allocator/fuzz/episode.h"
#include "tests/allocator/fuzz/mutant_pools.h"

namespace poolgrad::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const auto is_too_early = AnyOf(HasSubstr("used by another stream"), HasSubstr("may still be using"));

// Pools of few pages and several streams, where every kind of bug can show.
template <class PoolType>
std::optional<Failure> hunt(std::size_t episodes = 40) {
  for (std::size_t episode = 0; episode < episodes; ++episode) {
    Random random(test_seed() + episode);
    PoolSetup setup;
    setup.device = random.pick(std::array{"host", "sim", "handles"});
    setup.granularity = 64 * KiB;
    setup.config.budget = setup.granularity * (4 + random.below(12));
    setup.delayed = true;
    const Shape shape{.slots = 24, .octaves = 19, .streams = 3};
    if (auto failure = run_episode<PoolType>(setup, random_script(random, setup, shape, 500))) return failure;
  }
  return std::nullopt;
}

// Number of operations that are easy to read; searches start from thousands.
constexpr std::size_t short_script = 32;

#define EXPECT_FOUND(PoolType, matcher)                                 \
  do {                                                                  \
    const auto failure = hunt<PoolType>();                              \
    ASSERT_TRUE(failure) << "no bug found in " #PoolType;               \
    EXPECT_THAT(failure->what, matcher) << failure->text();             \
    EXPECT_LE(failure->script.size(), short_script) << failure->text(); \
  } while (false)

TEST(PoolMutants, ThePoolItselfHasNoFault) {
  const auto failure = hunt<CachingAllocator>(10);
  EXPECT_FALSE(failure) << failure->text();
}

TEST(PoolMutants, OverlappingBlocksAreFound) { EXPECT_FOUND(OverlappingPool, HasSubstr("overlaps live slot")); }

TEST(PoolMutants, EarlyReuseIsFound) { EXPECT_FOUND(HastyPool, is_too_early); }

TEST(PoolMutants, OnePageBeyondTheBudgetIsFound) { EXPECT_FOUND(GenerousPool, HasSubstr("beyond the budget")); }

TEST(PoolMutants, NeedlessRefusalsAreFound) { EXPECT_FOUND(TimidPool, HasSubstr("refused although it fits")); }

TEST(PoolMutants, UncountedAllocationsAreFound) { EXPECT_FOUND(ForgetfulPool, HasSubstr("requests is not")); }

TEST(PoolMutants, LostFreesAreFound) {
  EXPECT_FOUND(LeakyPool, AnyOf(HasSubstr("never handed out"), HasSubstr("trim() leaves"), HasSubstr("refused"),
                                HasSubstr("a budget is refused"), HasSubstr("overlaps"), HasSubstr("sum of")));
}

TEST(PoolMutants, MissingAlignmentIsFound) { EXPECT_FOUND(CrookedPool, HasSubstr("not aligned")); }

TEST(PoolMutants, AnAbortIsFound) { EXPECT_FOUND(DyingPool, HasSubstr("ended by Abort")); }

TEST(PoolMutants, ReuseWithoutWaitingIsFound) { EXPECT_FOUND(RushingPool, is_too_early); }

TEST(PoolMutants, IgnoredUsesAreFound) { EXPECT_FOUND(IgnorantPool, is_too_early); }

TEST(PoolMutants, IgnoredEndsOfStreamsAreFound) {
  EXPECT_FOUND(NostalgicPool, AnyOf(is_too_early, HasSubstr("not there")));
}

}  // namespace
}  // namespace poolgrad::testing
