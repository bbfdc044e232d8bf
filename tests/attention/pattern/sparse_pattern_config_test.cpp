#include "attention/pattern/sparse_pattern_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "allocator/error.h"
#include "tests/attention/pattern/sparse_types.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

/// Visible blocks of 16 at their first positions, as rows of 'x' and '.'.
std::vector<std::string> block_rows(const Pattern& pattern, std::int64_t count) {
  std::vector<std::string> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    rows.emplace_back();
    for (std::int64_t j = 0; j < count; ++j) rows.back() += pattern.multiplicity(i * 16, j * 16) ? 'x' : '.';
  }
  return rows;
}

/// Counts the pairs one by one.
double counted_density(const Pattern& pattern, std::int64_t length, bool causal) {
  std::int64_t kept = 0, admissible = 0;
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t j = 0; j < (causal ? i + 1 : length); ++j) {
      ++admissible;
      kept += pattern.multiplicity(i, j) > 0;
    }
  return static_cast<double>(kept) / static_cast<double>(admissible);
}

TEST(SparsePatternConfig, MakesThePatternsOfItsFields) {
  SparsePatternConfig config{
      .block_size = 16, .window_size = 64, .global_tokens = 16, .dilation_rates = {1, 3}, .stride = 8};
  const auto of = [&](SparsePatternType type) {
    config.pattern_type = type;
    return config.pattern(1000);
  };
  EXPECT_EQ(of(SparsePatternType::local_window), Pattern::local_window(16, 64));
  EXPECT_EQ(of(SparsePatternType::dilated_sparse), Pattern::dilated_sparse(16, {1, 3}));
  EXPECT_EQ(of(SparsePatternType::global_local), Pattern::global_local(16, 64, 16));
  EXPECT_EQ(of(SparsePatternType::strided), Pattern::strided(8));
  EXPECT_EQ(of(SparsePatternType::axial), Pattern::axial(8));
  EXPECT_EQ(of(SparsePatternType::random), Pattern::random_blocks(16, 0.1, 0));
}

TEST(SparsePatternConfig, MatchesTheDrawnBlockMaps) {
  const auto drawn = [](SparsePatternConfig config) {
    config.block_size = 16;
    return block_rows(config.pattern(6 * 16), 6);
  };
  EXPECT_THAT(drawn({.pattern_type = SparsePatternType::local_window, .window_size = 32}),
              testing::ElementsAre("xx....", "xxx...", ".xxx..", "..xxx.", "...xxx", "....xx"));
  EXPECT_THAT(drawn({.pattern_type = SparsePatternType::dilated_sparse, .dilation_rates = {1, 4}}),
              testing::ElementsAre("xx..x.", "xxx..x", ".xxx..", "..xxx.", "x..xxx", ".x..xx"));
  EXPECT_THAT(drawn({.pattern_type = SparsePatternType::global_local, .window_size = 16, .global_tokens = 16}),
              testing::ElementsAre("xxxxxx", "xx....", "x.x...", "x..x..", "x...x.", "x....x"));
}

TEST(SparsePatternConfig, ChoosesTheWidestWindowWithinTheDensity) {
  constexpr std::int64_t block = 16;
  for (const SparsePatternType type : {SparsePatternType::local_window, SparsePatternType::global_local})
    for (const std::int64_t length : {1, 16, 100, 24 * 16, 24 * 16 + 5})
      for (const std::int64_t tokens : {0, 3, 16, 70, 1000})
        for (const bool causal : {false, true}) {
          SparsePatternConfig config{.pattern_type = type, .block_size = block, .global_tokens = tokens};
          std::vector<double> possible;  // narrowest first
          for (std::int64_t n = 0; n * block < length + block; ++n) {
            config.window_size = std::max<std::int64_t>(1, 2 * n * block);
            possible.push_back(config.density(length, causal));
          }
          std::vector<double> wanted = possible;
          for (const double density : {0.01, 0.1, 0.3, 0.5, 0.8, 1.0}) wanted.push_back(density);
          for (const double density : wanted) {
            config.sparsity_ratio = density;
            double best = possible.front();  // the minimum if all exceed `density`
            for (const double one : possible)
              if (one <= density) best = std::max(best, one);
            EXPECT_EQ(config.density(length, causal), best)
                << to_string(type) << " wanted " << density << " n " << length << " tokens " << tokens << causal;
          }
        }
}

TEST(SparsePatternConfig, ChoosesTheLargestDensityUpToTheRequest) {
  constexpr std::int64_t block = 16, count = 24, length = count * block;
  for (const SparsePatternType type : {SparsePatternType::strided, SparsePatternType::axial}) {
    SparsePatternConfig config{.pattern_type = type, .block_size = block};
    std::vector<double> possible;  // for every value of the parameter that the density determines
    for (std::int64_t n = 0; n < count; ++n) {
      config.stride = n + 1;
      possible.push_back(config.density(length));
    }
    for (const double wanted : {0.01, 0.1, 0.3, 0.5, 0.8, 1.0}) {
      config.sparsity_ratio = wanted;
      double best = *std::min_element(possible.begin(), possible.end());
      for (const double density : possible)
        if (density <= wanted) best = std::max(best, density);
      const double tolerance = best > wanted ? 1e-3 : 1e-12;  // about the minimum if all exceed `wanted`
      EXPECT_NEAR(config.density(length), best, tolerance) << to_string(type) << " wanted " << wanted;
      EXPECT_LE(config.density(length), std::max(best + 1e-3, wanted)) << to_string(type) << " wanted " << wanted;
    }
  }
}

TEST(SparsePatternConfig, CountsOnlyAdmissiblePairsWhenCausal) {
  for (const SparsePatternType type : {SparsePatternType::local_window, SparsePatternType::dilated_sparse,
                                       SparsePatternType::global_local, SparsePatternType::random})
    for (const double wanted : {0.2, 0.5}) {
      const SparsePatternConfig config{.pattern_type = type, .block_size = 16, .sparsity_ratio = wanted};
      EXPECT_NEAR(config.density(64 * 16, true), wanted, 0.06) << to_string(type);
    }
}

TEST(SparsePatternConfig, ReportsTheCountedDensity) {
  for (const SparsePatternType type : all_types)
    for (const bool causal : {false, true})
      for (const std::optional<double> ratio : {std::optional<double>(), std::optional(0.4)}) {
        const SparsePatternConfig config{
            .pattern_type = type, .block_size = 16, .sparsity_ratio = ratio, .window_size = 64, .stride = 24};
        for (const std::int64_t length : {1, 100, 240})
          EXPECT_NEAR(config.density(length, causal), counted_density(config.pattern(length, causal), length, causal),
                      1e-12)
              << to_string(type) << " n " << length << (causal ? " causal" : "") << (ratio ? " by density" : "");
      }
}

TEST(SparsePatternConfig, UsesAsManyOffsetsAsTheDensityAllows) {
  const auto of = [](double density) {
    return SparsePatternConfig{.pattern_type = SparsePatternType::dilated_sparse,
                               .block_size = 16,
                               .sparsity_ratio = density,
                               .dilation_rates = {1}}
        .pattern(64 * 16);
  };
  EXPECT_EQ(of(1e-6), Pattern::block_offsets(16, std::vector<std::int64_t>{0}));  // the diagonal always
  EXPECT_EQ(of(0.05), Pattern::dilated_sparse(16, {1}));
  EXPECT_EQ(of(0.08), Pattern::dilated_sparse(16, {1, 2}));
  EXPECT_EQ(of(0.11), Pattern::dilated_sparse(16, {1, 2, 4}));
}

TEST(SparsePatternConfig, DoublesRatesUpToTheLargestOffset) {
  constexpr std::int64_t farthest = std::int64_t{1} << 30;
  const SparsePatternConfig config{.pattern_type = SparsePatternType::dilated_sparse,
                                   .block_size = 16,
                                   .sparsity_ratio = 0.5,
                                   .dilation_rates = {farthest / 2}};
  EXPECT_EQ(config.pattern(std::int64_t{1} << 40).to_string().substr(0, 63),
            "block_offsets(16: -1073741824 -536870912 0 536870912 1073741824");
}

TEST(SparsePatternConfig, AddsRandomBlocksAfterTheLastOffset) {
  for (const double wanted : {0.5, 0.9, 1.0}) {
    const SparsePatternConfig config{
        .pattern_type = SparsePatternType::dilated_sparse, .block_size = 16, .sparsity_ratio = wanted};
    EXPECT_NEAR(config.density(128 * 16), wanted, 0.02);
  }
  const SparsePatternConfig one{
      .pattern_type = SparsePatternType::dilated_sparse, .block_size = 16, .sparsity_ratio = 0.5, .seed = 1};
  SparsePatternConfig other = one;
  other.seed = 2;
  EXPECT_EQ(one.pattern(1024), one.pattern(1024));
  EXPECT_NE(one.pattern(1024), other.pattern(1024));
}

TEST(SparsePatternConfig, RandomBlocksKeepTheDiagonal) {
  const SparsePatternConfig config{
      .pattern_type = SparsePatternType::random, .block_size = 16, .sparsity_ratio = 0.2, .seed = 9};
  const std::vector<std::string> drawn = block_rows(config.pattern(64 * 16), 64);
  for (std::size_t i = 0; i < drawn.size(); ++i) EXPECT_EQ(drawn[i][i], 'x') << i;
  EXPECT_NEAR(config.density(64 * 16), 0.2 + 0.8 / 64, 0.03);  // 4096 blocks: three standard deviations are 0.019
}

TEST(SparsePatternConfig, WorksForLengthsThatAreNoMultipleOfABlock) {
  for (const SparsePatternType type : all_types)
    for (const std::int64_t length : {0, 1, 15, 17}) {
      const SparsePatternConfig config{.pattern_type = type, .block_size = 16, .sparsity_ratio = 0.1};
      const Pattern pattern = config.pattern(length, true);
      for (std::int64_t i = 0; i < length; ++i)
        EXPECT_EQ(pattern.multiplicity(i, i), 1) << to_string(type) << " n " << length << " i " << i;
    }
}

TEST(SparsePatternConfig, NamesTheInvalidField) {
  const auto refusal = [](const SparsePatternConfig& config) {
    return error_of<ValueError>([&] { config.pattern(100); });
  };
  EXPECT_EQ(refusal({.block_size = 40}), "[sparse_pattern] block_size must be a positive multiple of 16: 40");
  EXPECT_THAT(refusal({.block_size = 0}), HasSubstr("block_size must be a positive multiple of 16: 0"));
  EXPECT_THAT(refusal({.sparsity_ratio = 0.0}), HasSubstr("sparsity_ratio must be in (0, 1]"));
  EXPECT_THAT(refusal({.sparsity_ratio = 1.5}), HasSubstr("sparsity_ratio must be in (0, 1]"));
  EXPECT_THAT(refusal({.sparsity_ratio = std::nan("")}), HasSubstr("sparsity_ratio must be in (0, 1]"));
  EXPECT_EQ(refusal({.window_size = 0}), "[sparse_pattern] window_size must be at least 1: 0");
  EXPECT_EQ(refusal({.global_tokens = -1}), "[sparse_pattern] global_tokens must not be negative: -1");
  EXPECT_THAT(refusal({.dilation_rates = {}}), HasSubstr("dilation_rates must not be empty"));
  EXPECT_EQ(refusal({.dilation_rates = {1, 0}}), "[sparse_pattern] dilation_rates must be at least 1: 0");
  EXPECT_EQ(refusal({.stride = 0}), "[sparse_pattern] stride must be at least 1: 0");
  for (const std::optional<double> ratio : {std::optional<double>(), std::optional(0.5)})
    EXPECT_EQ(refusal({.pattern_type = SparsePatternType::dilated_sparse,
                       .sparsity_ratio = ratio,
                       .dilation_rates = {1, std::int64_t{1} << 62}}),
              "[sparse_pattern] dilation_rates must be at most 2^30: 4611686018427387904");
}

}  // namespace
}  // namespace poolgrad::attention
