// Bad input gives one sentence, and the pool stays unchanged. Where memory is already corrupt, the program ends.
#include <cstdlib>

#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class BadInput : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, BadInput, devices, device_name);
using BadFreeDeathTest = BadInput;
INSTANTIATE_TEST_SUITE_P(Devices, BadFreeDeathTest, devices, device_name);

TEST_P(BadInput, ABudgetBelowTheLiveBytesIsRefused) {
  CachingAllocator pool(memory(), {.budget = 8 * page});
  void* live = allocate(pool, 3 * page);
  void* cached = allocate(pool, 2 * page);
  deallocate(pool, cached, 2 * page);
  EXPECT_THAT(
      [&] { pool.set_budget(2 * page); },
      ThrowsMessage<ValueError>(AllOf(HasSubstr("[set_budget]"), HasSubstr("4.00 MiB"), HasSubstr("6.00 MiB"))));
  EXPECT_EQ(pool.budget(), 8 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 5 * page);
  pool.set_budget(3 * page);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 3 * page);
  EXPECT_EQ(pool.budget(), 3 * page);
  deallocate(pool, live, 3 * page);
  expect_invariants(pool);
}

TEST_P(BadInput, AlignmentsMustBePowersOfTwo) {
  CachingAllocator pool(memory());
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{65}, std::size_t{96}, SIZE_MAX}) {
    EXPECT_THROW(pool.allocate(100, alignment, stream_of(pool)), ValueError) << alignment;
  }
  expect_invariants(pool);
}

TEST_P(BadInput, SizesNearTheEndOfTheAddressSpaceAreRefusedWithAReport) {
  CachingAllocator pool(memory());
  for (const std::size_t bytes :
       {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 63, SIZE_MAX - 4096, SIZE_MAX / 2 + 1, SIZE_MAX / 2}) {
    for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, std::size_t{4096}, 4 * page}) {
      EXPECT_THAT([&] { pool.allocate(bytes, alignment, stream_of(pool)); },
                  ThrowsMessage<OutOfMemoryError>(HasSubstr("out of memory")));
    }
  }
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  deallocate(pool, allocate(pool, page), page);
  expect_invariants(pool);
}

TEST_P(BadInput, AlignmentsBeyondTheBudgetAreRefusedWithAReport) {
  CachingAllocator pool(memory(), {.budget = 4 * page});
  for (std::size_t alignment = std::size_t{1} << 63; alignment >= std::size_t{1} << 40; alignment /= 2) {
    const auto result = pool.try_allocate({.bytes = 64, .alignment = alignment, .stream = stream_of(pool)});
    // The address space is large, so the call may succeed. Its result is then aligned.
    if (void* const* pointer = std::get_if<void*>(&result)) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*pointer) % alignment, 0u);
      pool.deallocate(*pointer, 64, alignment, stream_of(pool));
    }
  }
  expect_invariants(pool);
}

TEST_P(BadInput, ExpandingBeyondAllMemoryIsRefusedAndChangesNothing) {
  CachingAllocator pool(memory(), {.budget = 4 * page});
  void* block = allocate(pool, 1000);
  for (const std::size_t wanted : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, 5 * page})
    EXPECT_FALSE(pool.expand_in_place(block, 1000, wanted, stream_of(pool))) << wanted;
  deallocate(pool, block, 1000);
  expect_invariants(pool);
}

TEST_P(BadFreeDeathTest, ADoubleFreeIsNamed) {
  CachingAllocator pool(memory());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{64}, std::size_t{1000}, 3 * page}) {
    void* other = allocate(pool, bytes);
    void* block = allocate(pool, bytes);
    deallocate(pool, block, bytes);
    EXPECT_DEATH(deallocate(pool, block, bytes), "\\[deallocate\\] double free of 0x") << bytes;
    deallocate(pool, other, bytes);
  }
}

TEST_P(BadFreeDeathTest, ADoubleFreeFarFromTheFirstIsNamed) {
  CachingAllocator pool(memory());
  std::vector<void*> blocks(200);
  for (void*& block : blocks) block = allocate(pool, 1000);
  for (void* block : blocks) deallocate(pool, block, 1000);
  EXPECT_DEATH(deallocate(pool, blocks[0], 1000), "\\[deallocate\\] (double free of|foreign pointer) 0x");
  EXPECT_DEATH(deallocate(pool, blocks[100], 1000), "\\[deallocate\\] .*0x");
}

TEST_P(BadFreeDeathTest, ADoubleFreeOfAPendingBlockIsNamed) {
  auto delayed = std::make_unique<DelayedMemory>(memory());
  CachingAllocator pool(std::move(delayed));
  void* block = allocate(pool, page, Category::activation, 1);
  deallocate(pool, block, page, 2);
  EXPECT_DEATH(deallocate(pool, block, page, 2), "\\[deallocate\\] double free of 0x");
}

TEST_P(BadFreeDeathTest, AForeignPointerIsNamed) {
  CachingAllocator pool(memory());
  CachingAllocator other(make_memory(GetParam(), 64 * page));
  auto* block = static_cast<char*>(allocate(pool, 1000));
  int local = 0;
  EXPECT_DEATH(deallocate(pool, &local, 4), "\\[deallocate\\] foreign pointer");
  EXPECT_DEATH(deallocate(pool, reinterpret_cast<void*>(std::uintptr_t{64}), 4), "\\[deallocate\\] foreign pointer");
  EXPECT_DEATH(deallocate(pool, reinterpret_cast<void*>(~std::uintptr_t{63}), 4), "\\[deallocate\\] foreign pointer");
  // Inside the window, at an address that was never committed.
  EXPECT_DEATH(deallocate(pool, block + 64 * page, 4), "\\[deallocate\\] ");
  if (GetParam() == std::string("host")) {
    void* theirs = allocate(other, 1000);
    EXPECT_DEATH(deallocate(pool, theirs, 1000), "\\[deallocate\\] foreign pointer");
    deallocate(other, theirs, 1000);
  }
  deallocate(pool, block, 1000);
}

TEST_P(BadFreeDeathTest, APointerIntoABlockIsNamed) {
  CachingAllocator pool(memory());
  for (const std::size_t bytes : {std::size_t{1000}, 3 * page}) {
    auto* block = static_cast<char*>(allocate(pool, bytes));
    EXPECT_DEATH(deallocate(pool, block + 64, bytes - 64), "\\[deallocate\\] .*not the start of a block");
    EXPECT_DEATH(deallocate(pool, block + bytes / 2, bytes / 2), "\\[deallocate\\] .*not the start of a block");
    EXPECT_DEATH(deallocate(pool, block + 1, bytes), "\\[deallocate\\] .*not the start of a block");
    deallocate(pool, block, bytes);
  }
}

TEST_P(BadFreeDeathTest, AWrongSizeIsNamed) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{999}, std::size_t{1001}, std::size_t{1024}, SIZE_MAX})
    EXPECT_DEATH(deallocate(pool, block, bytes), "\\[deallocate\\] wrong size for .*it has 1000 bytes") << bytes;
  ASSERT_TRUE(pool.expand_in_place(block, 1000, 500, stream_of(pool)));
  EXPECT_DEATH(deallocate(pool, block, 1000), "\\[deallocate\\] wrong size for .*it has 500 bytes, not 1000");
  deallocate(pool, block, 500);
}

TEST_P(BadFreeDeathTest, AStreamOfAnotherDeviceIsNamed) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  const Stream stream{Device::parse("sim:77"), 0};
  EXPECT_DEATH(pool.deallocate(block, 1000, 64, stream), "\\[deallocate\\] .*sim:77");
  EXPECT_THROW(pool.allocate(1000, 64, stream), DeviceError);
  deallocate(pool, block, 1000);
  expect_invariants(pool);
}

// The environment: mistyped values of POOLGRAD_ALLOCATOR.

TEST(AllocatorText, NamesUnknownKeysAndListsTheKnownOnes) {
  for (const char* text : {"bugdet:1GiB", "stitch:on,magazine:on", "BUDGET:1GiB", "poison :on:", ":on"}) {
    EXPECT_THAT([&] { AllocatorConfig::parse(text); }, ThrowsMessage<ValueError>(HasSubstr("[allocator]"))) << text;
  }
  EXPECT_THAT([] { AllocatorConfig::parse("fancy:on"); },
              ThrowsMessage<ValueError>(AllOf(HasSubstr("'fancy'"), HasSubstr("alignment"), HasSubstr("budget"),
                                              HasSubstr("decay"), HasSubstr("deterministic"), HasSubstr("magazines"),
                                              HasSubstr("mode"), HasSubstr("poison"), HasSubstr("stitch"),
                                              HasSubstr("trace"))));
}

TEST(AllocatorText, RefusesMalformedValues) {
  for (const char* text :
       {"budget:-1", "budget:", "budget:1e9", "budget:99999999999999999999", "alignment:0", "alignment:48",
        "alignment:-64", "mode:fast", "mode:", "magazines:yes", "deterministic:", "decay:-3", "decay:many",
        "trace:on:off", "trace:0x10", "poison:On", "budget", "budget=8GiB"}) {
    EXPECT_THROW(CachingAllocator(make_memory("sim", page), AllocatorConfig::parse(text)), ValueError) << text;
  }
}

TEST(AllocatorText, RoundTrips) {
  AllocatorConfig config;
  config.budget = 3 * page + 1;
  config.alignment = 256;
  config.poison = true;
  config.mode = AllocatorMode::lightweight;
  config.magazines = false;
  config.stitch = false;
  config.stitch_idle = true;
  config.deterministic = true;
  config.decay = 77;
  config.decay_ms = 1500;
  config.trace = 1234;
  const AllocatorConfig again = AllocatorConfig::parse(config.text());
  EXPECT_EQ(again.budget, config.budget);
  EXPECT_EQ(again.alignment, config.alignment);
  EXPECT_EQ(again.poison, config.poison);
  EXPECT_EQ(again.mode, config.mode);
  EXPECT_EQ(again.magazines, config.magazines);
  EXPECT_EQ(again.stitch, config.stitch);
  EXPECT_EQ(again.stitch_idle, config.stitch_idle);
  EXPECT_EQ(again.deterministic, config.deterministic);
  EXPECT_EQ(again.decay, config.decay);
  EXPECT_EQ(again.decay_ms, config.decay_ms);
  EXPECT_EQ(again.trace, config.trace);
  EXPECT_EQ(AllocatorConfig().text(), "");
}

TEST(AllocatorText, ABadEnvironmentFailsTheFirstPoolOnly) {
  ASSERT_EQ(setenv("POOLGRAD_ALLOCATOR", "budget:lots", 1), 0);
  EXPECT_THAT([] { allocator_for(Device::parse("sim:201")); }, ThrowsMessage<ValueError>(HasSubstr("'lots'")));
  ASSERT_EQ(unsetenv("POOLGRAD_ALLOCATOR"), 0);
  EXPECT_EQ(allocator_for(Device::parse("sim:201")).device(), Device::parse("sim:201"));
}

}  // namespace
}  // namespace poolgrad::testing
