#include <gtest/gtest.h>

#include <cmath>

#include "attention/pattern/pattern.h"
#include "tests/attention/pattern/pattern_visits.h"

namespace poolgrad::attention {
namespace {

using kernels::PositionMap;

constexpr std::int64_t block = 16, blocks = 200;

bool kept(const Pattern& pattern, std::int64_t h, std::int64_t row, std::int64_t column) {
  return pattern.multiplicity(h, 8, row * block, column * block) > 0;
}

/// Fraction of visible blocks outside the diagonal.
double fraction(const Pattern& pattern, std::int64_t h) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < blocks; ++row)
    for (std::int64_t column = 0; column < blocks; ++column) count += row != column && kept(pattern, h, row, column);
  return static_cast<double>(count) / static_cast<double>(blocks * (blocks - 1));
}

TEST(RandomBlocks, HaveTheRequestedDensity) {
  for (const double density : {0.01, 0.25, 0.9})
    for (const std::uint64_t seed : {0u, 1u, 2u}) {
      const double deviation = std::sqrt(density * (1 - density) / (blocks * (blocks - 1)));
      EXPECT_NEAR(fraction(Pattern::random_blocks(block, density, seed), 3), density, 5 * deviation)
          << "density " << density << ", seed " << seed;
    }
  EXPECT_EQ(fraction(Pattern::random_blocks(block, 1.0), 0), 1.0);
}

TEST(RandomBlocks, AlwaysKeepTheDiagonal) {
  const Pattern pattern = Pattern::random_blocks(block, 1e-9);
  EXPECT_EQ(fraction(pattern, 0), 0.0);
  for (std::int64_t row = 0; row < blocks; ++row) EXPECT_TRUE(kept(pattern, 5, row, row));
}

TEST(RandomBlocks, DifferBetweenHeadsAndSeedsAsIndependentDrawsDo) {
  const Pattern pattern = Pattern::random_blocks(block, 0.5, 1), other = Pattern::random_blocks(block, 0.5, 2);
  std::int64_t same_head = 0, same_seed = 0, mirrored = 0, total = 0;
  for (std::int64_t row = 0; row < blocks; ++row)
    for (std::int64_t column = 0; column < row; ++column, ++total) {
      same_head += kept(pattern, 0, row, column) == kept(pattern, 1, row, column);
      same_seed += kept(pattern, 0, row, column) == kept(other, 0, row, column);
      mirrored += kept(pattern, 0, row, column) == kept(pattern, 0, column, row);
    }
  const double half = static_cast<double>(total) / 2, deviation = std::sqrt(static_cast<double>(total)) / 2;
  EXPECT_NEAR(static_cast<double>(same_head), half, 5 * deviation);
  EXPECT_NEAR(static_cast<double>(same_seed), half, 5 * deviation);
  EXPECT_NEAR(static_cast<double>(mirrored), half, 5 * deviation);
}

TEST(RandomBlocks, AreTheSameOnEveryShard) {
  const Pattern pattern = Pattern::random_blocks(block, 0.4, 9);
  const auto itself = [&](auto h, auto heads, auto i, auto j) { return pattern.multiplicity(h, heads, i, j); };
  for (const PositionMap& queries : kernels::testing_support::shards(70))
    for (const PositionMap& keys : kernels::testing_support::shards(60, 9))
      testing_support::expect_means(pattern, itself, 2, queries, keys, 37);
}

TEST(RandomBlocks, DensityOfLongSequencesIsEstimatedAccurately) {
  const std::int64_t n = std::int64_t{16} << 18;
  for (const double density : {0.05, 0.5})
    EXPECT_NEAR(Pattern::random_blocks(64, density, 3).density(1, n, n), density, 0.001);
  EXPECT_NEAR((Pattern::random_blocks(64, 0.05, 3) & Pattern::causal()).density(1, n, n), 0.05, 0.001);
  for (const std::int64_t heads : {1, 2, 3, 4})
    EXPECT_NEAR(Pattern::random_blocks(16, 0.5).density(heads, 16, std::int64_t{1} << 27), 0.5, 0.01) << heads;
}

}  // namespace
}  // namespace poolgrad::attention
