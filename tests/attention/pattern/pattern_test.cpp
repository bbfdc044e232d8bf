#include "attention/pattern/pattern.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

namespace poolgrad::attention {
namespace {

TEST(Pattern, FollowsTheFormulaOfItsName) {
  for (std::int64_t i = 0; i < 9; ++i)
    for (std::int64_t j = 0; j < 9; ++j) {
      EXPECT_EQ(Pattern::dense().multiplicity(i, j), 1);
      EXPECT_EQ(Pattern::causal().multiplicity(i, j), j <= i);
      EXPECT_EQ(Pattern::window(2, 1).multiplicity(i, j), i - 2 <= j && j <= i + 1);
      EXPECT_EQ(Pattern::window(Pattern::unbounded, 3).multiplicity(i, j), j <= i + 3);
      EXPECT_EQ(Pattern::sink_tokens(2).multiplicity(i, j), j < 2);
      EXPECT_EQ(Pattern::global_tokens(2).multiplicity(i, j), j < 2 || i < 2);
      EXPECT_EQ(Pattern::global_tokens(2, false).multiplicity(i, j), j < 2);
      EXPECT_EQ(Pattern::documents({0, 3, 5}).multiplicity(i, j),
                (i < 3 && j < 3) || (3 <= i && i < 5 && 3 <= j && j < 5));
    }
}

TEST(Pattern, CountsAPairOnceForEveryBranchOfLongNet) {
  const Pattern pattern = Pattern::dilated({4, 8}, {1, 2});
  EXPECT_EQ(pattern.multiplicity(0, 2, 0, 2), 2);  // in both branches
  EXPECT_EQ(pattern.multiplicity(0, 2, 0, 1), 1);  // odd positions are not in the second branch
  EXPECT_EQ(pattern.multiplicity(0, 2, 0, 4), 1);  // in another segment of the first branch
  EXPECT_EQ(pattern.multiplicity(1, 2, 0, 4), 0);  // the second head takes odd positions
  EXPECT_EQ(pattern.multiplicity(1, 2, 1, 5), 1);
  EXPECT_EQ(Pattern::dilated({4, 8}, {1, 2}, {.unite = true}).multiplicity(0, 2, 0, 2), 1);
}

TEST(Pattern, CombinesByAnd) {
  EXPECT_EQ(Pattern::causal() & Pattern::window(3, 3), Pattern::window(3, 0));
  EXPECT_EQ(Pattern::dense() & Pattern::causal(), Pattern::causal());
  EXPECT_EQ(Pattern::window(5, 1) & Pattern::window(2, 4), Pattern::window(2, 1));
  const Pattern sparse = Pattern::dilated_sparse(16);
  EXPECT_EQ(sparse & Pattern::causal(), Pattern::causal() & sparse);
  EXPECT_EQ(sparse & Pattern::causal() & Pattern::dense(), sparse & Pattern::causal());
}

TEST(Pattern, CombinesByOrAndBySum) {
  const Pattern sinks = Pattern::sink_tokens(2), near = Pattern::window(1, 1);
  EXPECT_EQ((sinks | near).multiplicity(1, 1), 1);
  EXPECT_EQ((sinks + near).multiplicity(1, 1), 2);
  EXPECT_EQ(((sinks + near) | sinks).multiplicity(1, 1), 1);
  EXPECT_EQ((sinks + near + sinks).multiplicity(1, 1), 3);
  EXPECT_EQ((Pattern::dense() + Pattern::dense()).multiplicity(4, 9), 2);
}

TEST(Pattern, AUnionDropsRedundantParts) {
  const Pattern sinks = Pattern::sink_tokens(2);
  EXPECT_EQ(sinks | sinks, sinks);
  EXPECT_EQ(sinks | Pattern::dense(), Pattern::dense());
  EXPECT_EQ(Pattern::window(1, 1) | Pattern::window(5, 3), Pattern::window(5, 3) | Pattern::window(1, 1));
  EXPECT_EQ((sinks & Pattern::causal()) | (Pattern::dense() & Pattern::causal()), Pattern::causal());
  EXPECT_EQ((sinks & Pattern::window(9, 0)) | sinks, sinks);
}

TEST(Pattern, IsEqualWhenMadeOfTheSameParts) {
  EXPECT_EQ(Pattern::dilated({64, 128}, {1, 2}), Pattern::dilated({128, 64}, {2, 1}));
  EXPECT_NE(Pattern::dilated({64, 128}, {1, 2}), Pattern::dilated({64, 128}, {1, 4}));
  EXPECT_NE(Pattern::dilated({64, 128}, {1, 2}), Pattern::dilated({64, 128}, {1, 2}, {.mode = DilatedMode::grouped}));
  EXPECT_EQ(Pattern::blocks(16, {0, 1}, {3}), Pattern::block_bitmap(16, 4, {false, false, false, true}));
  EXPECT_NE(Pattern::blocks(16, {0, 1}, {3}), Pattern::blocks(16, {0, 1}, {2}));
  EXPECT_NE(Pattern::blocks(16, {0, 1}, {3}), Pattern::blocks(32, {0, 1}, {3}));
  EXPECT_NE(Pattern::random_blocks(16, 0.5, 1), Pattern::random_blocks(16, 0.5, 2));
  EXPECT_EQ(Pattern::block_offsets(16, {2, 0, 1, 1}), Pattern::block_offsets(16, {0, 1, 2}));
  EXPECT_EQ(Pattern::documents({0, 4, 9}), Pattern::documents({0, 4, 9}));
  EXPECT_NE(Pattern::documents({0, 4, 9}), Pattern::documents({0, 5, 9}));
  EXPECT_EQ(Pattern::dense(), Pattern::window(Pattern::unbounded, Pattern::unbounded));
  EXPECT_NE(Pattern::dense(), Pattern::documents({0, 9}));
}

TEST(Pattern, PrintsItsDefinition) {
  EXPECT_EQ(Pattern::dense().to_string(), "dense");
  EXPECT_EQ(Pattern::causal().to_string(), "causal");
  EXPECT_EQ(Pattern::window(255, 0).to_string(), "window(255, 0)");
  EXPECT_EQ(Pattern::window(Pattern::unbounded, 4).to_string(), "window(unbounded, 4)");
  EXPECT_EQ((Pattern::dilated({512, 1024}, {1, 2}) & Pattern::causal()).to_string(),
            "dilated(w 512 1024, r 1 2) & causal");
  EXPECT_EQ(Pattern::dilated({64}, {2}, {.mode = DilatedMode::grouped}).to_string(), "dilated(w 64, r 2, grouped)");
  EXPECT_EQ(Pattern::dilated_sparse(128).to_string(), "block_offsets(128: -4 -2..2 4)");
  EXPECT_EQ(Pattern::spaced_blocks(64, 4, 9).to_string(), "block_offsets(64: -8..8 by 4)");
  EXPECT_EQ(Pattern::spaced_blocks(64, 4, 3), Pattern::block_offsets(64, {0}));
  EXPECT_EQ(Pattern::block_offsets(16, {{0}, {-1, 1}}).to_string(), "block_offsets(16: 0 / -1 1)");
  EXPECT_EQ((Pattern::global_local(64, 256, 16) & Pattern::causal()).to_string(),
            "(columns(16) | rows(16) | block_offsets(64: -2..2)) & causal");
  EXPECT_EQ((Pattern::sink_tokens(4) + Pattern::window(3, 0)).to_string(), "columns(4) + window(3, 0)");
  EXPECT_EQ(((Pattern::sink_tokens(4) & Pattern::causal()) | Pattern::window(3, 3)).to_string(),
            "window(3, 3) | (columns(4) & causal)");
  EXPECT_EQ(Pattern::blocks(16, {0, 1}, {3}).to_string(), "blocks(16, 1 x 1 x 4, 1 listed)");
  EXPECT_EQ(Pattern::where(130, [](std::int64_t i, std::int64_t j) { return i >= j; }).to_string(),
            "where(3 x 3 blocks of 64, 6 seen, 1 of them whole)");
  EXPECT_EQ(Pattern::random_blocks(32, 0.25, 7).to_string(), "random_blocks(32, density 0.250000, seed 7)");
  EXPECT_EQ(Pattern::documents({0, 3, 9}).to_string(), "documents(2)");
  EXPECT_EQ((Pattern::documents({0, 3, 9}) & Pattern::causal()).to_string(), "causal & documents(2)");
  EXPECT_EQ(Pattern::axial(8).to_string(), "segments(8) | residues(8)");
}

TEST(Pattern, CallsAFunctionOncePerPairAndSharesEqualBlocks) {
  std::int64_t asked = 0;
  const Pattern sixteenth = Pattern::where(256, [&](std::int64_t i, std::int64_t j) {
    ++asked;
    return j <= i && j % 16 == 0;
  });
  EXPECT_EQ(asked, 256 * 256);
  for (const std::int64_t i : {0, 17, 255, 256})
    for (const std::int64_t j : {0, 15, 16, 240, 256})
      EXPECT_EQ(sixteenth.multiplicity(i, j), i < 256 && j <= i && j % 16 == 0) << i << ", " << j;
  EXPECT_EQ(sixteenth.density(1, 256, 256), 16 * (16 + 256) / 2.0 / (256 * 256));
  EXPECT_EQ(sixteenth, Pattern::where(256, [](std::int64_t i, std::int64_t j) { return j <= i && j % 16 == 0; }));
  EXPECT_NE(sixteenth, Pattern::where(256, [](std::int64_t i, std::int64_t j) { return j <= i && j % 16 == 1; }));
  EXPECT_EQ(Pattern::where(64, [](auto, auto) { return false; }).density(1, 64, 64), 0);
}

TEST(Pattern, TakesRowsOfBitsForQueriesAndKeysOfDifferentLengths) {
  const auto sees = [](std::int64_t h, std::int64_t i, std::int64_t j) { return (7 * i + 3 * j + h) % 5 == 0; };
  const Pattern pattern =
      Pattern::where(70, 150, 2, [&](std::int64_t h, std::int64_t i, std::span<std::uint64_t> keys) {
        ASSERT_EQ(keys.size(), 3u);
        for (std::size_t j = 0; j < 192; ++j)  // also beyond the keys
          keys[j / 64] |= std::uint64_t{sees(h, i, static_cast<std::int64_t>(j))} << (j % 64);
      });
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 130; ++i)
      for (std::int64_t j = 0; j < 200; ++j)
        ASSERT_EQ(pattern.multiplicity(h, 2, i, j), i < 70 && j < 150 && sees(h, i, j)) << h << ": " << i << ", " << j;
}

TEST(Pattern, DensityIsTheVisitedShareOfAdmissiblePairs) {
  EXPECT_EQ(Pattern::dense().density(2, 10, 20), 1.0);
  EXPECT_EQ(Pattern::causal().density(2, 10, 10), 1.0);
  EXPECT_EQ(Pattern::block_offsets(16, {0}).density(3, 64, 64), 0.25);
  EXPECT_EQ((Pattern::block_offsets(16, {0}) & Pattern::causal()).density(1, 32, 32), 2.0 * 136 / 528);
  EXPECT_EQ(Pattern::dense().density(2, 0, 20), 0.0);
  // 704 and 3008 keys for each query: the cost of LongNet's branches after duplicates are merged.
  EXPECT_EQ(Pattern::dilated({512, 1024, 2048}, {1, 2, 4}).density(4, 8192, 8192) * 8192, 704);
  EXPECT_EQ(Pattern::dilated({2048, 4096, 8192, 16384, 32768}, {1, 2, 4, 8, 16}).density(16, 32768, 32768) * 32768,
            3008);
}

TEST(Pattern, CountsMillionsOfPositionsExactly) {
  const std::int64_t n = 786432;
  EXPECT_EQ(Pattern::causal().density(8, n, n), 1.0);
  // 6144 block rows of 7 blocks, less the blocks beyond both ends: 2 x (1 + 2 + 4).
  EXPECT_EQ(Pattern::dilated_sparse(128).density(8, n, n) * 6144 * 6144, 6144 * 7 - 14);
}

}  // namespace
}  // namespace poolgrad::attention
