#include "attention/modules/named.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/attention/modules/module_support.h"
#include "tests/attention/pattern/sparse_types.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using namespace testing_support;
using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The pattern's multiplicity, pair by pair.
oracle::Multiplicity of(const Pattern& pattern) {
  return [pattern](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    return pattern.multiplicity(h, heads, i, j);
  };
}

oracle::Multiplicity level(std::int64_t stride, std::int64_t window, std::int64_t block) {
  return oracle::spaced_blocks(block, stride / block, window < 0 ? 1 << 20 : window / block / 2);
}

TEST(BlockSparseDilatedAttention, ComputesTheSoftmaxOverAllBlocksOfARow) {
  for (const SparsePatternType type : all_types)
    for (const bool causal : {false, true})
      for (const std::optional<double> ratio : {std::optional<double>(), std::optional(0.5)}) {
        BlockSparseDilatedAttention module({.pattern_type = type,
                                            .block_size = 16,
                                            .sparsity_ratio = ratio,
                                            .window_size = 32,
                                            .dilation_rates = {1, 2},
                                            .stride = 8});
        for (const std::int64_t length : {1, 50, 96}) {
          SCOPED_TRACE(to_string(type) + (causal ? " causal n " : " n ") + std::to_string(length));
          EXPECT_EQ(against_definition(module, of_length(length), of(module.pattern(length, causal)), causal), "");
        }
      }
}

TEST(BlockSparseDilatedAttention, IsDenseWithAllBlocks) {
  for (const SparsePatternType type : all_types) {
    BlockSparseDilatedAttention all({.pattern_type = type, .block_size = 16, .sparsity_ratio = 1.0});
    for (const bool causal : {false, true}) {
      for (const auto& [queries, keys] : {std::pair{70, 70}, {300, 70}, {90, 5}, {5, 70}}) {
        SCOPED_TRACE(to_string(type) + (causal ? " causal " : " ") + std::to_string(queries) + " queries");
        const ModuleSizes sizes{.batch = 1, .queries = queries, .keys = keys, .heads = 2, .kv_heads = 1};
        EXPECT_EQ(against_definition(all, sizes, oracle::dense(), causal), "");
      }
      EXPECT_DOUBLE_EQ(all.density(70, causal), 1.0);
    }
  }
}

TEST(BlockSparseDilatedAttention, AddsDilatedSegmentsToItsBlocks) {
  const SparsePatternConfig blocks{
      .pattern_type = SparsePatternType::local_window, .block_size = 16, .window_size = 16};
  BlockSparseDilatedAttention both(blocks, {}, {16, 64}, {1, 4});
  const auto want = oracle::either(of(Pattern::local_window(16, 16)), oracle::longnet({16, 64}, {1, 4}));
  for (const bool causal : {false, true}) EXPECT_EQ(against_definition(both, of_length(75), want, causal), "");
}

TEST(BlockSparseDilatedAttention, AlignsTheLastQueryWithTheLastKey) {
  BlockSparseDilatedAttention module({.block_size = 16, .window_size = 32});
  const ModuleSizes sizes{.queries = 5, .keys = 70, .heads = 4, .kv_heads = 2};
  EXPECT_EQ(against_definition(module, sizes, of(Pattern::local_window(16, 32)), true), "");
}

TEST(BlockSparseDilatedAttention, ConstantValuesGiveAConstantResult) {
  BlockSparseDilatedAttention module({.pattern_type = SparsePatternType::dilated_sparse, .block_size = 16});
  ModuleInputs inputs = make_inputs(of_length(100));
  inputs.v.fill(2.5);
  const Tensor out = module(inputs.q, inputs.k, inputs.v, {.causal = true});
  EXPECT_TRUE(allclose(out, full(out.shape(), 2.5, out.options()), 1e-14));
}

TEST(HierarchicalBlockSparse, IsTheUnionOfItsLevels) {
  const auto want = oracle::either(oracle::either(level(16, 64, 16), level(64, 128, 32)), level(128, -1, 32));
  HierarchicalBlockSparse module({{16, 64, 16}, {64, 128, 32}, {128, -1, 32}});
  for (const bool causal : {false, true})
    for (const std::int64_t length : {1, 33, 100, 300})
      EXPECT_EQ(against_definition(module, of_length(length), want, causal), "") << "n " << length;
}

TEST(HierarchicalBlockSparse, KeepsItsReachWithMoreQueriesThanKeys) {
  HierarchicalBlockSparse near({{16, 64, 16}}), spaced({{32, 128, 16}, {64, -1, 16}}), far({{32, -1, 16}});
  for (const auto& [queries, keys] : {std::pair{90, 5}, {300, 70}, {70, 300}, {16 * 80 + 5, 16}, {1, 1}})
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(keys) + " keys");
      const ModuleSizes sizes{.batch = 1, .queries = queries, .keys = keys, .heads = 2, .kv_heads = 1};
      EXPECT_EQ(against_definition(near, sizes, level(16, 64, 16), causal), "");
      EXPECT_EQ(against_definition(spaced, sizes, oracle::either(level(32, 128, 16), level(64, -1, 16)), causal), "");
      EXPECT_EQ(against_definition(far, sizes, level(32, -1, 16), causal), "");
    }
}

TEST(HierarchicalBlockSparse, GrowsSparserWithDistance) {
  HierarchicalBlockSparse module;
  const double at_4k = module.density(4096), at_16k = module.density(16384);
  EXPECT_LT(at_16k, at_4k);
  EXPECT_GT(at_16k, 0.25);  // the last level keeps a quarter at any distance
}

TEST(HierarchicalBlockSparse, NamesTheInvalidLevel) {
  const auto refusal = [](const std::vector<HierarchyLevel>& levels) {
    return error_of<ValueError>([&] { HierarchicalBlockSparse{levels}; });
  };
  EXPECT_EQ(refusal({}), "[hierarchical_block_sparse] there must be 1 to 4 levels: 0");
  EXPECT_THAT(refusal(std::vector<HierarchyLevel>(5, {64, 64, 64})), HasSubstr("1 to 4 levels: 5"));
  EXPECT_EQ(refusal({{64, 64, 24}}),
            "[hierarchical_block_sparse] the block must be a positive multiple of 16: stride 64, window 64, block 24");
  EXPECT_THAT(refusal({{80, 64, 64}}), HasSubstr("the stride must be a positive multiple of the block"));
  EXPECT_THAT(refusal({{64, 0, 64}}), HasSubstr("the window must be -1 or at least the block"));
}

TEST(BlockSparseDilatedAttention, RefusesBadOptionsAndOperands) {
  EXPECT_THAT(error_of<ValueError>([] { BlockSparseDilatedAttention({.block_size = 10}); }),
              HasSubstr("[sparse_pattern] block_size"));
  EXPECT_THAT(error_of<ValueError>([] { BlockSparseDilatedAttention({}, {}, {16}, {1, 2}); }), StartsWith("["));
  BlockSparseDilatedAttention module;
  const ModuleInputs inputs = make_inputs({}), shorter = make_inputs(of_length(3));
  EXPECT_THAT(error_of<ShapeError>([&] { module(inputs.q, inputs.k, shorter.v); }), StartsWith("[attend]"));
  EXPECT_THAT(error_of<ValueError>([&] { module(inputs.q, {}, shorter.v); }), StartsWith("[attend]"));
}

}  // namespace
}  // namespace poolgrad::attention
