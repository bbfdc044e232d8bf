// The part of a block that expand_in_place() frees waits for its stream like a freed block.
#include "tests/allocator/fuzz/episode.h"

namespace poolgrad::testing {
namespace {

using Kind = Operation::Kind;

TEST(ShrinkingBlocks, MakeAnotherStreamWaitForTheirRest) {
  EXPECT_EQ(run_script<CachingAllocator>({.granularity = 64 * KiB, .delayed = true},
                                         {{.kind = Kind::allocate, .slot = 0, .stream = 2, .bytes = 32768},
                                          {.kind = Kind::expand, .slot = 0, .bytes = 0},
                                          {.kind = Kind::allocate, .slot = 1, .stream = 0, .bytes = 64}}),
            "");
}

TEST(ShrinkingBlocks, KeepTheirPagesUntilTheStreamIsDone) {
  EXPECT_EQ(run_script<CachingAllocator>({}, {{.kind = Kind::allocate, .slot = 0, .stream = 0, .bytes = 4 * page},
                                              {.kind = Kind::expand, .slot = 0, .bytes = 0},
                                              {.kind = Kind::trim, .bytes = 64}}),
            "");
}

}  // namespace
}  // namespace poolgrad::testing
