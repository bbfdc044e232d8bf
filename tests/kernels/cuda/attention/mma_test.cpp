// Attention with tensor cores on the emulated device and on a GPU, compared with the definition. Operands are those of
// the portable kernels' tests. The error bounds cover the rounding of weights, of score gradients and of results; f32
// rounds none of these.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/schedule/device_program.h"
#include "tests/effort.h"
#include "tests/kernels/cuda/attention/operands.h"
#include "tests/mma_allowed.h"

namespace poolgrad::kernels::testing {
namespace {

constexpr AttentionShape mma_groups{2, 70, 83, 4, 2, 32, 48};

/// Dtypes under test: warpgroups do not multiply f32. A brief run takes one of the two half types for warps.
std::vector<DType> dtypes_of_mma() {
  if (cuda::has_warpgroups(0)) return {DType::bf16, DType::f16};
  if (is_brief()) return {test_seed() % 2 == 0 ? DType::bf16 : DType::f16, DType::f32};
  return {DType::bf16, DType::f16, DType::f32};
}
/// A brief run takes one of them.
std::vector<DType> of_16_bits_and_f32() {
  if (cuda::has_warpgroups(0)) return {DType::bf16};
  if (is_brief()) return {test_seed() % 2 == 0 ? DType::bf16 : DType::f32};
  return {DType::bf16, DType::f32};
}

/// The relative error of rounding to nearest: 8 and 11 significant bits.
double half_unit(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24; }

using MmaAttentionForward = MmaAttention;
using MmaAttentionBackward = MmaAttention;
using MmaAttentionOfF32 = MmaAttention;

/// Weights are rounded to the dtype of v and results to their own: |error| <= unit(v) sum w |v| + unit(out) |out|. In
/// f16, weights below 2^-14 of the row's largest err by 2^-25 of it each. The other steps are f32, with the tolerance
/// of the f32 kernels.
void expect_rounded_rows(ForwardProblem& p, const TestArray& out) {
  const ForwardProblem::Rows expected = p.definition();
  std::vector<double> values;
  double largest = 0;
  for (std::int64_t i = 0; i < p.v->count(); ++i) {
    values.push_back((*p.v)[i]);
    p.v->set(i, std::abs((*p.v)[i]));
    largest = std::max(largest, (*p.v)[i]);
  }
  const ForwardProblem::Rows magnitude = p.definition();
  for (std::int64_t i = 0; i < p.v->count(); ++i) p.v->set(i, values[static_cast<std::size_t>(i)]);
  const double tiny = p.q->dtype() == DType::f16 ? 0x1p-25 * static_cast<double>(p.shape.keys) * largest : 0;
  for (std::int64_t i = 0; i < out.count(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double bound = half_unit(p.q->dtype()) * magnitude.out[at] +
                         half_unit(out.dtype()) * std::abs(expected.out[at]) + tiny + 1e-5 * (1 + magnitude.out[at]);
    ASSERT_LE(std::abs(out[i] - expected.out[at]), bound)
        << "element " << i << ": " << out[i] << " instead of " << expected.out[at] << "; seed " << test_seed();
  }
  expect_elements(
      *p.lse, [&](std::int64_t i) { return expected.lse[static_cast<std::size_t>(i)]; }, 1e-5, 1e-5);
}
void expect_rounded_definition(ForwardProblem& p, const std::string& what = "") {
  SCOPED_TRACE(what + " Nq " + std::to_string(p.shape.queries) + " Nk " + std::to_string(p.shape.keys) + " D " +
               std::to_string(p.shape.depth) + " Dv " + std::to_string(p.shape.v_depth) + " " +
               std::string(to_string(p.q->dtype())));
  run_there(p);
  expect_rounded_rows(p, *p.out);
}
void expect_rounded_definition(ForwardProblem&& p, const std::string& what = "") { expect_rounded_definition(p, what); }

TEST_P(MmaAttentionForward, FollowsTheDefinitionForEverySize) {
  for (const DType dtype : dtypes_of_mma()) {
    for (const std::int64_t queries : {1, 16, 17, 64, 65})
      for (const std::int64_t keys : {1, 33, 64, 130})
        expect_rounded_definition(ForwardProblem(dtype, {1, queries, keys, 3, 1, 32, 32}));
    for (const auto& [depth, v_depth] :
         {std::pair{16, 128}, {48, 64}, {64, 80}, {80, 16}, {96, 112}, {112, 96}, {128, 128}})
      expect_rounded_definition(ForwardProblem(dtype, {1, 40, 70, 2, 1, depth, v_depth}));
  }
}

TEST_P(MmaAttentionForward, AcceptsEmptyInputs) {
  for (const DType dtype : dtypes_of_mma()) {
    expect_rounded_definition(ForwardProblem(dtype, {1, 5, 0, 2, 2, 32, 32}));
    expect_rounded_definition(ForwardProblem(dtype, {1, 0, 5, 2, 2, 32, 32}));
    expect_rounded_definition(ForwardProblem(dtype, {0, 5, 5, 2, 2, 32, 32}));
  }
}

TEST_P(MmaAttentionForward, SupportsBandsOfEveryWidthAndOffset) {
  const std::int64_t bands[][3] = {{unbounded, 0, 0}, {unbounded, 0, -40}, {16, 0, 0},         {0, 0, 0},
                                   {-10, 20, 0},      {30, unbounded, 7},  {unbounded, -3, 0}, {4, 4, 1000}};
  for (const DType dtype : dtypes_of_mma())
    for (const auto& [left, right, offset] : bands)
      expect_rounded_definition(ForwardProblem(dtype, {1, 200, 157, 2, 1, 32, 32}).band(left, right, offset),
                                std::to_string(left) + " " + std::to_string(right) + " " + std::to_string(offset));
}

TEST_P(MmaAttentionForward, FollowsEveryPattern) {
  const PositionMap many = PositionMap::contiguous(140);
  for (const Named& pattern : some_of(patterns()))
    for (const bool causal : {false, true})
      expect_rounded_definition(of_pattern(causal ? DType::bf16 : DType::f16, pattern, many, many, causal, 32, 48),
                                pattern.name);
}

TEST_P(MmaAttentionForward, CountsPairsOfBranchesWithMultiplicityInEveryVisit) {
  const PositionMap n = PositionMap::contiguous(200);
  for (const DType dtype : dtypes_of_mma())
    expect_rounded_definition(of_pattern(dtype, patterns()[0], n, n, true, 32, 32), patterns()[0].name);
}

TEST_P(MmaAttentionForward, FollowsEveryPatternOnShards) {
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3};
  for (const Named& pattern : some_of(patterns()))
    for (const auto& [queries, keys] : {std::pair{zigzag, striped}, {striped, zigzag}, {zigzag, zigzag}})
      expect_rounded_definition(of_pattern(DType::f16, pattern, queries, keys, true, 32, 32), pattern.name);
}

TEST_P(MmaAttentionForward, FollowsListedBlocksAndDocuments) {
  const ListedBlocks blocks;
  expect_rounded_definition(of_pattern(DType::f16, {"listed", {blocks.term()}, 1, 16}, PositionMap::contiguous(80),
                                       PositionMap::contiguous(93), true, 32, 32));
  for (const bool causal : {false, true}) {
    ForwardProblem p(DType::f16, {1, 250, 250, 2, 2, 48, 32});
    if (causal) p.causal();
    p.with_documents(uneven_documents);
    expect_rounded_definition(p);
  }
}

TEST_P(MmaAttentionForward, ModifiesScores) {
  for (const DType dtype : dtypes_of_mma()) {
    ForwardProblem capped(dtype, mma_groups);
    capped.causal(13).scores.softcap = 0.7;
    capped.scores.scale = 1;  // scores far above the cap
    expect_rounded_definition(capped, "softcap");
    expect_rounded_definition(ForwardProblem(dtype, mma_groups).band(40, 3, 9).with_alibi(), "alibi");
    for (const bool keys_adjacent : {true, false})
      expect_rounded_definition(ForwardProblem(dtype, mma_groups).causal(20).with_bias({2, 4, 70, 83}, keys_adjacent),
                                "bias");
    expect_rounded_definition(ForwardProblem(dtype, mma_groups).causal(-20).with_sinks(), "sinks");
    expect_rounded_definition(ForwardProblem(dtype, mma_groups).with_dropout(0.4), "dropout of everything");
    ForwardProblem dropped(dtype, mma_groups);
    dropped.causal(13).with_dropout(0.4).scores.first_batch = 3;
    expect_rounded_definition(dropped, "dropout");
    dropped.schedule.queries = {70, 30, 5, 4'000'000'000, 1};
    dropped.schedule.keys = {83, 41, 2, 20'000'000'003, 3};
    dropped.schedule.right = unbounded;
    dropped.multiplicity = every_pair;
    expect_rounded_definition(dropped, "dropout of shards");
    ForwardProblem all(dtype, {2, 83, 101, 4, 2, 80, 32});
    all.band(90, 5, 18).with_alibi().with_bias({1, 4, 83, 101}).with_sinks().with_dropout(0.1).scores.softcap = 2;
    expect_rounded_definition(all, "all at once");
  }
}

TEST_P(MmaAttentionForward, LeavesOutPairsWithABiasOfMinusInfinity) {
  ForwardProblem p(DType::bf16, mma_groups);
  p.with_bias({2, 4, 70, 83});
  for (std::int64_t i = 0; i < p.bias->count(); ++i)
    if (i % 3 || i / 83 % 70 == 5) p.bias->set(i, -infinity);
  expect_rounded_definition(p);
  EXPECT_EQ((*p.out)[5 * 4 * 48], 0);  // query 5 sees no key
  EXPECT_EQ((*p.lse)[5], -infinity);
}

TEST_P(MmaAttentionForward, EqualsTheWholeOverSeveralSteps) {
  for (const DType dtype : dtypes_of_mma()) {
    ForwardProblem p(dtype, {2, 75, 90, 4, 2, 32, 48});
    p.causal(10).with_sinks().with_alibi().with_dropout(0.2);
    run_in_parts_there(p, {{60, 90}, {0, 25}, {25, 25}, {25, 60}});
    expect_rounded_rows(p, *p.out);
  }
}

TEST_P(MmaAttentionForward, KeepsEveryBitWithoutNewKeys) {
  ForwardProblem p(DType::f16, {2, 75, 90, 4, 2, 32, 48});
  p.causal(-30);
  const TestArray out(DType::f32, {2, 75, 4, 48});
  const DeviceOperands there(p.q, p.k, p.v, p.lse, out);
  attention_forward(cuda0, p.schedule, p.scores, there(*p.q), there(*p.k), there(*p.v), there(out), there(*p.lse));
  there.fetch();
  expect_rounded_rows(p, out);
  const auto first_out = out.bytes(), first_lse = p.lse->bytes();
  p.schedule.keys = PositionMap::contiguous(90, 1000);
  attention_forward(cuda0, p.schedule, p.scores, there(*p.q), there(*p.k), there(*p.v), there(out), there(*p.lse),
                    there(out), there(*p.lse));
  there.fetch();
  EXPECT_EQ(out.bytes(), first_out);
  EXPECT_EQ(p.lse->bytes(), first_lse);
}

TEST_P(MmaAttentionForward, MayOverwriteTheQueries) {
  for (const DType dtype : of_16_bits_and_f32()) {
    ForwardProblem p(dtype, {1, 100, 130, 4, 2, 32, 32});
    p.causal();
    expect_same_out_over_the_queries(p);
  }
}

TEST_P(MmaAttentionForward, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  for (const DType dtype : of_16_bits_and_f32()) {
    ForwardProblem p(dtype, {2, 150, 150, 4, 2, 32, 32});
    p.causal().with_dropout(0.1);
    expect_same_bits_in_every_order(p);
  }
}

TEST_P(MmaAttentionForward, HasTheSameBitsWithSeveralTilesPerBlock) {
  for (const DType dtype : of_16_bits_and_f32()) {
    ForwardProblem p(dtype, {2, 150, 150, 4, 2, 32, 32});
    p.causal(-20).with_sinks().with_dropout(0.1);  // some queries see no key
    expect_same_rows_by_few_blocks(p);
  }
}

TEST_P(MmaAttentionOfF32, IsAsExactAsF32) {
  for (const std::int64_t depth : {32, 64, 128}) {
    ForwardProblem p(DType::f32, {1, 80, 150, 2, 1, depth, depth});
    p.causal(70);
    run_there(p);
    const ForwardProblem::Rows expected = p.definition();
    for (std::int64_t i = 0; i < p.out->count(); ++i)
      ASSERT_NEAR((*p.out)[i], expected.out[static_cast<std::size_t>(i)], 3e-6) << "D " << depth << ", element " << i;
    for (std::int64_t i = 0; i < p.lse->count(); ++i)
      ASSERT_NEAR((*p.lse)[i], expected.lse[static_cast<std::size_t>(i)], 3e-6) << "D " << depth << ", query " << i;
  }
}

/// Both passes over a tile round equally: they differ in the order of f32 sums, which few rounded results show.
template <class Array>
void expect_nearly_same_bits(const Array& actual, const std::vector<double>& expected, DType dtype) {
  std::int64_t differ = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double found = actual[static_cast<std::int64_t>(i)], error = std::abs(found - expected[i]);
    ASSERT_LE(error, 2 * half_unit(dtype) * (1 + std::abs(expected[i])) + 2e-5) << to_string(dtype) << ' ' << i;
    differ += found != expected[i];
  }
  EXPECT_LE(differ, dtype == DType::f32 ? std::ssize(expected) : std::ssize(expected) / 20) << to_string(dtype);
}
template <class Array>
std::vector<double> first_of(const Array& array, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(array[i]);
  return values;
}

TEST_P(MmaAttentionForward, IgnoresNanInUnseenKeys) {
  for (const DType dtype : dtypes_of_mma()) {
    ForwardProblem p(dtype, {1, 100, 100, 2, 2, 32, 32});
    p.causal();
    run_there(p);
    const std::int64_t rows = 60 * 2 * 32;  // from key 60 on
    const std::vector<double> expected = first_of(*p.out, rows);
    for (std::int64_t i = rows; i < p.k->count(); ++i) p.k->set(i, i % 2 ? nan : infinity), p.v->set(i, nan);
    run_there(p);
    expect_nearly_same_bits(*p.out, expected, dtype);
    EXPECT_TRUE(std::isnan((*p.out)[rows])) << "query 60";
  }
}

TEST_P(MmaAttentionOfF32, HandlesInfinities) {
  const auto run = [](bool mma, bool by_pairs) {
    const MmaAllowed allowed(mma);
    ForwardProblem p(DType::f32, {1, 70, 90, 1, 1, 32, 32});
    if (by_pairs) p.with_alibi();
    p.k->set(7 * 32, infinity);  // a score of -infinity and weight 0 for queries whose first element is negative
    p.v->set(80 * 32 + 5, -infinity);
    run_there(p);
    std::vector<double> out;
    for (std::int64_t i = 0; i < p.out->count(); ++i) out.push_back((*p.out)[i]);
    return out;
  };
  for (const bool by_pairs : {false, true}) {
    const std::vector<double> out = run(true, by_pairs), expected = run(false, by_pairs);
    std::int64_t finite = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      finite += std::isfinite(expected[i]);
      if (std::isnan(expected[i]))
        ASSERT_TRUE(std::isnan(out[i])) << i;
      else if (std::isinf(expected[i]))
        ASSERT_EQ(out[i], expected[i]) << i;
      else
        ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
    }
    EXPECT_GT(finite, 20 * 31);
    EXPECT_LT(finite, 50 * 31);
  }
}

TEST_P(MmaAttentionOfF32, HasTheSameBitsForEverySplitSize) {
  ForwardProblem p(DType::f32, {2, 70, 83, 6, 3, 32, 48});
  p.causal(13).with_alibi().with_bias({2, 6, 70, 83}).with_sinks().with_dropout(0.1);
  const std::int64_t of_head = split_planes * 83 * (32 + 48);
  expect_same_rows_within(most_split_elements, {1, 2 * of_head, 3 * of_head, 7 * of_head}, p);
}

TEST_P(MmaAttentionForward, FallsBackToPortableKernels) {
  const auto differs = [](DType dtype, std::int64_t depth, std::int64_t offset) {
    ForwardProblem p(dtype, {1, 20, 30, 2, 2, depth, depth});
    const auto run = [&] {
      const DeviceOperands there(p.q, p.k, p.v, p.out, p.lse);
      View k = there(*p.k);
      k.data = k.as<std::byte>() + offset;
      k.shape[1] -= offset > 0;
      AttentionSchedule schedule = p.schedule;
      schedule.keys = PositionMap::contiguous(k.shape[1]);
      View v = there(*p.v);
      v.shape[1] = k.shape[1];
      attention_forward(cuda0, schedule, p.scores, there(*p.q), k, v, there(*p.out), there(*p.lse));
      there.fetch();
      return p.out->bytes();
    };
    const auto by_mma = run();
    const MmaAllowed not_allowed(false);
    return by_mma != run();
  };
  for (const DType dtype : dtypes_of_mma()) {
    EXPECT_TRUE(differs(dtype, 32, 0)) << "weights are rounded, or sums are in another order";
    EXPECT_TRUE(differs(dtype, 128, 0));
    EXPECT_FALSE(differs(dtype, 24, 0));
    EXPECT_FALSE(differs(dtype, 144, 0));
    EXPECT_FALSE(differs(dtype, 32, static_cast<std::int64_t>(size_of(dtype)))) << "rows at odd addresses";
  }
  EXPECT_FALSE(differs(DType::f64, 32, 0));
  EXPECT_EQ(attention_backend(cuda0.device), "cuda cores, f16, bf16 and f32: mma");
}

BackwardExample aligned(BackwardExample e) {
  e.gap = 8;
  e.depth = 32, e.v_depth = 48;
  e.magnitudes = true;
  return e;
}
BackwardExample aligned_groups(std::int64_t queries, std::int64_t keys) {
  BackwardExample e = aligned(banded(queries, keys, unbounded, 0));
  e.q_heads = e.schedule.heads = 4;
  return e;
}

/// As expect_rounded_rows(): the last products of dq, dk and dv each have one rounded operand.
void expect_rounded_gradients(const BackwardCheck& check, const BackwardCheck::Result& result, bool with_dbias = true) {
  const auto expect_rounded = [&](const RowsArray& actual, const Numbers& expected, const Numbers& magnitude,
                                  const char* what) {
    double largest = 1;
    for (double x : expected) largest = std::max(largest, std::abs(x));
    for (std::int64_t i = 0; i < actual.count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double bound = half_unit(check.storage) * magnitude[at] +
                           half_unit(actual.view().dtype) * std::abs(expected[at]) + 2e-5 * largest;
      ASSERT_LE(std::abs(actual[i] - expected[at]), bound)
          << what << " element " << i << ": " << actual[i] << " instead of " << expected[at] << "; seed "
          << test_seed();
    }
  };
  expect_rounded(result.dq, check.expected.dq, check.magnitude.dq, "dq");
  expect_rounded(result.dk, check.expected.dk, check.magnitude.dk, "dk");
  expect_rounded(result.dv, check.expected.dv, check.magnitude.dv, "dv");
  if (check.e.dbias && with_dbias) check.expect_close(result.dbias, check.expected.dbias, 2e-5, "dbias");
}
void expect_rounded_definition(const BackwardExample& example, const std::vector<DType>& dtypes = dtypes_of_mma()) {
  for (const DType dtype : dtypes) {
    SCOPED_TRACE(::testing::Message() << "B " << example.batch << " Nq " << example.queries() << " Nk "
                                      << example.keys() << " D " << example.depth << " Dv " << example.v_depth << " "
                                      << to_string(dtype));
    const BackwardCheck check(example, dtype);
    const BackwardCheck::Result result(check.e, dtype);
    run_there(check, check.e.schedule, result);
    expect_rounded_gradients(check, result);
  }
}

TEST_P(MmaAttentionBackward, FollowsTheDefinitionForEverySize) {
  for (const auto& [queries, keys] : {std::pair{1, 1}, {64, 64}, {65, 130}, {1, 70}, {150, 33}})
    expect_rounded_definition(aligned_groups(queries, keys));
  for (const auto& [depth, v_depth] : {std::pair{16, 128}, {64, 64}, {64, 80}, {128, 16}, {112, 96}, {128, 128}}) {
    BackwardExample e = aligned_groups(50, 70);
    e.depth = depth, e.v_depth = v_depth;
    expect_rounded_definition(e);
  }
  BackwardExample batches = aligned_groups(40, 40);
  batches.batch = 2;
  expect_rounded_definition(batches);
}

TEST_P(MmaAttentionBackward, IsZeroForEmptyInputs) {
  for (const auto& [queries, keys] : {std::pair{5, 0}, {0, 5}})
    expect_rounded_definition(
        aligned(banded(PositionMap::contiguous(queries), PositionMap::contiguous(keys), unbounded, 0)));
}

TEST_P(MmaAttentionBackward, FollowsBandsAndFullyMaskedQueries) {
  for (const auto& [left, right] : {std::pair{std::int64_t{16}, std::int64_t{0}},
                                    {std::int64_t{0}, std::int64_t{0}},
                                    {std::int64_t{-10}, std::int64_t{20}},
                                    {unbounded, std::int64_t{-30}}})
    expect_rounded_definition(aligned(banded(PositionMap::contiguous(140), PositionMap::contiguous(101), left, right)));
  BackwardExample e = aligned(banded(130, 130, unbounded, unbounded));
  e.alone = {3, 60, 69};
  expect_rounded_definition(e);
}

TEST_P(MmaAttentionBackward, KeepsDocumentsApart) {
  for (const auto& [left, right] : {std::pair{unbounded, unbounded}, {unbounded, std::int64_t{0}}, {16, 3}})
    expect_rounded_definition(aligned(with_documents(banded(150, 150, left, right), uneven_documents)));
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3}, n = PositionMap::contiguous(140);
  for (const auto& [queries, keys] : {std::pair{zigzag, striped}, {striped, zigzag}})
    expect_rounded_definition(aligned(with_documents(banded(queries, keys, unbounded, 0), uneven_documents)));
  for (const Named& pattern : some_of(patterns())) {
    SCOPED_TRACE(pattern.name);
    expect_rounded_definition(aligned(with_documents(example(pattern, n, n, true), uneven_documents)), {DType::bf16});
  }
}

TEST_P(MmaAttentionBackward, FollowsEveryPattern) {
  const PositionMap many = PositionMap::contiguous(140), zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3};
  for (const Named& pattern : some_of(patterns())) {
    SCOPED_TRACE(pattern.name);
    expect_rounded_definition(aligned(example(pattern, many, many, true)), {DType::f16});
    expect_rounded_definition(aligned(example(pattern, zigzag, striped, true)), {DType::bf16});
    expect_rounded_definition(aligned(example(pattern, striped, zigzag, false)), {DType::f16});
  }
  const ListedBlocks blocks;
  expect_rounded_definition(aligned(
      example({"listed", {blocks.term()}, 1, 16}, PositionMap::contiguous(80), PositionMap::contiguous(93), true)));
}

TEST_P(MmaAttentionForward, FollowsTheDefinitionUnderTheLargestBiases) {
  for (const DType dtype : dtypes_of_mma())
    for (const bool sinks : {false, true})
      expect_rounded_definition(ForwardProblem(dtype, mma_groups).with_largest_biases(sinks), sinks ? "sinks" : "");
}

// Such f32 numbers are hundreds apart, so the rounding of the largest score must not change the weights.
TEST_P(MmaAttentionForward, FollowsTheDefinitionForHugeProducts) {
  for (const DType dtype : dtypes_of_mma())
    for (const double scale : {0.731, 0.61, 0.9}) {
      ForwardProblem p(dtype, mma_groups);
      for (TestArray* x : {p.q.get(), p.k.get()}) x->fill([](std::int64_t n) { return n % 96 < 64 ? 28672 : -28672; });
      p.scores.scale = scale;
      expect_rounded_definition(p, std::to_string(scale));
    }
}

TEST_P(MmaAttentionBackward, DifferentiatesModifiedScores) {
  const std::function<void(BackwardExample&)> changes[] = {[](BackwardExample& e) { e.softcap = 1.5; },
                                                           [](BackwardExample& e) { e.bias = e.dbias = true; },
                                                           [](BackwardExample& e) { e.dbias = true; },
                                                           [](BackwardExample& e) { e.alibi = true; },
                                                           [](BackwardExample& e) { e.sinks = true; },
                                                           [](BackwardExample& e) { e.dropout = 0.3; },
                                                           [](BackwardExample& e) {
                                                             e.softcap = 4, e.dropout = 0.2;
                                                             e.bias = e.dbias = e.alibi = e.sinks = true;
                                                           }};
  std::size_t run = 0;
  for (const auto& change : changes) {
    BackwardExample shards = aligned_groups(1, 1);
    shards.schedule.queries = {75, 40, 20, 160, 1};
    shards.schedule.keys = {83, 83, 1, 1, 2};
    const PositionMap n = PositionMap::contiguous(70);
    for (BackwardExample e : {aligned_groups(37, 140), shards, aligned(example(patterns()[0], n, n, true))}) {
      change(e);
      expect_rounded_definition(e, {dtypes_of_mma()[++run % dtypes_of_mma().size()]});
    }
  }
}

TEST_P(MmaAttentionBackward, DoesNotOverflowUnderHugeBiases) {
  for (const DType dtype : of_16_bits_and_f32()) expect_no_overflow_of_huge_biases_there(aligned_groups(70, 83), dtype);
}

TEST_P(MmaAttentionOfF32, HasTheSameGradientsForEverySplitSize) {
  BackwardExample e = aligned_groups(40, 50);
  e.batch = 2;
  e.bias = e.dbias = e.alibi = e.sinks = true;
  e.dropout = 0.2;
  const std::int64_t of_head = split_planes * 50 * (e.depth + e.v_depth);
  expect_same_gradients_within(most_split_elements, {1, 2 * of_head}, BackwardCheck(e, DType::f32), DType::f32);
}

TEST_P(MmaAttentionBackward, IgnoresNanInUnseenKeys) {
  for (const DType dtype : dtypes_of_mma()) {
    BackwardCheck check(aligned(causal(100)), dtype);
    const BackwardCheck::Result clean(check.e, dtype), result(check.e, dtype);
    run_there(check, check.e.schedule, clean);
    const std::int64_t rows = 60 * 2 * 32;  // from key 60 on
    for (std::int64_t i = rows; i < check.k.count(); ++i) check.k.set(i, nan);
    run_there(check, check.e.schedule, result);
    expect_nearly_same_bits(result.dq, first_of(clean.dq, rows), dtype);
    EXPECT_TRUE(std::isnan(result.dq[rows])) << "query 60";
  }
}

TEST_P(MmaAttentionBackward, AccumulatesTermsOverSeveralPasses) {
  const PositionMap n = PositionMap::contiguous(120);
  const Named both{"sum", {of_kind(Kind::segment, 20), of_kind(Kind::columns, 5, 1)}};
  BackwardExample e = aligned(example(both, n, n, true));
  e.dbias = true;
  for (const DType dtype : of_16_bits_and_f32()) {
    const BackwardCheck check(e, dtype);
    const BackwardCheck::Result sum(check.e, DType::f32);
    for (std::size_t t = 0; t < 2; ++t)
      run_there(check, example({"pass", {both.terms[t]}}, n, n, true).schedule, sum, t > 0);
    expect_rounded_gradients(check, sum);
  }
}

TEST_P(MmaAttentionBackward, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  for (const DType dtype : of_16_bits_and_f32())
    expect_same_bits_again(BackwardCheck(aligned_groups(150, 150), dtype), dtype);
}

TEST_P(MmaAttentionBackward, HasTheSameBitsWithSeveralTilesPerBlock) {
  BackwardExample e = aligned_groups(150, 150);
  e.alone = {0, 70};
  for (const DType dtype : of_16_bits_and_f32()) expect_same_gradients_by_few_blocks(BackwardCheck(e, dtype), dtype);
}

constexpr MultipliedBy both_ways[] = {MultipliedBy::warps, MultipliedBy::warpgroups};
INSTANTIATE_TEST_SUITE_P(, MmaAttentionForward, ::testing::ValuesIn(both_ways), name_of);
INSTANTIATE_TEST_SUITE_P(, MmaAttentionBackward, ::testing::ValuesIn(both_ways), name_of);
INSTANTIATE_TEST_SUITE_P(, MmaAttentionOfF32, ::testing::Values(MultipliedBy::warps), name_of);

}  // namespace
}  // namespace poolgrad::kernels::testing
