#include "allocator/oom_report.h"

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string failing_report(CachingAllocator& pool, std::size_t bytes, Tag tag = {}) {
  const auto result = pool.try_allocate({.bytes = bytes, .alignment = 64, .stream = stream_of(pool), .tag = tag});
  EXPECT_TRUE(std::holds_alternative<std::string>(result));
  return std::get<std::string>(result);
}

TEST(OomReport, SaysWhereEveryByteIs) {
  CachingAllocator pool(make_memory("sim", 64 * MiB), {.budget = 16 * MiB});
  const auto scoped = [&](const char* name, Category category, std::size_t bytes) {
    const MemoryScope scope(name, category);
    return pool.allocate(bytes, 64, stream_of(pool));
  };
  scoped("block0.attention", Category::activation, 4 * MiB);
  scoped("block1.feed_forward", Category::activation, 3 * MiB);
  scoped("model", Category::parameter, 2 * MiB);
  void* freed = allocate(pool, 2 * MiB + 100);
  scoped("loss", Category::gradient, 1000);
  deallocate(pool, freed, 2 * MiB + 100);
  const MemoryScope scope("block2.attention");
  EXPECT_EQ(failing_report(pool, 8000000, {Category::scores, current_tag().scope}),
            "[allocate] out of memory on sim:0: 7.63 MiB (8000000 B) for scores in block2.attention\n"
            "  rounded to 7.63 MiB (8000000 B)\n"
            "  budget 16.00 MiB (16777216 B), reserved 12.00 MiB, free on the device 52.00 MiB\n"
            "  live 9.00 MiB, cached 3.00 MiB, pending 0 B, largest free run 2.00 MiB\n"
            "  live by category: activation 7.00 MiB, parameter 2.00 MiB, gradient 1.00 KiB\n"
            "  live by scope: block0.attention 4.00 MiB, block1.feed_forward 3.00 MiB, model 2.00 MiB, loss 1.00 KiB\n"
            "  tried: poll pending frees 0 B; take from other streams 0 B; coalesce streams 0 B; commit 0 B; release "
            "cached pages 0 B; synchronise pending frees 0 B; borrow from the other arena 0 B; wait for other threads "
            "0 B\n"
            "  a budget of 20.00 MiB (20971520 B) would have held this request");
}

TEST(OomReport, GivesAdviceThatIsTrue) {
  CachingAllocator pool(make_memory("sim", 64 * MiB), {.budget = 16 * MiB});
  void* block = allocate(pool, 10 * MiB);
  EXPECT_THAT(failing_report(pool, 9 * MiB), HasSubstr("a budget of 20.00 MiB (20971520 B) would have held"));
  pool.set_budget(20971520);
  EXPECT_NO_THROW(allocate(pool, 9 * MiB));
  deallocate(pool, block, 10 * MiB);
}

TEST(OomReport, GivesNoAdviceWhenTheDeviceIsTooSmall) {
  CachingAllocator pool(make_memory("sim", 16 * MiB));
  EXPECT_THAT(failing_report(pool, 17 * MiB), Not(HasSubstr("would have held")));
}

TEST(OomReport, ShowsTheLargestScopesAndSumsTheRest) {
  OomFacts facts;
  for (std::size_t i = 1; i <= 8; ++i) facts.live_by_scope.emplace_back("s" + std::to_string(i), i * MiB);
  EXPECT_THAT(oom_report(facts), HasSubstr("live by scope: s8 8.00 MiB, s7 7.00 MiB, s6 6.00 MiB, s5 5.00 MiB, "
                                           "s4 4.00 MiB, others 6.00 MiB\n"));
}

TEST(OomReport, LeavesThePoolUsable) {
  CachingAllocator pool(make_memory("host", 64 * MiB), {.budget = 4 * MiB});
  void* block = allocate(pool, 3 * MiB);
  EXPECT_THROW(allocate(pool, 3 * MiB), OutOfMemoryError);
  void* smaller = allocate(pool, MiB);
  deallocate(pool, block, 3 * MiB);
  deallocate(pool, smaller, MiB);
  expect_invariants(pool);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
}

}  // namespace
}  // namespace poolgrad::testing
