// Layouts of a ring: every position has one owner, and shards are cut and joined without loss.
#include "attention/ring/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "allocator/error.h"
#include "autograd/operators/views.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using testing_support::layouts;

std::vector<std::int64_t> positions(const kernels::PositionMap& map) {
  std::vector<std::int64_t> result;
  for (std::int64_t row = 0; row < map.count; ++row) result.push_back(map.position(row));
  return result;
}

TEST(Shard, EveryPositionHasOneOwnerInOrder) {
  for (const Layout layout : layouts)
    for (const std::int64_t length : {0, 1, 2, 3, 7, 16, 64, 101})
      for (const int ranks : {1, 2, 3, 4, 8}) {
        std::vector<int> owners(static_cast<std::size_t>(length));
        std::int64_t most = 0, fewest = length;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto own = positions(shard_map(layout, length, rank, ranks, -5));
          EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
          for (const std::int64_t position : own) owners.at(static_cast<std::size_t>(position + 5)) += 1;
          most = std::max(most, static_cast<std::int64_t>(own.size()));
          fewest = std::min(fewest, static_cast<std::int64_t>(own.size()));
        }
        EXPECT_THAT(owners, ::testing::Each(1)) << to_string(layout) << ", " << length << " on " << ranks;
        EXPECT_LE(most - fewest, layout == Layout::zigzag ? 2 : 1) << to_string(layout) << ", " << length;
      }
}

TEST(Shard, TakesNegativeDimensionsAndRefusesMissingRanks) {
  const Tensor x = arange(0, 24).alias({{2, 3, 4}, {12, 4, 1}, 0});
  for (const Layout layout : layouts) {
    const Tensor left = take_shard(x, layout, 0, 2, -1), right = take_shard(x, layout, 1, 2, -1);
    EXPECT_EQ(max_difference(left, take_shard(x, layout, 0, 2, 2)), 0.0);
    EXPECT_EQ(max_difference(join_shards({left, right}, layout, -1), x), 0.0);
  }
  EXPECT_THROW(take_shard(x, Layout::zigzag, 0, 2, 3), IndexError);
  EXPECT_THROW(join_shards({x}, Layout::zigzag, -4), IndexError);
  EXPECT_THROW(join_shards({x, ones({3})}, Layout::zigzag, 2), ShapeError);
  for (const auto& [rank, ranks] : {std::pair{0, 0}, {2, 2}, {-1, 2}})
    EXPECT_THROW(take_shard(x, Layout::striped, rank, ranks), ValueError) << rank << " of " << ranks;
  EXPECT_EQ(error_of<ValueError>([] { shard_map(Layout::contiguous, 8, 2, 2); }),
            "[shard_map] there is no rank 2 of 2 in a sequence of 8");
}

TEST(Shard, FindsTheOwnersOfARangeOfPositions) {
  for (const Layout layout : layouts)
    for (const std::int64_t length : {0, 1, 3, 16, 37})
      for (const int ranks : {1, 2, 3, 5, 8})
        for (std::int64_t begin = -2; begin <= length + 1; ++begin)
          for (std::int64_t end = begin - 1; end <= length + 2; ++end) {
            std::set<int> want;
            for (int rank = 0; rank < ranks; ++rank)
              for (const std::int64_t position : positions(shard_map(layout, length, rank, ranks)))
                if (begin <= position && position < end) want.insert(rank);
            const std::vector<int> owners = shard_owners(layout, length, ranks, begin, end);
            ASSERT_EQ(std::set<int>(owners.begin(), owners.end()), want)
                << to_string(layout) << ", " << length << " over " << ranks << ", [" << begin << ", " << end << ")";
          }
}

TEST(Shard, LayoutsMatchTheirDefinitions) {
  EXPECT_THAT(positions(shard_map(Layout::contiguous, 8, 1, 4)), ::testing::ElementsAre(2, 3));
  EXPECT_THAT(positions(shard_map(Layout::zigzag, 8, 1, 4)), ::testing::ElementsAre(1, 6));
  EXPECT_THAT(positions(shard_map(Layout::striped, 8, 1, 4)), ::testing::ElementsAre(1, 5));
  EXPECT_THAT(positions(shard_map(Layout::striped, 6, 1, 4)), ::testing::ElementsAre(1, 5));
  EXPECT_THAT(positions(shard_map(Layout::striped, 6, 3, 4)), ::testing::ElementsAre(3));
}

TEST(Shard, OneRankOwnsThePlainSequence) {
  for (const Layout layout : layouts)
    EXPECT_EQ(shard_map(layout, 13, 0, 1, 4), kernels::PositionMap::contiguous(13, 4)) << to_string(layout);
}

TEST(Shard, SplitsLengthsBeyond32BitsExactly) {
  const std::int64_t length = (std::int64_t{1} << 53) + 3;
  std::int64_t sum = 0;
  for (int rank = 0; rank < 1000; ++rank) sum += shard_map(Layout::zigzag, length, rank, 1000).count;
  EXPECT_EQ(sum, length);
}

TEST(Shard, SplitsAndJoinsWithoutLoss) {
  for (const Layout layout : layouts)
    for (const std::int64_t length : {0, 1, 5, 16, 37})
      for (const int ranks : {1, 2, 3, 8}) {
        const Tensor whole = randn({2, length, 3, 2}, {.dtype = DType::f64});
        const Tensor odd = permute(permute(whole, {2, 1, 0, 3}).copy(), {2, 1, 0, 3});  // another order in memory
        std::vector<Tensor> shards;
        for (int rank = 0; rank < ranks; ++rank) {
          shards.push_back(take_shard(odd, layout, rank, ranks));
          const auto map = shard_map(layout, length, rank, ranks);
          ASSERT_EQ(shards.back().size(1), map.count);
          for (std::int64_t row = 0; row < map.count; ++row)
            EXPECT_TRUE(bit_equal(select(shards.back(), 1, row).copy(), select(whole, 1, map.position(row)).copy()));
        }
        EXPECT_TRUE(bit_equal(join_shards(shards, layout), whole)) << to_string(layout) << ", " << length;
      }
}

TEST(Shard, RefusesPartsOfDifferentSequences) {
  const Tensor two = zeros({1, 2, 1}), four = zeros({1, 4, 1});
  EXPECT_EQ(error_of<ShapeError>([&] {
              join_shards({two, four}, Layout::contiguous);
            }),
            "[join_shards] the part of rank 0 is (1, 2, 1) f32 on cpu, which is not its part of the contiguous whole "
            "(1, 6, 1) f32 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { join_shards({}, Layout::striped); }), "[join_shards] no shards");
}

TEST(Shard, LayoutsHaveNames) {
  for (const Layout layout : layouts) EXPECT_EQ(parse_layout(to_string(layout)), layout);
  EXPECT_EQ(error_of<ValueError>([] { parse_layout("spiral"); }), "[layout] not contiguous, zigzag or striped: spiral");
}

}  // namespace
}  // namespace poolgrad::attention
