#include "attention/modules/block_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/gradcheck.h"
#include "nn/optimizer.h"
#include "tensor/grad_mode.h"
#include "tests/attention/modules/module_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using namespace testing_support;
using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t block = 16;
const nn::ParameterOptions f64{.dtype = DType::f64};

ModuleSizes of_blocks(std::int64_t count, std::int64_t rest = 0) {
  return {.queries = count * block + rest, .keys = count * block + rest, .heads = 4, .kv_heads = 2};
}

/// The blocks that a block of queries sees.
std::set<std::int64_t> seen(const Pattern& pattern, std::int64_t h, std::int64_t row, std::int64_t blocks) {
  std::set<std::int64_t> result;
  for (std::int64_t c = 0; c < blocks; ++c)
    if (pattern.multiplicity(h, 4, row * block, c * block)) result.insert(c);
  return result;
}

TEST(BlockSelection, SelectsTheRequestedCountIncludingTheOwnBlock) {
  BlockSelection selection(5, {.block_size = block, .selected = 3}, f64);
  const ModuleInputs inputs = make_inputs(of_blocks(8, 5));
  for (const bool causal : {false, true}) {
    const std::vector<Pattern> patterns = selection.select(inputs.q, inputs.k, causal);
    ASSERT_EQ(patterns.size(), 2u);  // batch
    for (const Pattern& pattern : patterns)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t row = 0; row < 9; ++row) {
          const std::set<std::int64_t> chosen = seen(pattern, h, row, 9);
          EXPECT_EQ(chosen.size(), causal ? static_cast<std::size_t>(std::min<std::int64_t>(3, row + 1)) : 3u);
          EXPECT_TRUE(chosen.count(row)) << "head " << h << " row " << row;
          EXPECT_LE(*chosen.rbegin(), causal ? row : 8);
          EXPECT_EQ(chosen, seen(pattern, h / 2 * 2, row, 9)) << "heads of a group agree";
        }
  }
  BlockSelection quarter(5, {.block_size = block, .sparsity_ratio = 0.25}, f64);
  EXPECT_EQ(seen(quarter.select(inputs.q, inputs.k, false)[0], 0, 2, 9).size(), 2u);
  EXPECT_EQ(seen(quarter.select(inputs.q, inputs.k, true)[0], 0, 8, 9).size(), 2u);
}

TEST(BlockSelection, SelectsTheBlocksWithTheBestScores) {
  BlockSelection selection(5, {.block_size = block, .selected = 3}, f64);
  const ModuleInputs inputs =
      make_inputs({.batch = 1, .queries = 7 * block, .keys = 7 * block, .heads = 1, .kv_heads = 1});
  const auto parameters = selection.parameters();
  const auto means = [](const Tensor& x) { return mean(reshape(x, {7, block, 5}), {1}); };
  const Tensor scores =
      matmul(linear(means(inputs.q), parameters[0]), transpose(linear(means(inputs.k), parameters[1]), 0, 1));
  const std::vector<double> score = scores.to_vector<double>();
  const Pattern pattern = selection.select(inputs.q, inputs.k, false)[0];
  for (std::size_t row = 0; row < 7; ++row) {
    std::vector<std::pair<double, std::int64_t>> order;
    for (std::size_t c = 0; c < 7; ++c)
      if (c != row) order.emplace_back(-score[row * 7 + c], c);
    std::sort(order.begin(), order.end());
    const std::set<std::int64_t> want{static_cast<std::int64_t>(row), order[0].second, order[1].second};
    EXPECT_EQ(seen(pattern, 0, static_cast<std::int64_t>(row), 7), want) << row;
  }
}

TEST(BlockSelection, AttendsToTheMeansOfWholeBlocks) {
  for (const bool causal : {false, true}) {
    BlockSelection selection(5, {.block_size = block, .projection = 6}, f64);
    const ModuleInputs inputs = make_inputs(of_blocks(3, 7));
    const auto parameters = selection.parameters();
    std::vector<Tensor> key_means, value_means;
    for (std::int64_t begin = 0; begin < 55; begin += block) {
      key_means.push_back(mean(slice(inputs.k, 1, begin, begin + block), {1}, true));
      value_means.push_back(mean(slice(inputs.v, 1, begin, begin + block), {1}, true));
    }
    const ModuleInputs summaries{linear(inputs.q, parameters[0]).detach(),
                                 linear(cat(key_means, 1), parameters[1]).detach(), cat(value_means, 1),
                                 inputs.grad_out};
    oracle::Problem problem;
    problem.q = oracle::Array(summaries.q);
    problem.k = oracle::Array(summaries.k);
    problem.v = oracle::Array(summaries.v);
    problem.scale = 1 / std::sqrt(6.0);
    if (causal) problem.m = [](auto, auto, std::int64_t i, std::int64_t j) { return std::int64_t{j < i / block}; };
    const Tensor want = oracle::attend(problem).out.tensor(inputs.grad_out.shape());
    EXPECT_TRUE(allclose(selection.summary_attention(inputs.q, inputs.k, inputs.v, causal), want, 1e-12, 1e-13));
  }
}

TEST(BlockSelection, BlockMeansDoNotOverflowInF16) {
  BlockSelection selection(5, {.block_size = 64});
  const auto inputs = make_inputs({.batch = 1, .queries = 150, .keys = 150}, DType::f16);
  const Tensor v = full(inputs.v.shape(), 2000.0, {.dtype = DType::f16});
  for (const Tensor& padding : {Tensor(), zeros({1, 150}, {.dtype = DType::boolean})})
    for (const bool causal : {false, true}) {
      const Tensor out = selection.summary_attention(inputs.q, inputs.k, v, causal, padding);
      const Tensor rows = slice(out, 1, causal ? 64 : 0);  // the first block sees no block before it
      EXPECT_EQ(out.dtype(), DType::f16);
      EXPECT_TRUE(allclose(rows, full(rows.shape(), 2000.0, rows.options()), 2e-3)) << causal;
    }
}

TEST(BlockSelection, ScorerGradientsMatchCentralDifferences) {
  for (const bool causal : {false, true}) {
    BlockSelection selection(2, {.block_size = block, .projection = 3}, f64);
    const ModuleInputs inputs =
        make_inputs({.batch = 1, .queries = 37, .keys = 37, .heads = 2, .kv_heads = 1, .width = 2, .value_width = 2});
    std::vector<Tensor> x{inputs.q, inputs.k, inputs.v};
    for (Tensor& input : x) input.set_requires_grad();
    const auto function = [&](const std::vector<Tensor>& y) {
      return std::vector{selection.summary_attention(y[0], y[1], y[2], causal)};
    };
    EXPECT_TRUE(gradcheck(selection, function, x));
  }
}

TEST(AdaptiveBlockSparse, IsAttentionToTheChosenBlocksAndAGatedCoarseResult) {
  AdaptiveBlockSparseAttention module(5, {.block_size = block, .selected = 2}, {}, f64);
  for (const bool causal : {false, true})
    for (const std::int64_t rest : {0, 9}) {
      const ModuleInputs inputs = make_inputs(of_blocks(5, rest));
      const std::vector<Pattern> patterns = module.selection().select(inputs.q, inputs.k, causal);
      const Tensor coarse = module.selection().summary_attention(inputs.q, inputs.k, inputs.v, causal);
      const Tensor out = module(inputs.q, inputs.k, inputs.v, {.causal = causal});
      for (std::int64_t b = 0; b < 2; ++b) {
        const auto entry = [&](const Tensor& x) { return slice(x, 0, b, b + 1).copy(); };
        const Pattern& pattern = patterns[static_cast<std::size_t>(b)];
        const auto m = [&](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
          return pattern.multiplicity(h, heads, i, j);
        };
        const Tensor fine =
            defined({entry(inputs.q), entry(inputs.k), entry(inputs.v), entry(inputs.grad_out)}, m, causal).out;
        EXPECT_TRUE(allclose(entry(out), fine + entry(coarse) * 0.5, 1e-11, 1e-12));  // sigmoid(0)
      }
    }
}

TEST(AdaptiveBlockSparse, GradientsMatchCentralDifferencesForAFixedSelection) {
  for (const bool causal : {false, true}) {
    AdaptiveBlockSparseAttention module(2, {.block_size = block, .selected = 2, .projection = 2}, {}, f64);
    const ModuleInputs inputs =
        make_inputs({.batch = 2, .queries = 35, .keys = 35, .heads = 2, .kv_heads = 1, .width = 2, .value_width = 1});
    std::vector<Tensor> x{inputs.q, inputs.k, inputs.v};
    for (Tensor& input : x) input.set_requires_grad();
    const auto function = [&](const std::vector<Tensor>& y) {
      return std::vector{module(y[0], y[1], y[2], {.causal = causal})};
    };
    EXPECT_TRUE(gradcheck(module, function, x));
  }
}

TEST(AdaptiveBlockSparse, NeverLooksAhead) {
  AdaptiveBlockSparseAttention module(5, {.block_size = block, .selected = 2}, {}, f64);
  const ModuleInputs inputs = make_inputs(of_blocks(4, 3));
  const Tensor before = module(inputs.q, inputs.k, inputs.v, {.causal = true});
  const ModuleInputs other = make_inputs(of_blocks(4, 3), DType::f64, 77);
  for (const std::int64_t changed : {1, 20, 32, 34, 40, 47, 50, 60, 66}) {  // changes everything from this position on
    const auto mixed = [&](const Tensor& a, const Tensor& b) {
      return cat({slice(a, 1, 0, changed), slice(b, 1, changed)}, 1);
    };
    const Tensor after =
        module(mixed(inputs.q, other.q), mixed(inputs.k, other.k), mixed(inputs.v, other.v), {.causal = true});
    EXPECT_EQ(max_difference(slice(after, 1, 0, changed), slice(before, 1, 0, changed)), 0.0) << changed;
    EXPECT_GT(max_difference(slice(after, 1, changed), slice(before, 1, changed)), 0.0) << changed;
  }
}

TEST(AdaptiveBlockSparse, GivesEveryParameterItsGradient) {
  AdaptiveBlockSparseAttention module(5, {.block_size = block, .selected = 2}, {}, f64);
  const ModuleInputs inputs = make_inputs(of_blocks(4));
  for (const bool causal : {false, true}) {
    module.zero_grad();
    module(inputs.q, inputs.k, inputs.v, {.causal = causal}).backward(inputs.grad_out);
    for (const auto& [name, parameter] : module.named_parameters()) {
      ASSERT_TRUE(parameter.grad().defined()) << name;
      EXPECT_GT(norm(parameter.grad()).item(), 0.0) << name;
    }
  }
}

// Queries of block n carry the tag of block (n + 3) mod 8 plus noise; the targets are that block's values. An untrained
// scorer finds it among its two of eight blocks by chance; a trained one always does.
TEST(AdaptiveBlockSparse, LearnsToSelectTheRightBlock) {
  constexpr std::int64_t blocks = 8, length = blocks * block, width = 16;
  Generator generator(21);
  const TensorOptions options{.dtype = DType::f32};
  AdaptiveBlockSparseAttention module(width, {.block_size = block, .selected = 2, .projection = 16}, {},
                                      {.generator = &generator});
  struct Example {
    Tensor q, k, v, target;
  };
  const auto of_block = [&](const Tensor& x) {  // (8, C) -> (1, N, 1, C)
    return reshape(expand(unsqueeze(x, 1), {blocks, block, x.size(1)}), {1, length, 1, x.size(1)});
  };
  const Tensor turned = randn({width, width}, options, generator) * 0.25;  // queries and keys use different bases
  const auto example = [&] {
    const Tensor tags = randn({blocks, width}, options, generator), values = randn({blocks, 4}, options, generator);
    const auto rotated = [](const Tensor& x) { return cat({slice(x, 0, 3), slice(x, 0, 0, 3)}, 0); };
    const auto noise = [&] { return randn({1, length, 1, width}, options, generator) * 0.3; };
    return Example{of_block(matmul(rotated(tags), turned)) + noise(), of_block(tags) + noise(), of_block(values),
                   of_block(rotated(values))};
  };
  const auto found = [&](const Example& e) {
    const Pattern pattern = module.selection().select(e.q, e.k, false)[0];
    int count = 0;
    for (std::int64_t n = 0; n < blocks; ++n) count += pattern.multiplicity(n * block, (n + 3) % blocks * block) > 0;
    return count;
  };
  const auto rate = [&] {
    int count = 0;
    for (int n = 0; n < 20; ++n) count += found(example());
    return count / (20.0 * blocks);
  };

  const double before = rate();
  nn::AdamW optimizer(module.named_parameters(), {.learning_rate = 0.02, .weight_decay = 0.0});
  for (int step = 0; step < 250; ++step) {
    const Example e = example();
    module.zero_grad();
    mean(square(module(e.q, e.k, e.v) - e.target)).backward();
    optimizer.step();
  }
  const double after = rate();
  RecordProperty("before", std::to_string(before));
  RecordProperty("after", std::to_string(after));
  EXPECT_LT(before, 0.5);
  EXPECT_GT(after, 0.9);
}

TEST(BlockSelection, NamesTheInvalidOption) {
  const auto refusal = [](const BlockSelectionOptions& options, std::int64_t width = 4) {
    return error_of<ValueError>([&] { BlockSelection(width, options); });
  };
  EXPECT_EQ(refusal({.block_size = 8}), "[block_selection] block_size must be a positive multiple of 16: 8");
  EXPECT_EQ(refusal({.selected = 0}), "[block_selection] selected must be at least 1: 0");
  EXPECT_EQ(refusal({.projection = 0}), "[block_selection] projection must be at least 1: 0");
  EXPECT_THAT(refusal({.sparsity_ratio = 0.0}), HasSubstr("sparsity_ratio must be in (0, 1]"));
  EXPECT_EQ(refusal({}, 0), "[block_selection] head_dim must be at least 1: 0");
  AdaptiveBlockSparseAttention module(5, {.block_size = block}, {}, f64);
  const ModuleInputs inputs = make_inputs(of_blocks(2)), shorter = make_inputs(of_blocks(1));
  const Tensor bias = zeros({1, 1, 1, 1}, {.dtype = DType::f64});
  EXPECT_THAT(error_of<ValueError>([&] { module(inputs.q, inputs.k, inputs.v, {.bias = bias}); }),
              HasSubstr("a bias is not supported"));
  EXPECT_THAT(error_of<ShapeError>([&] { module(inputs.q, shorter.k, shorter.v); }),
              HasSubstr("[block_selection] q and k differ in batch or length"));
}

// A rank that holds part of a batch drops the same weights as one process, and all generators advance equally.
TEST(AdaptiveBlockSparse, DropsTheSameWeightsInPartOfABatch) {
  Generator generator(5);
  AdaptiveBlockSparseAttention module(5, {.block_size = block, .selected = 2},
                                      {.dropout = 0.5, .generator = &generator}, f64);
  const ModuleInputs inputs = make_inputs({.batch = 4, .queries = 40, .keys = 40});
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    generator = Generator(5);
    const auto of = [&](const Tensor& x) { return slice(x, 0, begin, end); };
    const Tensor out = module(of(inputs.q), of(inputs.k), of(inputs.v), {.causal = true, .first_batch = begin});
    EXPECT_EQ(generator.state().offset, 1u) << begin << " to " << end;
    return out;
  };
  const Tensor whole = part(0, 4);
  EXPECT_EQ(max_difference(cat({part(0, 1), part(1, 4), part(4, 4)}, 0), whole), 0.0);
  const Tensor same = expand(slice(inputs.q, 0, 0, 1), {2, 40, 4, 5});
  generator = Generator(5);
  const Tensor out = module(same, same, same, {.causal = true});
  EXPECT_GT(max_difference(slice(out, 0, 0, 1), slice(out, 0, 1)), 1e-3) << "entries drop different weights";
}

TEST(AdaptiveBlockSparse, WorksForShortAndEmptySequences) {
  AdaptiveBlockSparseAttention module(5, {.block_size = block, .selected = 2}, {}, f64);
  for (const std::int64_t length : {0, 1, 15, 16, 17})
    for (const bool causal : {false, true}) {
      const ModuleInputs inputs = make_inputs({.queries = length, .keys = length});
      const Tensor out = module(inputs.q, inputs.k, inputs.v, {.causal = causal});
      EXPECT_EQ(out.shape(), inputs.grad_out.shape());
      for (const double x : out.to_vector<double>()) EXPECT_TRUE(std::isfinite(x)) << length;
    }
}

}  // namespace
}  // namespace poolgrad::attention
