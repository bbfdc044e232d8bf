// Gradients of attention and delta on the emulated device, compared with the definition.
#include <gtest/gtest.h>

#include "tests/effort.h"
#include "tests/kernels/cuda/attention/operands.h"

namespace poolgrad::kernels::testing {
namespace {

using CudaAttentionBackward = PortableAttention;
using CudaAttentionDelta = PortableAttention;

BackwardExample grouped(std::int64_t queries, std::int64_t keys) {
  BackwardExample e = banded(queries, keys, unbounded, 0);
  e.q_heads = e.schedule.heads = 4;
  return e;
}

TEST_F(CudaAttentionBackward, FollowsTheDefinitionForEverySize) {
  for (const auto& [queries, keys] : {std::pair{1, 1}, {64, 64}, {65, 130}, {1, 70}, {150, 33}}) {
    BackwardExample e = grouped(queries, keys);
    e.batch = 2;
    expect_definition_there(e, {DType::f64, DType::f32, DType::f16, DType::bf16});
  }
  for (const auto& [depth, v_depth] : {std::pair{1, 1}, {33, 64}, {67, 9}, {64, 130}, {140, 20}}) {
    BackwardExample e = grouped(50, 70);
    e.depth = depth, e.v_depth = v_depth;
    expect_definition_there(e);
  }
}

TEST_F(CudaAttentionBackward, IsZeroForEmptyInputs) {
  for (const auto& [queries, keys] : {std::pair{5, 0}, {0, 5}})
    expect_definition_there(banded(PositionMap::contiguous(queries), PositionMap::contiguous(keys), unbounded, 0));
  BackwardExample without_heads = banded(5, 5, unbounded, 0);
  without_heads.q_heads = without_heads.schedule.heads = 0;
  expect_definition_there(without_heads);
}

TEST_F(CudaAttentionBackward, FollowsBandsAndFullyMaskedQueries) {
  for (const auto& [left, right] : {std::pair{std::int64_t{16}, std::int64_t{0}},
                                    {std::int64_t{0}, std::int64_t{0}},
                                    {std::int64_t{-10}, std::int64_t{20}},
                                    {unbounded, std::int64_t{-30}}})
    expect_definition_there(banded(PositionMap::contiguous(140), PositionMap::contiguous(101), left, right));
  BackwardExample e = banded(70, 70, unbounded, 0);
  e.alone = {3, 60, 69};
  expect_definition_there(e);
}

TEST_F(CudaAttentionBackward, KeepsDocumentsApart) {
  for (const auto& [left, right] : {std::pair{unbounded, unbounded}, {unbounded, std::int64_t{0}}, {16, 3}})
    expect_definition_there(with_documents(banded(150, 150, left, right), uneven_documents));
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3};
  for (const auto& [queries, keys] : {std::pair{zigzag, striped}, {striped, zigzag}})
    expect_definition_there(with_documents(banded(queries, keys, unbounded, 0), uneven_documents));
  const PositionMap n = PositionMap::contiguous(110);
  for (const Named& pattern : some_of(patterns())) {
    SCOPED_TRACE(pattern.name);
    expect_definition_there(with_documents(example(pattern, n, n, true), uneven_documents), {DType::f32});
  }
}

TEST_F(CudaAttentionBackward, FollowsEveryPattern) {
  for (const Named& pattern : some_of(patterns())) {
    SCOPED_TRACE(pattern.name);
    const PositionMap few = PositionMap::contiguous(61), many = PositionMap::contiguous(110);
    expect_definition_there(example(pattern, few, few, false), {DType::f64});
    expect_definition_there(example(pattern, many, many, true), {DType::f32});
  }
  const ListedBlocks blocks;
  expect_definition_there(
      example({"listed", {blocks.term()}, 1, 16}, PositionMap::contiguous(80), PositionMap::contiguous(93), true));
}

TEST_F(CudaAttentionBackward, FollowsEveryPatternOnShards) {
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3};
  for (const Named& pattern : some_of(patterns()))
    for (const auto& [queries, keys] : {std::pair{zigzag, striped}, {striped, zigzag}}) {
      SCOPED_TRACE(pattern.name);
      expect_definition_there(example(pattern, queries, keys, true), {DType::f32});
    }
}

TEST_F(CudaAttentionBackward, DifferentiatesModifiedScores) {
  const std::function<void(BackwardExample&)> changes[] = {[](BackwardExample& e) { e.softcap = 1.5; },
                                                           [](BackwardExample& e) { e.bias = e.dbias = true; },
                                                           [](BackwardExample& e) { e.alibi = true; },
                                                           [](BackwardExample& e) { e.sinks = true; },
                                                           [](BackwardExample& e) { e.dropout = 0.3; },
                                                           [](BackwardExample& e) {
                                                             e.softcap = 4, e.dropout = 0.2;
                                                             e.bias = e.dbias = e.alibi = e.sinks = true;
                                                           }};
  for (const auto& change : changes) {
    BackwardExample shards = grouped(1, 1);
    shards.schedule.queries = {75, 40, 20, 160, 1};
    shards.schedule.keys = {83, 83, 1, 1, 2};
    const PositionMap n = PositionMap::contiguous(70);
    for (BackwardExample e : {grouped(37, 70), shards, example(patterns()[0], n, n, true)}) {
      change(e);
      expect_definition_there(e);
    }
  }
}

TEST_F(CudaAttentionBackward, CountsBiasesAndSinksOfEveryFiniteSize) {
  expect_definition_there(with_largest_biases(grouped(70, 83)));
}

TEST_F(CudaAttentionBackward, DoesNotOverflowUnderHugeBiases) {
  expect_no_overflow_of_huge_biases_there(grouped(70, 83), DType::f32);
}

TEST_F(CudaAttentionBackward, AccumulatesTermsOverSeveralPasses) {
  const PositionMap n = PositionMap::contiguous(120);
  const Named both{"sum", {of_kind(Kind::segment, 20), of_kind(Kind::columns, 5, 1)}};
  BackwardExample e = example(both, n, n, true);
  e.dbias = true;
  const BackwardCheck check(e, DType::f32);
  const BackwardCheck::Result sum(check.e, DType::f32);
  for (std::size_t t = 0; t < 2; ++t)
    run_there(check, example({"pass", {both.terms[t]}}, n, n, true).schedule, sum, t > 0);
  check.expect(sum, 2e-5);
}

TEST_F(CudaAttentionBackward, ComputesOnlyTheRequestedGradients) {
  BackwardExample e = grouped(70, 70);
  e.bias = e.dbias = true;
  const BackwardCheck check(e, DType::f32);
  for (int wanted = 0; wanted < 4; ++wanted) {
    const BackwardCheck::Result result(check.e, DType::f32);
    const DeviceOperands there(check.q, check.k, check.v, check.grad_out, check.lse, check.delta, check.bias, result.dq,
                               result.dk, result.dv, result.dbias);
    AttentionGradients gradients;
    View AttentionGradients::*const members[] = {&AttentionGradients::dq, &AttentionGradients::dk,
                                                 &AttentionGradients::dv, &AttentionGradients::dbias};
    gradients.*members[wanted] = there(result.views().*members[wanted]);
    attention_backward(cuda0, check.e.schedule, there(check.scores), there(check.q.view()), there(check.k.view()),
                       there(check.v.view()), there(check.lse), there(check.delta), there(check.grad_out.view()),
                       gradients);
    there.fetch();
    if (wanted == 0) check.expect_close(result.dq, check.expected.dq, 2e-5, "dq");
    if (wanted == 1) check.expect_close(result.dk, check.expected.dk, 2e-5, "dk");
    if (wanted == 2) check.expect_close(result.dv, check.expected.dv, 2e-5, "dv");
    if (wanted == 3) check.expect_close(result.dbias, check.expected.dbias, 2e-5, "dbias");
  }
}

TEST_F(CudaAttentionBackward, IgnoresTheValuesWithoutAnOutGradient) {
  BackwardCheck check(grouped(70, 70), DType::f32);
  for (std::int64_t i = 0; i < check.v.count(); ++i)
    check.v.set(i, i % 2 ? NAN : std::numeric_limits<double>::infinity());
  const BackwardCheck::Result here(check.e, DType::f32), result(check.e, DType::f32);
  attention_backward({}, check.e.schedule, check.scores, check.q.view(), check.k.view(), check.v.view(), check.lse,
                     check.delta, {}, here.views());
  const DeviceOperands there(check.q, check.k, check.v, check.lse, check.delta, result.dq, result.dk, result.dv);
  const AttentionGradients on_cpu = result.views();
  AttentionGradients gradients;
  gradients.dq = there(on_cpu.dq), gradients.dk = there(on_cpu.dk), gradients.dv = there(on_cpu.dv);
  attention_backward(cuda0, check.e.schedule, there(check.scores), there(check.q.view()), there(check.k.view()),
                     there(check.v.view()), there(check.lse), there(check.delta), {}, gradients);
  there.fetch();
  for (std::int64_t i = 0; i < result.dk.count(); ++i) ASSERT_NEAR(result.dk[i], here.dk[i], 2e-5);
  for (std::int64_t i = 0; i < result.dq.count(); ++i) ASSERT_NEAR(result.dq[i], here.dq[i], 2e-5);
  for (std::int64_t i = 0; i < result.dv.count(); ++i) ASSERT_EQ(result.dv[i], 0.0);
}

TEST_F(CudaAttentionBackward, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  expect_same_bits_again(BackwardCheck(grouped(150, 150), DType::f32), DType::f32);
}

TEST_F(CudaAttentionBackward, HasTheSameBitsWithSeveralTilesPerBlock) {
  BackwardExample e = grouped(150, 150);
  e.batch = 2, e.alone = {0, 70};
  expect_same_gradients_by_few_blocks(BackwardCheck(e, DType::f32), DType::f32);
}

TEST_F(CudaAttentionDelta, FollowsItsDefinition) {
  for (const DType dtype : floats)
    for (const std::int64_t depth : {0, 1, 64, 131}) {
      const std::int64_t batch = 2, queries = 19, heads = 3;
      std::mt19937_64 random(test_seed());
      TestArray out(dtype, {batch, queries, heads, depth}), grad(dtype, {batch, queries, heads, depth}),
          grad_lse(compute_dtype(dtype), {batch, heads, queries}, Layout::transposed),
          delta(compute_dtype(dtype), {batch, heads, queries});
      out.random(random), grad.random(random), grad_lse.random(random);
      for (const bool with_out : {true, false}) {
        const DeviceOperands there(out, grad, grad_lse, delta);
        attention_delta(cuda0, there(out), with_out ? there(grad) : View{}, there(grad_lse), there(delta));
        there.fetch();
        const double bound = 100 * tolerance(delta.dtype());
        expect_elements(
            delta,
            [&](std::int64_t n) {
              const std::int64_t i = n % queries, h = n / queries % heads, b = n / queries / heads;
              double sum = -grad_lse[n];
              for (std::int64_t d = 0; with_out && d < depth; ++d) {
                const std::int64_t at = ((b * queries + i) * heads + h) * depth + d;
                sum += out[at] * grad[at];
              }
              return sum;
            },
            bound, bound);
      }
    }
}

}  // namespace
}  // namespace poolgrad::kernels::testing
