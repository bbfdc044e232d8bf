// Partial results: a softmax that continues from earlier keys, and results stored over operands.
#include <gtest/gtest.h>

#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

constexpr AttentionShape two_heads{2, 75, 90, 4, 2, 20, 20};

/// Rows [begin, end) of k, of v or of the keys of a bias.
View keys_of(View view, int dimension, std::int64_t begin, std::int64_t end) {
  view.data = view.as<char>() + begin * view.strides[dimension] * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape[dimension] = end - begin;
  return view;
}

/// Visits the keys in parts, in this order. Partial results in the compute dtype overwrite the carried ones.
void run_in_parts(ForwardProblem& p, const std::vector<std::pair<std::int64_t, std::int64_t>>& parts) {
  TestArray sum(p.compute_dtype(), {p.shape.batch, p.shape.queries, p.shape.q_heads, p.shape.v_depth});
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const auto [begin, end] = parts[n];
    AttentionSchedule schedule = p.schedule;
    schedule.keys = PositionMap::contiguous(end - begin, p.schedule.keys.first + begin);
    AttentionScores scores = p.scores;
    if (p.bias) scores.bias = keys_of(scores.bias, 3, begin, end);
    const View k = keys_of(*p.k, 1, begin, end), v = keys_of(*p.v, 1, begin, end);
    const bool last = n + 1 == parts.size();
    attention_forward(Stream{cpu}, schedule, scores, *p.q, k, v, last ? *p.out : sum, *p.lse,
                      n > 0 ? View(sum) : View{}, n > 0 ? View(*p.lse) : View{});
  }
}

TEST(AttentionForwardCarry, EqualsTheWholeOverSeveralSteps) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    ForwardProblem p(dtype, two_heads);
    p.causal(10);
    run_in_parts(p, {{0, 31}, {31, 32}, {32, 32}, {32, 90}});
    expect_rows(*p.out, p.lse.get(), p.definition());
  }
}

TEST(AttentionForwardCarry, AcceptsKeysInAnyOrderAndCountsSinksOnce) {
  for (DType dtype : {DType::f64, DType::f32}) {
    ForwardProblem p(dtype, two_heads);
    p.causal(10).with_sinks().with_alibi().with_bias({1, 4, 75, 90}).with_dropout(0.2).scores.softcap = 3;
    run_in_parts(p, {{60, 90}, {0, 25}, {25, 60}});
    expect_rows(*p.out, p.lse.get(), p.definition());
  }
}

TEST(AttentionForwardCarry, KeepsEveryBitWithoutNewKeys) {
  ForwardProblem p(DType::f32, two_heads);
  p.causal(-30).run();  // the first 30 queries see no key
  const auto out = p.out->bytes(), lse = p.lse->bytes();
  p.schedule.keys = PositionMap::contiguous(90, 1000);
  attention_forward(Stream{cpu}, p.schedule, p.scores, *p.q, *p.k, *p.v, *p.out, *p.lse, *p.out, *p.lse);
  EXPECT_EQ(p.out->bytes(), out);
  EXPECT_EQ(p.lse->bytes(), lse);
  // Query 29 still sees no key; the queries up to 44 keep their results.
  p.schedule.keys = PositionMap::contiguous(90, 15);
  const float before = static_cast<float>((*p.lse)[44]);
  attention_forward(Stream{cpu}, p.schedule, p.scores, *p.q, *p.k, *p.v, *p.out, *p.lse, *p.out, *p.lse);
  EXPECT_EQ((*p.lse)[29], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(static_cast<float>((*p.lse)[44]), before);
  EXPECT_GT((*p.lse)[45], -std::numeric_limits<double>::infinity());
}

TEST(AttentionForwardCarry, SupportsTheComputeDtypeOfHalfTypes) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    ForwardProblem p(dtype, two_heads);
    p.causal(10).out = std::make_unique<TestArray>(DType::f32, Shape{2, 75, 4, 20});
    p.run();
    const auto rows = p.definition();
    // Queries, keys and products are exact. CPUs with bf16 products may round weights.
    const double bound = dtype == DType::f16 ? 1e-5 : tolerance(dtype);
    expect_elements(
        *p.out, [&](std::int64_t i) { return rows.out[static_cast<std::size_t>(i)]; }, bound, bound);
  }
}

TEST(AttentionForwardCarry, MayOverwriteTheQueries) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    ForwardProblem p(dtype, {2, 700, 300, 4, 2, 24, 24});
    p.causal().run();
    attention_forward(Stream{cpu}, p.schedule, p.scores, *p.q, *p.k, *p.v, *p.q, {});
    EXPECT_EQ(p.q->bytes(), p.out->bytes());
  }
}

TEST(AttentionForwardCarry, ReadsAndWritesSlicesOfLargerTensors) {
  ForwardProblem p(DType::f32, {2, 75, 90, 4, 2, 12, 12});
  p.causal(15).run();
  // q, k and v are slices of one projection (B, 90, 4 + 2 + 2 heads, 12); lse covers every second query of a row.
  TestArray packed(DType::f32, {2, 90, 8, 12}), lse(DType::f32, {2, 4, 75}, Layout::spread);
  const auto slice = [&](const TestArray& from, std::int64_t first, std::int64_t heads, std::int64_t rows) {
    View view = packed;
    view.data = view.as<float>() + first * 12;
    view.shape[1] = rows;
    view.shape[2] = heads;
    for (std::int64_t i = 0; i < from.count(); ++i) {
      const std::int64_t d = i % 12, h = i / 12 % heads, t = i / 12 / heads % rows, b = i / 12 / heads / rows;
      packed.set(((b * 90 + t) * 8 + first + h) * 12 + d, from[i]);
    }
    return view;
  };
  const View q = slice(*p.q, 0, 4, 75), k = slice(*p.k, 4, 2, 90), v = slice(*p.v, 6, 2, 90);
  attention_forward(Stream{cpu}, p.schedule, p.scores, q, k, v, q, lse);
  for (std::int64_t b = 0, n = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < 75; ++t)
      for (std::int64_t i = 0; i < 48; ++i, ++n) ASSERT_EQ(packed[(b * 90 + t) * 96 + i], (*p.out)[n]);
  for (std::int64_t i = 0; i < lse.count(); ++i) ASSERT_EQ(lse[i], (*p.lse)[i]);
}

}  // namespace
}  // namespace poolgrad::kernels::testing
