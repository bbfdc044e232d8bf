// bf16 attention with pair products, by every implementation that this CPU supports, compared with the definition in
// f64. Weights are rounded to bf16 before their product with values: the error is at most 2^-9 of sum_j w_j |v_j| plus
// the rounding of the result.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/instruction_sets.h"
#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

class AttentionPairs : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::vector<std::string_view> here = instruction_sets();
    if (std::find(here.begin(), here.end(), GetParam()) == here.end())
      GTEST_SKIP() << "this CPU or this build has no " << GetParam();
    set_instruction_set(GetParam());
  }
  void TearDown() override { set_instruction_set("auto"); }
};

void expect_close(ForwardProblem& p, const std::string& what = "") {
  SCOPED_TRACE(what + " Nq " + std::to_string(p.shape.queries) + " Nk " + std::to_string(p.shape.keys) + " D " +
               std::to_string(p.shape.depth) + " Dv " + std::to_string(p.shape.v_depth));
  p.run();
  const ForwardProblem::Rows expected = p.definition();
  for (std::int64_t i = 0; i < p.v->count(); ++i) p.v->set(i, std::abs((*p.v)[i]));
  const ForwardProblem::Rows sizes = p.definition();
  for (std::int64_t i = 0; i < p.out->count(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_NEAR((*p.out)[i], expected.out[at], 0x1p-8 * (sizes.out[at] + std::abs(expected.out[at])) + 1e-6) << i;
  }
  for (std::int64_t i = 0; i < p.lse->count(); ++i) {
    const double lse = expected.lse[static_cast<std::size_t>(i)];
    if (std::isinf(lse))
      ASSERT_EQ((*p.lse)[i], lse) << i;
    else
      ASSERT_NEAR((*p.lse)[i], lse, 1e-5 * std::max(1.0, std::abs(lse))) << i;
  }
}

TEST_P(AttentionPairs, FollowTheDefinitionForEveryLength) {
  for (std::int64_t queries : {1, 2, 47, 49, 130})
    for (std::int64_t keys : {1, 2, 15, 31, 33, 97, 400})
      for (bool causal : {false, true}) {
        ForwardProblem p(DType::bf16, {1, queries, keys, 2, 1, 16, 16});
        if (causal) p.causal(keys - queries);
        expect_close(p, causal ? "causal" : "dense");
      }
}

TEST_P(AttentionPairs, FollowTheDefinitionForEveryDepth) {
  for (std::int64_t depth : {1, 2, 7, 31, 32, 33, 64, 100})
    for (std::int64_t v_depth : {1, 15, 16, 40, 64}) {
      ForwardProblem p(DType::bf16, {1, 50, 70, 2, 2, depth, v_depth});
      expect_close(p.causal(20));
    }
}

TEST_P(AttentionPairs, FollowWindowsShardsAndEmptyRows) {
  const AttentionShape shape{2, 150, 260, 4, 2, 24, 24};
  expect_close(ForwardProblem(DType::bf16, shape).band(30, 0, 100), "window");
  expect_close(ForwardProblem(DType::bf16, shape).band(0, 0, 37), "diagonal");
  expect_close(ForwardProblem(DType::bf16, shape).causal(-20), "empty rows");
  ForwardProblem shards(DType::bf16, shape);
  shards.causal();
  shards.schedule.queries = {150, 70, 3, 3 * 70 + 200, 3};
  shards.schedule.keys = {260, 200, 0, 300, 1};
  expect_close(shards, "shards");
}

TEST_P(AttentionPairs, SupportEveryModificationOfScoresAndWeights) {
  const AttentionShape shape{2, 70, 83, 4, 2, 20, 12};
  expect_close(ForwardProblem(DType::bf16, shape).causal(13).with_bias({2, 4, 70, 83}), "bias");
  expect_close(ForwardProblem(DType::bf16, shape).causal(13).with_alibi(), "alibi");
  expect_close(ForwardProblem(DType::bf16, shape).causal(-20).with_sinks(), "sinks");
  expect_close(ForwardProblem(DType::bf16, shape).causal(13).with_dropout(0.4), "dropout");
  ForwardProblem capped(DType::bf16, shape);
  capped.causal(13).scores.softcap = 0.7;
  expect_close(capped, "softcap");
}

TEST_P(AttentionPairs, GiveTheSameBitsOnEveryRun) {
  ForwardProblem p(DType::bf16, {1, 200, 300, 2, 1, 32, 32});
  p.causal(100).run();
  std::vector<double> first;
  for (std::int64_t i = 0; i < p.out->count(); ++i) first.push_back((*p.out)[i]);
  for (int repeat = 0; repeat < 20; ++repeat) {
    p.run();
    for (std::int64_t i = 0; i < p.out->count(); ++i) ASSERT_EQ((*p.out)[i], first[static_cast<std::size_t>(i)]);
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations, AttentionPairs, ::testing::Values("emulated_bf16", "avx512_bf16", "amx"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace poolgrad::kernels::testing
