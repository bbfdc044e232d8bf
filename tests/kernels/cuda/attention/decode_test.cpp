// Few queries and many keys on the emulated device. Several blocks compute parts of the keys and join the results.
// Heads of a group are rows of one tile. Every option gives the same result as elsewhere.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "kernels/schedule/device_program.h"
#include "tests/effort.h"
#include "tests/kernels/cuda/attention/operands.h"

namespace poolgrad::kernels::testing {
namespace {

using CudaAttentionDecode = PortableAttention;

constexpr double infinity = std::numeric_limits<double>::infinity();

GpuForwardPlan plan_of(const AttentionSchedule& schedule, const View& q, const View& k, const View& v) {
  const std::int64_t rows = gpu_tile_rows(compute_dtype(q.dtype));
  return GpuForwardPlan::make(ProgramCache::global().get(schedule, rows, false)->program(), q, k, v);
}
GpuForwardPlan plan_of(const ForwardProblem& p) { return plan_of(p.schedule, *p.q, *p.k, *p.v); }
/// The plan for operands in f32, without arrays.
GpuForwardPlan plan_of(const AttentionShape& s, std::int64_t left = unbounded) {
  AttentionSchedule schedule;
  schedule.queries = PositionMap::contiguous(s.queries, s.keys - s.queries);
  schedule.keys = PositionMap::contiguous(s.keys);
  schedule.heads = s.q_heads;
  schedule.left = left;
  const View q{nullptr, DType::f32, 4, {s.batch, s.queries, s.q_heads, s.depth}},
      k{nullptr, DType::f32, 4, {s.batch, s.keys, s.kv_heads, s.depth}};
  return plan_of(schedule, q, k, k);
}
/// As expect_definition_there(), for a call that splits the keys.
void expect_definition_in_parts(ForwardProblem& p, const std::string& what = "") {
  ASSERT_GT(plan_of(p).parts, 1) << what;
  expect_definition_there(p, what);
}
void expect_definition_in_parts(ForwardProblem&& p, const std::string& what = "") {
  expect_definition_in_parts(p, what);
}

TEST_F(CudaAttentionDecode, IsSplitByShapesAndTheProgramAlone) {
  EXPECT_EQ(plan_of({1, 1, 16384, 8, 8, 64, 64}).parts, 32);  // 256 blocks
  EXPECT_EQ(plan_of({1, 1, 1024, 8, 8, 64, 64}).parts, 4);    // parts of at least 256 keys
  EXPECT_EQ(plan_of({1, 1, 511, 8, 8, 64, 64}).parts, 1);
  EXPECT_EQ(plan_of({4, 65, 4096, 16, 16, 64, 64}).parts, 2);  // 128 tiles
  EXPECT_EQ(plan_of({16, 1, 4096, 16, 16, 64, 64}).parts, 1);
  EXPECT_EQ(plan_of({1, 1, 4096, 8, 2, 64, 64}).stacked, 4);
  EXPECT_EQ(plan_of({1, 2, 4096, 8, 2, 64, 64}).stacked, 1);
  EXPECT_EQ(plan_of({1, 1, 4096, 1, 1, 8, 8}, 599).parts, 2) << "keys that nobody visits are nobody's work";
  EXPECT_EQ(plan_of({1, 1, (std::int64_t{1} << 33) + 1, 1, 1, 8, 8}).parts, 256) << "keys are counted in 64 bits";
}

TEST_F(CudaAttentionDecode, FollowsTheDefinitionForEverySize) {
  for (const DType dtype : floats) {
    for (const std::int64_t queries : {1, 3, 4, 5})
      for (const std::int64_t keys : {512, 777})
        expect_definition_in_parts(ForwardProblem(dtype, {2, queries, keys, 3, 1, 24, 24}).causal(keys - queries));
    for (const std::int64_t depth : {1, 37, 64, 150})
      for (const std::int64_t v_depth : {1, 67, 131})
        if (depth == 37 || v_depth == 67)
          expect_definition_in_parts(ForwardProblem(dtype, {1, 2, 600, 2, 1, depth, v_depth}));
    expect_definition_in_parts(ForwardProblem(dtype, {1, 70, 520, 1, 1, 8, 8}).causal(450));
  }
}

TEST_F(CudaAttentionDecode, StacksTheHeadsOfAGroup) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const std::int64_t group : {2, 4, 7})
      for (const std::int64_t keys : {40, 600}) {
        ForwardProblem p(dtype, {2, 1, keys, 2 * group, 2, 20, 12});
        EXPECT_EQ(plan_of(p).stacked, group);
        expect_definition_there(p.causal(keys - 1).with_alibi().with_sinks(), "stacked");
      }
  ForwardProblem p(DType::f32, {2, 1, 600, 6, 2, 20, 12});
  p.band(550, 0, 599).with_bias({2, 6, 1, 600}).with_dropout(0.3).scores.softcap = 2;
  expect_definition_in_parts(p, "stacked, all at once");
}

TEST_F(CudaAttentionDecode, SupportsEveryModification) {
  const AttentionShape shape{2, 3, 700, 4, 2, 20, 12};
  for (const DType dtype : {DType::f64, DType::f32}) {
    expect_definition_in_parts(ForwardProblem(dtype, shape).causal(697).with_alibi(), "alibi");
    expect_definition_in_parts(ForwardProblem(dtype, shape).with_sinks(), "sinks");
    expect_definition_in_parts(ForwardProblem(dtype, shape).with_bias({2, 4, 3, 700}, false), "bias");
    expect_definition_in_parts(ForwardProblem(dtype, shape).with_dropout(0.4), "dropout");
    expect_definition_in_parts(ForwardProblem(dtype, shape).band(640, 0, 690), "window");
    ForwardProblem documents(dtype, shape);
    documents.causal(650).with_documents({0, 60, 651, 700});
    expect_definition_in_parts(documents, "documents");
    ForwardProblem capped(dtype, shape);
    capped.scores.softcap = 0.7;
    expect_definition_in_parts(capped, "softcap");
  }
}

TEST_F(CudaAttentionDecode, FollowsEveryPattern) {
  for (const Named& pattern : some_of(patterns()))
    expect_definition_there(
        of_pattern(DType::f32, pattern, PositionMap::contiguous(3, 620), PositionMap::contiguous(623), true),
        pattern.name);
}

TEST_F(CudaAttentionDecode, IsZeroWithoutKeys) {
  ForwardProblem p(DType::f32, {1, 3, 700, 4, 2, 20, 12});
  p.with_bias({1, 4, 3, 700});
  for (std::int64_t i = 0; i < p.bias->count(); ++i)
    if (i / 700 % 3 == 1 || i % 700 < 256) p.bias->set(i, -infinity);  // masks query 1, and whole parts for the others
  expect_definition_in_parts(p);
  EXPECT_EQ((*p.out)[4 * 12], 0);
  EXPECT_EQ((*p.lse)[1], -infinity);
}

TEST_F(CudaAttentionDecode, EqualsTheWholeOverSeveralSteps) {
  for (const DType dtype : floats) {
    ForwardProblem p(dtype, {2, 2, 1600, 4, 2, 20, 24});
    p.causal(1500).with_sinks().with_alibi().with_dropout(0.2);
    if (compute_dtype(dtype) == dtype) p.with_bias({1, 4, 2, 1600});
    run_in_parts_there(p, {{900, 1600}, {0, 30}, {30, 900}});
    expect_rows(*p.out, p.lse.get(), p.definition());
  }
}

TEST_F(CudaAttentionDecode, KeepsEveryBitWithoutNewKeys) {
  ForwardProblem p(DType::f32, {2, 1, 600, 4, 2, 20, 20});
  run_there(p);
  const auto out = p.out->bytes(), lse = p.lse->bytes();
  p.with_bias({1, 1, 1, 600});
  for (std::int64_t i = 0; i < 600; ++i) p.bias->set(i, -infinity);
  const DeviceOperands there(p.q, p.k, p.v, p.out, p.lse, p.bias);
  ASSERT_GT(plan_of(p).parts, 1);
  attention_forward(cuda0, p.schedule, there(p.scores), there(*p.q), there(*p.k), there(*p.v), there(*p.out),
                    there(*p.lse), there(*p.out), there(*p.lse));
  there.fetch();
  EXPECT_EQ(p.out->bytes(), out);
  EXPECT_EQ(p.lse->bytes(), lse);
}

TEST_F(CudaAttentionDecode, MayOverwriteTheQueries) {
  for (const std::int64_t depth : {24, 150}) {
    ForwardProblem p(DType::bf16, {1, 1, 600, 4, 2, depth, depth});
    expect_same_out_over_the_queries(p);
  }
}

TEST_F(CudaAttentionDecode, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  ForwardProblem p(DType::f32, {1, 2, 900, 4, 2, 40, 40});
  p.with_dropout(0.1);
  expect_same_bits_in_every_order(p);
}

TEST_F(CudaAttentionDecode, HasTheSameBitsWithSeveralPartsPerBlock) {
  for (const std::int64_t queries : {1, 2, 6}) {
    ForwardProblem p(DType::f32, {2, queries, 900, 4, 2, 40, 40});
    p.causal(900 - queries).with_sinks().with_dropout(0.1);
    ASSERT_GT(plan_of(p).parts, 1);
    expect_same_rows_by_few_blocks(p);
  }
}

}  // namespace
}  // namespace poolgrad::kernels::testing
