// Few queries and many keys: nothing is packed, and the heads of a group share what is read.
#include <gtest/gtest.h>

#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

TEST(AttentionForwardDecode, FollowsTheDefinitionForFewQueries) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (std::int64_t queries : {1, 3, 8, 9})
      for (std::int64_t depth : {3, 16, 70})
        for (std::int64_t keys : {1, 13, 150})
          expect_definition(
              ForwardProblem(dtype, {2, queries, keys, 6, 2, depth, depth == 16 ? 5 : depth}).causal(keys - queries));
}

TEST(AttentionForwardDecode, TakesWindowsDocumentsAndModifications) {
  for (std::int64_t queries : {1, 3}) {
    ForwardProblem window(DType::f32, {1, queries, 400, 8, 1, 32, 32});
    expect_definition(window.band(150, 0, 400 - queries), "window");
    const std::int64_t bounds[] = {0, 210, 400};
    window.schedule.documents = bounds;
    window.schedule.document_count = 2;
    window.counts([](std::int64_t, std::int64_t, std::int64_t j) { return j >= 210 ? 1.0 : 0.0; });
    expect_definition(window, "documents");
    expect_definition(window.with_alibi().with_sinks().with_dropout(0.2), "modified");
  }
}

TEST(AttentionForwardDecode, VisitsWhatEachHeadOfAGroupSees) {
  // Offsets that differ from head to head: such heads share nothing.
  ForwardProblem p(DType::f32, {1, 1, 256, 4, 2, 16, 16});
  p.schedule.queries = PositionMap::contiguous(1, 255);
  AttentionTerm& term = p.schedule.term[0];
  term.kind = AttentionTerm::Kind::offsets;
  term.size = 32;
  term.sets = 2;
  term.set_begin[1] = 1;
  term.set_begin[2] = 2;
  term.run[0] = {-1, 0};
  term.run[1] = {-5, -5};
  p.counts([](std::int64_t h, std::int64_t i, std::int64_t j) {
    const std::int64_t d = j / 32 - i / 32;
    return h % 2 == 0 ? d == -1 || d == 0 : d == -5;
  });
  expect_definition(p);
}

TEST(AttentionForwardDecode, GoesOnFromCarriedResultsAndMayLieOverTheQuery) {
  ForwardProblem p(DType::f32, {2, 1, 200, 8, 2, 24, 24});
  const auto expected = p.definition();
  TestArray sum(DType::f32, {2, 1, 8, 24});
  for (std::int64_t begin : {0, 120}) {
    const std::int64_t count = begin == 0 ? 120 : 80;
    View k = *p.k, v = *p.v;
    k.data = k.as<float>() + begin * k.strides[1];
    v.data = v.as<float>() + begin * v.strides[1];
    k.shape[1] = v.shape[1] = count;
    p.schedule.keys = PositionMap::contiguous(count, begin);
    const bool last = begin > 0;
    attention_forward(Stream{cpu}, p.schedule, p.scores, *p.q, k, v, last ? *p.q : sum, *p.lse,
                      last ? View(sum) : View{}, last ? View(*p.lse) : View{});
  }
  expect_rows(*p.q, p.lse.get(), expected);
}

TEST(AttentionForwardDecode, IsBitEqualForEveryNumberOfThreads) {
  ForwardProblem p(DType::f32, {1, 1, 5000, 4, 2, 64, 64});
  expect_same_bits_for_any_thread_count(*p.out, [&] { p.run(); });
}

}  // namespace
}  // namespace poolgrad::kernels::testing
