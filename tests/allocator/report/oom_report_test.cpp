#include "allocator/report/oom_report.h"

#include <regex>
#include <source_location>

#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string failing_report(CachingAllocator& pool, std::size_t bytes, Tag tag = {}) {
  const auto result = pool.try_allocate({.bytes = bytes, .alignment = 64, .stream = stream_of(pool), .tag = tag});
  EXPECT_TRUE(std::holds_alternative<std::string>(result));
  return std::get<std::string>(result);
}

// Removes the stage times and the source line of the request, which differ between runs and edits.
std::string golden(const std::string& report) {
  return std::regex_replace(report, std::regex(" in [0-9]+ us|\n  asked for by [^\n]*"), "");
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
  const std::string report = failing_report(pool, 8000000, {Category::scores, current_tag().scope});
  EXPECT_THAT(report, HasSubstr("commit 0 B in "));
  EXPECT_EQ(golden(report),
            "[allocate] out of memory on sim:0: 7.63 MiB (8000000 B) for scores in block2.attention\n"
            "  rounded to 7.63 MiB (8000000 B)\n"
            "  budget 16.00 MiB (16777216 B), reserved 12.00 MiB, free on the device 52.00 MiB\n"
            "  live 9.00 MiB, rounding waste 24 B, pending free 0 B, releasable cache 0 B, stranded free 3.00 MiB, "
            "largest free run 2.00 MiB\n"
            "  pinned by: 1000 B of gradient in loss (2.00 MiB), 3.00 MiB of activation in block1.feed_forward (1.00 "
            "MiB)\n"
            "  live by category: activation 7.00 MiB, parameter 2.00 MiB, gradient 1000 B\n"
            "  live by scope: block0.attention 4.00 MiB, block1.feed_forward 3.00 MiB, model 2.00 MiB, loss 1000 B\n"
            "  tried: poll pending frees 0 B; take from other streams 0 B; drain magazines 0 B; coalesce streams 0 B; "
            "stitch 0 B; commit 0 B; release cached pages 0 B; synchronise pending frees 0 B; borrow from the other "
            "arena 0 B; wait for other threads 0 B; callback 0 B\n"
            "  a budget of 20.00 MiB (20971520 B) would have held this request");
}

TEST(OomReport, NamesTheCallSiteAndOmitsAMissingCategory) {
  CachingAllocator pool(make_memory("sim", 64 * MiB), {.budget = 4 * MiB});
  const auto line = std::source_location::current().line() + 2;
  try {
    pool.allocate(8 * MiB, 64, stream_of(pool));
    FAIL() << "it does not fit";
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("8.00 MiB (8388608 B)\n  asked for by "));
    EXPECT_THAT(error.what(), HasSubstr("oom_report_test.cpp:" + std::to_string(line) + "\n  rounded to"));
  }
}

TEST(OomReport, DoesNotRoundImpossibleSizes) {
  CachingAllocator pool(make_memory("sim", 64 * MiB));
  EXPECT_THAT(failing_report(pool, std::size_t{1} << 62),
              AllOf(HasSubstr("4.00 EiB (4611686018427387904 B)"), Not(HasSubstr("rounded to"))));
}

TEST(OomReport, AgreesWithItselfOnTheLiveBytes) {
  CachingAllocator pool(make_memory("sim", 64 * MiB), {.budget = 4 * MiB});
  {
    const MemoryScope scope("many", Category::input);
    for (int i = 0; i < 1000; ++i) pool.allocate(100, 64, stream_of(pool));
  }
  const std::string report = failing_report(pool, 8 * MiB);
  EXPECT_THAT(report, HasSubstr("\n  live 97.66 KiB, rounding waste 27.34 KiB"));
  EXPECT_THAT(report, HasSubstr("live by category: input 97.66 KiB\n"));
  EXPECT_THAT(report, HasSubstr("live by scope: many 97.66 KiB\n"));
}

TEST(OomReport, TellsReleasableFromStrandedAndPending) {
  // Two pages are free, half a page is free beside a live block, one page waits for stream 1 for ever.
  class Stuck : public DelayedMemory {
   public:
    using DelayedMemory::DelayedMemory;
    void synchronize(EventId) override { throw DeviceError("[synchronize] stuck"); }
    void stream_wait(Stream, EventId) override { throw DeviceError("[stream_wait] stuck"); }
  };
  CachingAllocator pool(std::make_unique<Stuck>(make_memory("sim", 64 * MiB)), {.budget = 8 * MiB});
  void* waiting = allocate(pool, page);
  void* wall = allocate(pool, page / 2);
  void* free = allocate(pool, 2 * page + page / 2);
  deallocate(pool, free, 2 * page + page / 2);
  deallocate(pool, waiting, page, 1);
  const std::string report = failing_report(pool, 4 * page);
  EXPECT_THAT(report, HasSubstr("live 1.00 MiB, rounding waste 0 B, pending free 2.00 MiB, releasable cache 4.00 MiB, "
                                "stranded free 1.00 MiB, largest free run 5.00 MiB\n"
                                "  pinned by: 1.00 MiB of activation (1.00 MiB)\n"));
  deallocate(pool, wall, page / 2);
}

TEST(OomReport, NamesTheFiveLargestPinners) {
  OomFacts facts;
  for (std::size_t i = 1; i <= 7; ++i) {
    facts.pinners.push_back({.tag = {Category::gradient, 0}, .requested = i, .stranded = i * MiB});
  }
  EXPECT_THAT(oom_report(facts),
              HasSubstr("  pinned by: 7 B of gradient (7.00 MiB), 6 B of gradient (6.00 MiB), 5 B of "
                        "gradient (5.00 MiB), 4 B of gradient (4.00 MiB), 3 B of gradient (3.00 "
                        "MiB), 2 others\n"));
}

TEST(OomReport, EndsWithTheAdvice) {
  OomFacts facts;
  facts.advice = {"stitch:on would have held this request"};
  EXPECT_THAT(oom_report(facts), ::testing::EndsWith("\n  stitch:on would have held this request"));
}

TEST(OomReport, GivesNoReplayedAdviceWithoutTheLaboratory) {
  CachingAllocator pool(make_memory("sim", 64 * MiB), {.budget = 8 * MiB, .alignment = MiB, .trace = 1000});
  for (int i = 0; i < 8; ++i) allocate(pool, 1000);
  EXPECT_THAT(failing_report(pool, MiB), Not(HasSubstr("would have served it")));
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
  for (std::size_t i = 1; i <= 8; ++i) {
    const MemoryScope scope("s" + std::to_string(i));
    facts.live_by_scope[current_tag().scope] = i * MiB;
  }
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
