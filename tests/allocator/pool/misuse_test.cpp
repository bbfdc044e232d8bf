// Wrong frees end the program with a message; poison shows reads of freed or uninitialized memory.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "allocator/base/address_sanitizer.h"
#include "allocator/memory/memory_adaptor.h"
#include "tests/allocator/memory/test_memories.h"
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
  EXPECT_DEATH(deallocate(pool, &local, 4), "foreign pointer .* this pool did not allocate it");
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

// Reads memory right after it was filled, because free memory must not be read.
class FillWatch : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;
  std::vector<std::size_t> nans;  // floats found to be NaN, per call

  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override {
    inner().fill(address, bytes, value, stream);
    const auto* floats = static_cast<const float*>(address);
    nans.push_back(static_cast<std::size_t>(
        std::count_if(floats, floats + bytes / sizeof(float), [](float x) { return std::isnan(x); })));
  }
};

TEST(Poison, FillsBlocksWithNansAtAllocationAndAtFree) {
  auto memory = std::make_unique<FillWatch>(make_memory("host", 64 * MiB));
  FillWatch* watch = memory.get();
  CachingAllocator pool(std::move(memory), {.poison = true});
  auto* block = static_cast<float*>(allocate(pool, 4000));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(std::isnan(block[i]));
  for (int i = 0; i < 1000; ++i) block[i] = 1.0f;
  deallocate(pool, block, 4000);
  EXPECT_THAT(watch->nans, ::testing::ElementsAre(1000u, 1000u));
  EXPECT_EQ(allocate(pool, 4000), block);
  expect_invariants(pool);
}

TEST(Poison, FillsTheGrowthAndTheRestOfABlock) {
  auto memory = std::make_unique<FillWatch>(make_memory("host", 64 * MiB));
  FillWatch* watch = memory.get();
  CachingAllocator pool(std::move(memory), {.poison = true});
  auto* block = static_cast<float*>(allocate(pool, 4000));
  std::fill(block, block + 1000, 1.0f);
  ASSERT_TRUE(pool.expand_in_place(block, 4000, 8000, stream_of(pool)));
  EXPECT_EQ(block[999], 1.0f);
  for (int i = 1000; i < 2000; ++i) ASSERT_TRUE(std::isnan(block[i]));
  std::fill(block, block + 2000, 2.0f);
  ASSERT_TRUE(pool.expand_in_place(block, 8000, 2000, stream_of(pool)));
  EXPECT_EQ(block[499], 2.0f);
  EXPECT_THAT(watch->nans, ::testing::ElementsAre(1000u, 1000u, 1500u));
  expect_invariants(pool);
  deallocate(pool, block, 2000);
}

TEST(Poison, KeepsABlockLiveWhenItsFillFails) {
  auto memory = std::make_unique<FailingMemory>(make_memory("host", 64 * MiB));
  FailingMemory* failing = memory.get();
  CachingAllocator pool(std::move(memory), {.poison = true});
  void* block = allocate(pool, 4000);
  failing->fail_call(failing->calls() + 1);
  EXPECT_THROW(pool.expand_in_place(block, 4000, 8000, stream_of(pool)), DeviceError);
  EXPECT_EQ(pool.statistics().requested_bytes.current, 4000u);
  EXPECT_TRUE(pool.expand_in_place(block, 4000, 8000, stream_of(pool)));
  expect_invariants(pool);
  deallocate(pool, block, 8000);
}

#ifdef POOLGRAD_ADDRESS_SANITIZER
TEST(AddressSanitizerDeathTest, ReportsTensorMemoryLikeAnyOther) {
  CachingAllocator pool(make_memory("host", 64 * MiB));
  auto* block = static_cast<volatile char*>(allocate(pool, 100));
  block[99] = 1;
  EXPECT_DEATH(block[100] = 1, "use-after-poison");
  ASSERT_TRUE(pool.expand_in_place(const_cast<char*>(block), 100, 1000, stream_of(pool)));
  block[999] = 1;
  EXPECT_DEATH(block[1000] = 1, "use-after-poison");
  ASSERT_TRUE(pool.expand_in_place(const_cast<char*>(block), 1000, 100, stream_of(pool)));
  block[99] = 1;
  EXPECT_DEATH(block[100] = 1, "use-after-poison");
  EXPECT_DEATH(block[999] = 1, "use-after-poison");
  deallocate(pool, const_cast<char*>(block), 100);
  EXPECT_DEATH(block[0] = 1, "use-after-poison");
}
#endif

TEST(CachedMemory, KeepsThePatternsOf100000Blocks) {
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
