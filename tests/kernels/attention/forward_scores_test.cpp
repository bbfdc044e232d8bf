// Every option that changes scores or weights, compared with the definition pair by pair.
#include <gtest/gtest.h>

#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

constexpr DType compute_dtypes[] = {DType::f64, DType::f32};
constexpr AttentionShape two_heads{2, 70, 83, 4, 2, 20, 12};

TEST(AttentionForwardScores, AreCappedBySoftcap) {
  for (DType dtype : compute_dtypes) {
    ForwardProblem p(dtype, two_heads);
    p.causal(13).scores.softcap = 0.7;
    p.scores.scale = 1;  // scores far above the cap
    expect_definition(p);
  }
}

TEST(AttentionForwardScores, DecreaseWithTheDistanceOfAbsolutePositions) {
  for (DType dtype : compute_dtypes) {
    expect_definition(ForwardProblem(dtype, two_heads).band(40, 3, 9).with_alibi());
    // Positions that f32 does not hold exactly: only the distance counts.
    ForwardProblem far(dtype, two_heads);
    far.schedule.queries = PositionMap::contiguous(70, 1'000'000'000'013);
    far.schedule.keys = PositionMap::contiguous(83, 1'000'000'000'000);
    expect_definition(far.with_alibi(), "far");
    // A striped shard of queries, a zigzag shard of keys.
    ForwardProblem shards(dtype, two_heads);
    shards.schedule.queries = {70, 70, 3, 3, 4};
    shards.schedule.keys = {83, 40, 80, 300, 1};
    expect_definition(shards.with_alibi(), "shards");
  }
}

TEST(AttentionForwardScores, SupportABiasOfEveryLayout) {
  for (DType dtype : compute_dtypes)
    for (const Shape& s : {Shape{2, 4, 70, 83}, Shape{1, 4, 70, 83}, Shape{2, 1, 70, 83}, Shape{2, 4, 1, 83},
                           Shape{2, 4, 70, 1}, Shape{1, 1, 1, 83}, Shape{1, 1, 1, 1}})
      for (bool keys_adjacent : {true, false})
        expect_definition(ForwardProblem(dtype, two_heads).causal(20).with_bias(s, keys_adjacent));
}

TEST(AttentionForwardScores, LeaveOutPairsWithABiasOfMinusInfinity) {
  ForwardProblem p(DType::f32, two_heads);
  p.with_bias({2, 4, 70, 83});
  for (std::int64_t i = 0; i < p.bias->count(); ++i)
    if (i % 3 || i / 83 % 70 == 5) p.bias->set(i, -std::numeric_limits<double>::infinity());
  expect_definition(p);
  EXPECT_EQ((*p.out)[5 * 4 * 12], 0);  // query 5 sees no key
  EXPECT_EQ((*p.lse)[5], -std::numeric_limits<double>::infinity());
}

TEST(AttentionForwardScores, CountTheSinksOfEveryHead) {
  for (DType dtype : compute_dtypes) {
    expect_definition(ForwardProblem(dtype, two_heads).causal(-20).with_sinks());  // 20 queries see the sink alone
    ForwardProblem none(dtype, two_heads);
    none.with_sinks().sinks->set(1, -std::numeric_limits<double>::infinity());
    expect_definition(none, "a sink of weight 0");
  }
}

TEST(AttentionForwardScores, GiveZeroAndTheSinkLogitWithoutKeys) {
  ForwardProblem p(DType::f32, {1, 9, 0, 2, 1, 8, 8});
  p.with_sinks().run();
  for (std::int64_t i = 0; i < p.out->count(); ++i) EXPECT_EQ((*p.out)[i], 0);
  for (std::int64_t i = 0; i < 18; ++i) EXPECT_NEAR((*p.lse)[i], (*p.sinks)[i / 9], 1e-6);
}

TEST(AttentionForwardScores, DropTheWeightsSelectedByTheCounter) {
  for (DType dtype : compute_dtypes) {
    ForwardProblem p(dtype, two_heads);
    p.causal(13).with_dropout(0.4).scores.first_batch = 3;
    expect_definition(p);
    ForwardProblem shards(dtype, two_heads);  // neither begins at a multiple of four
    shards.schedule.queries = {70, 30, 5, 4'000'000'000, 1};
    shards.schedule.keys = {83, 41, 2, 20'000'000'003, 3};
    expect_definition(shards.with_dropout(0.2), "shards");
  }
}

TEST(AttentionForwardScores, KeepLseUnderDropout) {
  ForwardProblem p(DType::f32, two_heads);
  p.causal(13).run();
  const auto expected = p.lse->bytes();
  p.with_dropout(0.9).run();
  EXPECT_EQ(p.lse->bytes(), expected);
}

TEST(AttentionForwardScores, SupportAllModificationsAtOnce) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (std::int64_t depth : {16, 33}) {
      ForwardProblem p(dtype, {2, 133, 201, 4, 2, depth, 24});
      p.band(90, 5, 68).with_alibi().with_bias({1, 4, 133, 201}).with_sinks().with_dropout(0.1).scores.softcap = 2;
      expect_definition(p);
    }
}

}  // namespace
}  // namespace poolgrad::kernels::testing
