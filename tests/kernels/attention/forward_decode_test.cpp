// Few queries and many keys: keys are not packed, and the heads of a group share each read.
#include <gtest/gtest.h>

#include "kernels/instruction_sets.h"
#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

/// From this number of keys on, few queries split the keys into parts of at least half of it.
constexpr std::int64_t two_parts = 4096;

TEST(AttentionForwardDecode, FollowsTheDefinitionForFewQueries) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (std::int64_t queries : {1, 3, 8, 9})
      for (std::int64_t depth : {3, 16, 70})
        for (std::int64_t keys : {1, 13, 150})
          expect_definition(
              ForwardProblem(dtype, {2, queries, keys, 6, 2, depth, depth == 16 ? 5 : depth}).causal(keys - queries));
}

TEST(AttentionForwardDecode, SupportsWindowsDocumentsAndModifications) {
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

TEST(AttentionForwardDecode, VisitsTheKeysOfEachHeadOfAGroup) {
  // Heads with different offsets share no read.
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

TEST(AttentionForwardDecode, ContinuesCarriedResultsAndMayOverwriteTheQuery) {
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

/// ALiBi with small scores over thousands of keys.
ForwardProblem& with_gentle_alibi(ForwardProblem& p) {
  p.with_alibi();
  for (std::int64_t h = 0; h < p.shape.q_heads; ++h) p.alibi->set(h, 0.001 * static_cast<double>(h + 1));
  return p;
}

TEST(AttentionForwardDecode, FollowsTheDefinitionWithSplitKeys) {
  struct Lengths {
    std::int64_t queries, keys;
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto [queries, keys] : {Lengths{1, two_parts + 1}, {3, 5000}, {9, 5000}}) {  // 9 queries pack their keys
      const AttentionShape shape{1, queries, keys, 2, 1, 16, 20};
      const std::int64_t at_the_end = keys - queries;
      expect_definition(ForwardProblem(dtype, shape).band(unbounded, unbounded), "dense");
      expect_definition(ForwardProblem(dtype, shape).causal(1000), "a part that nobody sees");
      expect_definition(ForwardProblem(dtype, shape).band(keys / 2 + 40, 0, at_the_end).with_sinks(), "window, sinks");
      ForwardProblem all(dtype, shape);
      all.scores.softcap = 1.5;
      expect_definition(with_gentle_alibi(all.band(keys - 300, 0, at_the_end).with_sinks().with_dropout(0.2)),
                        "everything");
    }
}

/// Bytes of scratch of a call with one query in f32. Each part of the keys has a result there; there are at least two.
std::int64_t scratch_of(std::int64_t heads, std::int64_t keys) {
  const TestArray q(DType::f32, {1, 1, heads, 16}), one(DType::f32, {1, 1, heads, 16});
  View k = one;
  k.shape[1] = keys;
  return attention_forward_scratch(q, k, k);
}

TEST(AttentionForwardDecode, SplitsKeysByTheAmountOfWork) {
  for (const std::int64_t heads : {1, 4, 16}) {
    const std::int64_t whole = scratch_of(heads, two_parts - 1), two = scratch_of(heads, two_parts) - whole;
    EXPECT_EQ(whole, scratch_of(heads, 1)) << "one part";
    EXPECT_GE(two, 2 * heads * (16 + 1) * std::int64_t{sizeof(float)}) << heads << " heads: results and lse of two";
    const auto parts = [&](std::int64_t keys) {
      return 2.0 * static_cast<double>(scratch_of(heads, keys) - whole) / static_cast<double>(two);
    };
    const double most = 32.0 / static_cast<double>(heads);  // parts that keep all cores busy
    EXPECT_EQ(parts(3 * two_parts / 2), std::min(3.0, most)) << heads << " heads";
    EXPECT_EQ(parts(100 * two_parts), most) << heads << " heads";
  }
  EXPECT_EQ(scratch_of(32, 100 * two_parts), scratch_of(32, 1)) << "enough heads";
}

TEST(AttentionForwardDecode, MergesPartsWithDifferentMaxima) {
  // Scores rise or fall between parts by more than the range of exp in f32: one part decides the result.
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool descending : {false, true}) {
      ForwardProblem p(dtype, {1, 1, 3 * two_parts, 2, 1, 16, 16});
      const std::int64_t of_a_key = p.shape.depth, count = p.k->count();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t key = descending ? p.shape.keys - 1 - i / of_a_key : i / of_a_key;
        p.k->set(i, (*p.k)[i] + 30.0 * (static_cast<double>(key) / static_cast<double>(p.shape.keys) - 1));
      }
      for (std::int64_t i = 0; i < p.q->count(); ++i) p.q->set(i, 1.0 + 0.1 * (*p.q)[i]);
      expect_definition(p, descending ? "descending" : "ascending");
    }
}

TEST(AttentionForwardDecode, SplitsKeysAfterACarriedResult) {
  // The first part alone includes the carried result and the sinks.
  ForwardProblem p(DType::f32, {1, 2, 3 * two_parts, 2, 1, 16, 16});
  p.with_sinks();
  const auto expected = p.definition();
  TestArray sum(DType::f32, {1, 2, 2, 16});
  for (const std::int64_t begin : {std::int64_t{0}, two_parts + 100}) {
    const std::int64_t end = begin == 0 ? two_parts + 100 : p.shape.keys;
    View k = *p.k, v = *p.v;
    k.data = k.as<float>() + begin * k.strides[1];
    v.data = v.as<float>() + begin * v.strides[1];
    k.shape[1] = v.shape[1] = end - begin;
    p.schedule.keys = PositionMap::contiguous(end - begin, begin);
    attention_forward(Stream{cpu}, p.schedule, p.scores, *p.q, k, v, sum, *p.lse, begin > 0 ? View(sum) : View{},
                      begin > 0 ? View(*p.lse) : View{});
  }
  expect_rows(sum, p.lse.get(), expected);
}

TEST(AttentionForwardDecode, SplitsKeysOnEveryInstructionSet) {
  for (const std::string_view set : instruction_sets()) {
    set_instruction_set(set);
    ForwardProblem p(DType::bf16, {1, 12, 5000, 2, 1, 16, 16});
    expect_definition(p.causal(5000 - 12).with_sinks(), std::string(set));
  }
  set_instruction_set("auto");
}

TEST(AttentionForwardDecode, IsBitEqualForEveryNumberOfThreads) {
  ForwardProblem p(DType::f32, {1, 1, 5000, 4, 2, 64, 64});
  expect_same_bits_for_any_thread_count(*p.out, [&] { p.run(); });
}

}  // namespace
}  // namespace poolgrad::kernels::testing
