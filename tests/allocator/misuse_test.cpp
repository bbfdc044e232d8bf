// Wrong frees end the program with a sentence; poison shows reads of memory that is not yours.
#include <cmath>
#include <cstring>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

class MisuseDeathTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, MisuseDeathTest, devices, device_name);

TEST_P(MisuseDeathTest, NamesADoubleFree) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  deallocate(pool, block, 1000);
  EXPECT_DEATH(deallocate(pool, block, 1000), "\\[deallocate\\] double free of 0x");
}

TEST_P(MisuseDeathTest, NamesAForeignPointer) {
  CachingAllocator pool(memory());
  allocate(pool, 1000);
  int local = 0;
  EXPECT_DEATH(deallocate(pool, &local, 4), "foreign pointer .* this pool never handed it out");
}

TEST_P(MisuseDeathTest, NamesAPointerIntoABlock) {
  CachingAllocator pool(memory());
  auto* block = static_cast<char*>(allocate(pool, 1000));
  EXPECT_DEATH(deallocate(pool, block + 128, 872), "not the start of a block: .* 128 bytes into a block of 1000");
  EXPECT_DEATH(deallocate(pool, block + 1, 999), "not the start of a block: .* 1 bytes into a block of 1000");
}

TEST_P(MisuseDeathTest, NamesAWrongSize) {
  CachingAllocator pool(memory());
  void* block = allocate(pool, 1000);
  EXPECT_DEATH(deallocate(pool, block, 999), "wrong size for .* it has 1000 bytes, not 999");
}

TEST(Poison, FillsMemoryThatIsHandedOutAndComesBack) {
  CachingAllocator pool(make_memory("host", 64 * MiB), {.poison = true});
  auto* block = static_cast<float*>(allocate(pool, 4000));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(std::isnan(block[i]));
  for (int i = 0; i < 1000; ++i) block[i] = 1.0f;
  deallocate(pool, block, 4000);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(std::isnan(block[i]));
  EXPECT_EQ(allocate(pool, 4000), block);
  expect_invariants(pool);
}

TEST(CachedMemory, KeepsThePatternOfOneHundredThousandBlocks) {
  CachingAllocator pool(make_memory("host", 1024 * MiB));
  struct Live {
    unsigned char* pointer;
    std::size_t bytes;
    unsigned char pattern;
  };
  std::vector<Live> live;
  std::uint64_t state = 12345;
  const auto next = [&] { return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33; };
  const auto intact = [](const Live& block) {
    for (std::size_t i = 0; i < block.bytes; ++i) {
      if (block.pointer[i] != block.pattern) return false;
    }
    return true;
  };
  for (int i = 0; i < 100000; ++i) {
    const std::size_t bytes = 1 + next() % (i % 1000 == 0 ? 20000u : 300u);
    const auto pattern = static_cast<unsigned char>(i % 251);
    auto* pointer = static_cast<unsigned char*>(allocate(pool, bytes));
    std::memset(pointer, pattern, bytes);
    live.push_back({pointer, bytes, pattern});
    if (next() % 4 == 0) {
      std::swap(live[next() % live.size()], live.back());
      ASSERT_TRUE(intact(live.back()));
      deallocate(pool, live.back().pointer, live.back().bytes);
      live.pop_back();
    }
  }
  for (const Live& block : live) {
    ASSERT_TRUE(intact(block));
    deallocate(pool, block.pointer, block.bytes);
  }
  EXPECT_EQ(pool.statistics().allocated_bytes.current, 0u);
  expect_invariants(pool);
}

}  // namespace
}  // namespace poolgrad::testing
