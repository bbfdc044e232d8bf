// Offline packing: live blocks never share bytes, and the result is close to the lower bound.
#include "allocator/planner/packer.h"

#include <gtest/gtest.h>

#include <random>

#include "allocator/error.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

bool live_together(const PackItem& a, const PackItem& b) {
  // Checks the definition: compares the two at every moment.
  const auto live = [](const PackItem& item, std::uint32_t time) {
    return item.end > item.begin ? time >= item.begin && time < item.end : time >= item.begin || time < item.end;
  };
  return live(a, b.begin) || live(b, a.begin);
}

void expect_valid(const std::vector<PackItem>& items, const Packing& packing) {
  ASSERT_EQ(packing.offsets.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(packing.offsets[i] % 64, 0u);
    EXPECT_LE(packing.offsets[i] + items[i].bytes, packing.bytes);
    for (std::size_t j = 0; j < i; ++j) {
      if (!live_together(items[i], items[j])) continue;
      EXPECT_TRUE(packing.offsets[i] + items[i].bytes <= packing.offsets[j] ||
                  packing.offsets[j] + items[j].bytes <= packing.offsets[i])
          << i << " and " << j;
    }
  }
  EXPECT_GE(packing.bytes, packing.lower_bound);
}

TEST(Packer, PacksNoItemsIntoNoBytes) {
  const Packing packing = pack({});
  EXPECT_EQ(packing.bytes, 0u);
  EXPECT_TRUE(packing.offsets.empty());
}

TEST(Packer, ReusesBytesForLaterBlocks) {
  const std::vector<PackItem> items = {{640, 0, 1}, {640, 1, 2}, {640, 2, 3}};
  const Packing packing = pack(items);
  expect_valid(items, packing);
  EXPECT_EQ(packing.bytes, 640u);
}

TEST(Packer, RoundsSizesToTheGranule) {
  const std::vector<PackItem> items = {{1, 0, 3}, {65, 1, 4}, {0, 2, 3}};
  const Packing packing = pack(items);
  EXPECT_EQ(packing.lower_bound, 192u);
  EXPECT_EQ(packing.bytes, 192u);
}

TEST(Packer, KeepsABlockOfTheNextRepetitionApart) {
  // Lives from 5 to the end, and from the start to 2.
  const std::vector<PackItem> items = {{64, 5, 2}, {64, 0, 1}, {64, 1, 3}, {64, 2, 5}, {64, 4, 6}};
  const Packing packing = pack(items);
  expect_valid(items, packing);
  EXPECT_EQ(packing.bytes, 128u);
}

TEST(Packer, FindsPlacesThatNeverOverlap) {
  const auto seed = static_cast<unsigned>(seed_or(std::random_device{}()));
  SCOPED_TRACE("POOLGRAD_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 40; ++round) {
    const std::uint32_t ends = 2 + below(200);
    std::vector<PackItem> items;
    for (std::uint32_t i = below(150); i > 0; --i) {
      const std::uint32_t begin = below(ends);
      std::uint32_t end = begin + 1 + below(ends - begin);
      if (below(10) == 0 && begin != 0) end = below(begin);
      items.push_back({below(1u << below(24)), begin, end});
    }
    expect_valid(items, pack(items));
  }
}

TEST(Packer, IsTheSameEveryTime) {
  std::mt19937 random(1);
  std::vector<PackItem> items;
  for (std::uint32_t i = 0; i < 500; ++i)
    items.push_back({random() % 100000, i, i + 1 + static_cast<std::uint32_t>(random() % 50)});
  EXPECT_EQ(pack(items).offsets, pack(items).offsets);
}

TEST(Packer, RefusesSizesThatDoNotAddUp) {
  EXPECT_THROW(pack({{UINT64_MAX - 5, 0, 1}}), ValueError);
  EXPECT_THROW(pack({{std::uint64_t{1} << 61, 0, 1}, {std::uint64_t{1} << 61, 0, 1}}), ValueError);
}

}  // namespace
}  // namespace poolgrad
