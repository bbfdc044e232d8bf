// Gradients of bf16 attention with pair products, by every implementation that this CPU supports, compared with the
// definition in f64. P and dS are rounded to bf16 before their products with dO, Q and K, and the gradients are rounded
// again. Each rounding is 2^-9 of a sum of magnitudes, a few times the largest gradient.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/instruction_sets.h"
#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels::testing {
namespace {

constexpr double tolerance_of_pairs = 0x1p-6;

class AttentionPairsBackward : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::vector<std::string_view> here = instruction_sets();
    if (std::find(here.begin(), here.end(), GetParam()) == here.end())
      GTEST_SKIP() << "this CPU or this build has no " << GetParam();
    set_instruction_set(GetParam());
  }
  void TearDown() override { set_instruction_set("auto"); }
};

BackwardExample example(std::int64_t queries, std::int64_t keys, std::int64_t left, std::int64_t right) {
  BackwardExample e;
  e.q_heads = e.schedule.heads = 4;
  e.schedule.queries = PositionMap::contiguous(queries, keys - queries);
  e.schedule.keys = PositionMap::contiguous(keys);
  e.schedule.left = left;
  e.schedule.right = right;
  e.multiplicity = band(e.schedule);
  return e;
}
void expect_close(const BackwardExample& e) {
  SCOPED_TRACE(::testing::Message() << "Nq " << e.queries() << " Nk " << e.keys() << " Hkv " << e.kv_heads << " D "
                                    << e.depth << " Dv " << e.v_depth << " left " << e.schedule.left << " right "
                                    << e.schedule.right);
  const BackwardCheck check(e, DType::bf16);
  check.expect(*check.run(), tolerance_of_pairs);
}

TEST_P(AttentionPairsBackward, FollowTheDefinitionForEveryLength) {
  for (std::int64_t queries : {1, 17, 49, 210})
    for (std::int64_t keys : {1, 15, 33, 205})
      for (std::int64_t right : {unbounded, std::int64_t{0}}) expect_close(example(queries, keys, unbounded, right));
}

TEST_P(AttentionPairsBackward, FollowTheDefinitionForEveryDepth) {
  for (std::int64_t depth : {1, 7, 31, 33, 64})
    for (std::int64_t v_depth : {1, 16, 40}) {
      BackwardExample e = example(50, 70, unbounded, 0);
      e.depth = depth;
      e.v_depth = v_depth;
      expect_close(e);
    }
}

TEST_P(AttentionPairsBackward, FollowWindowsShardsAndQueriesWithoutKeys) {
  expect_close(example(150, 260, 30, 0));
  expect_close(example(260, 260, 0, 0));
  BackwardExample shards = example(75, 83, unbounded, 0);
  shards.schedule.queries = {75, 40, 20, 160, 1};
  shards.schedule.keys = {83, 83, 1, 1, 2};
  expect_close(shards);
  BackwardExample alone = example(75, 75, unbounded, 0);
  alone.alone = {3, 40};
  expect_close(alone);
}

TEST_P(AttentionPairsBackward, SupportEveryModificationOfScoresAndWeights) {
  BackwardExample e = example(130, 97, unbounded, 0);
  e.batch = 2;
  e.bias = e.alibi = e.sinks = true;
  expect_close(e);
  e.dropout = 0.3;
  e.softcap = 2;
  expect_close(e);
}

TEST_P(AttentionPairsBackward, AreEqualForAnyNumberOfThreadsAndAnySplit) {
  const BackwardCheck check(example(210, 205, unbounded, 0), DType::bf16);
  const int threads = num_threads();
  const auto first = check.run();
  for (int n : {1, 2, 5}) {
    set_num_threads(n);
    const auto again = check.run();
    EXPECT_EQ(again->dq.bytes(), first->dq.bytes());
    EXPECT_EQ(again->dk.bytes(), first->dk.bytes());
    EXPECT_EQ(again->dv.bytes(), first->dv.bytes());
  }
  set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionPairsBackward,
                         ::testing::Values("emulated_bf16", "avx512_bf16", "amx"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace poolgrad::kernels::testing
