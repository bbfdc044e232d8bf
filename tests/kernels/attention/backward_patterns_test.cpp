// Backward attention with every kind of term, on whole sequences and shards, compared with the definition.
#include <numeric>

#include "kernels/parallel.h"
#include "tests/kernels/attention/backward_patterns.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;
TEST(AttentionBackwardPatterns, FollowTheDefinition) {
  for (const Named& pattern : patterns())
    for (const std::int64_t n : {61, 450})
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(pattern.name);
        BackwardExample e = example(pattern, PositionMap::contiguous(n), PositionMap::contiguous(n), causal);
        e.depth = n == 61 ? 8 : 9;  // 8: dq is summed in place; 9: in scratch
        expect_definition(e);
      }
}

TEST(AttentionBackwardPatterns, FollowTheDefinitionOnShards) {
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3}, part = PositionMap::contiguous(50, 70);
  for (const Named& pattern : patterns())
    for (const PositionMap& queries : {zigzag, striped, part})
      for (const PositionMap& keys : {zigzag, striped, part}) {
        SCOPED_TRACE(pattern.name);
        expect_definition(example(pattern, queries, keys, true));
      }
}

TEST(AttentionBackwardPatterns, ListedBlocksFollowTheDefinition) {
  const ListedBlocks blocks;
  for (const bool causal : {false, true})
    expect_definition(
        example({"listed", {blocks.term()}, 1, 16}, PositionMap::contiguous(80), PositionMap::contiguous(93), causal));
}

TEST(AttentionBackwardPatterns, HaveTheSameBitsForAnyNumberOfThreads) {
  for (const Named& pattern : patterns()) {
    SCOPED_TRACE(pattern.name);
    const std::int64_t n = 300;
    const BackwardCheck check(example(pattern, PositionMap::contiguous(n), PositionMap::contiguous(n), false),
                              DType::f32);
    expect_equal_bits(check, {2, 3, 8});
  }
}

TEST(AttentionBackwardPatterns, AccumulateTermsOverSeveralPasses) {
  const std::int64_t n = 120;
  const Named both{"sum", {of_kind(Kind::segment, 20), of_kind(Kind::columns, 5, 1)}};
  BackwardExample e = example(both, PositionMap::contiguous(n), PositionMap::contiguous(n), true);
  e.dbias = true;
  const BackwardCheck check(e, DType::f32);
  BackwardCheck::Result sum(check.e, DType::f32);
  for (std::size_t t = 0; t < 2; ++t) {
    const Named one{"pass", {both.terms[t]}};
    check.run(example(one, PositionMap::contiguous(n), PositionMap::contiguous(n), true).schedule, sum.views(t > 0));
  }
  check.expect(sum, 2e-5);
}

TEST(AttentionBackwardPatterns, UseTheGlobalHeadInPartsOfACall) {
  // Heads 2 and 3 alone, of a pattern whose phases depend on the head.
  const Named pattern = patterns()[0];
  const BackwardCheck whole(example(pattern, PositionMap::contiguous(90), PositionMap::contiguous(90), false),
                            DType::f64);
  const auto expected = whole.run();
  const auto heads = [](View view, int dimension, std::int64_t first, std::int64_t count) {
    view.data = view.as<double>() + first * view.strides[dimension];
    view.shape[dimension] = count;
    return view;
  };
  BackwardCheck::Result actual(whole.e, DType::f64);
  const auto part = [&](std::int64_t kv) {
    AttentionScores scores = whole.scores;
    scores.first_head = 2 * kv;
    attention_backward({}, whole.e.schedule, scores, heads(whole.q.view(), 2, 2 * kv, 2),
                       heads(whole.k.view(), 2, kv, 1), heads(whole.v.view(), 2, kv, 1),
                       heads(whole.lse.view(), 1, 2 * kv, 2), heads(whole.delta.view(), 1, 2 * kv, 2),
                       heads(whole.grad_out.view(), 2, 2 * kv, 2),
                       {heads(actual.dq.view(), 2, 2 * kv, 2),
                        heads(actual.dk.view(), 2, kv, 1),
                        heads(actual.dv.view(), 2, kv, 1),
                        {},
                        false});
  };
  part(0);
  part(1);
  EXPECT_EQ(actual.dq.bytes(), expected->dq.bytes());
  EXPECT_EQ(actual.dk.bytes(), expected->dk.bytes());
  EXPECT_EQ(actual.dv.bytes(), expected->dv.bytes());
}

}  // namespace
}  // namespace poolgrad::kernels
