// If poisoning a block fails, the pool neither allocates nor loses that block.
#include "tests/allocator/fuzz/episode.h"

namespace poolgrad::testing {
namespace {

TEST(FailingPoison, LeaksNoBlock) {
  using Kind = Operation::Kind;
  const PoolSetup setup{.config = {.poison = true, .magazines = false}};
  for (std::size_t call = 1; call < 8; ++call) {
    EXPECT_EQ(run_script<CachingAllocator>(setup, {{.kind = Kind::fail_call, .bytes = call},
                                                   {.kind = Kind::allocate, .slot = 0, .bytes = 100},
                                                   {.kind = Kind::free, .slot = 0, .stream = Operation::own_stream},
                                                   {.kind = Kind::allocate, .slot = 1, .bytes = 100}}),
              "")
        << call;
  }
}

}  // namespace
}  // namespace poolgrad::testing
