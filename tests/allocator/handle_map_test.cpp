#include "allocator/handle_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace poolgrad {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t page = 2 * MiB;
constexpr std::uintptr_t base = 0x7f0000000000;

TEST(HandleSizes, AreSinglePagesForSmallGrowth) {
  EXPECT_THAT(handle_sizes(base, 3 * page, page), ElementsAre(page, page, page));
  EXPECT_THAT(handle_sizes(base, 16 * page, page), Each(page));
  EXPECT_EQ(handle_sizes(base, 16 * page, page).size(), 16u);
}

TEST(HandleSizes, AreNoMoreThanASixteenthOfTheGrowth) {
  for (const std::size_t bytes : {32 * page, 100 * page, 511 * page, 512 * page, 3000 * page, 50000 * page}) {
    const auto sizes = handle_sizes(base, bytes, page);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), bytes);
    EXPECT_LE(*std::ranges::max_element(sizes), std::min(bytes / 16, 64 * MiB));
    EXPECT_GE(*std::ranges::max_element(sizes), std::min(bytes / 32, 64 * MiB));
  }
}

TEST(HandleSizes, AreNaturallyAlignedPowersOfTwo) {
  for (const std::size_t offset : {page, 3 * page, 31 * page, 32 * page}) {
    std::uintptr_t address = base + offset;
    for (const std::size_t size : handle_sizes(address, 1000 * page, page)) {
      EXPECT_EQ(size & (size - 1), 0u);
      EXPECT_EQ(address % size, 0u);
      address += size;
    }
    EXPECT_EQ(address, base + offset + 1000 * page);
  }
}

TEST(HandleMap, RoundsToTheBoundariesOfHandles) {
  HandleMap map(base, 64 * page, page, false);
  map.set(base, {page, page, 2 * page, 4 * page});
  EXPECT_EQ(map.size_at(base + page), page);
  EXPECT_EQ(map.size_at(base + 3 * page), 2 * page);
  EXPECT_EQ(map.round_up(base), base);
  EXPECT_EQ(map.round_up(base + 1), base + page);
  EXPECT_EQ(map.round_up(base + 2 * page + 1), base + 4 * page);
  EXPECT_EQ(map.round_up(base + 3 * page), base + 4 * page);
  EXPECT_EQ(map.round_down(base + 8 * page), base + 8 * page);
  EXPECT_EQ(map.round_down(base + 8 * page - 1), base + 4 * page);
  EXPECT_EQ(map.round_down(base + 4 * page), base + 4 * page);
  EXPECT_EQ(map.round_down(base + page + 5), base + page);
}

TEST(HandleMap, HasAHandlePerPageWhereMemoryIsDivisible) {
  HandleMap map(base, 64 * page, page, true);
  map.set(base, {8 * page});
  EXPECT_EQ(map.size_at(base + 3 * page), page);
  EXPECT_EQ(map.round_up(base + page + 1), base + 2 * page);
  EXPECT_EQ(map.round_down(base + 5 * page - 1), base + 4 * page);
}

TEST(HandleMap, RemembersHandlesThatMove) {
  HandleMap source(base, 64 * page, page, false);
  HandleMap target(base + 64 * page, 64 * page, page, false);
  source.set(base, {page, page, 2 * page, 4 * page});
  source.move(base + 2 * page, target, base + 66 * page, 6 * page);
  EXPECT_EQ(target.size_at(base + 67 * page), 2 * page);
  EXPECT_EQ(target.size_at(base + 71 * page), 4 * page);
}

}  // namespace
}  // namespace poolgrad
