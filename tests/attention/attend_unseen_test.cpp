// Rows do not depend on rows that they do not see: patterns of every kind, padding and biases of -infinity, with every
// instruction set.
#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/instruction_sets.h"
#include "tensor/compare.h"
#include "tests/attention/unseen_rows.h"

namespace poolgrad::attention::testing_support {
namespace {

class AttendUnseen : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::vector<std::string_view> here = kernels::instruction_sets();
    if (std::find(here.begin(), here.end(), GetParam()) == here.end())
      GTEST_SKIP() << "this CPU or this build has no " << GetParam();
    kernels::set_instruction_set(GetParam());
  }
  void TearDown() override { kernels::set_instruction_set("auto"); }
};

TEST_P(AttendUnseen, RowsHaveNoEffect) {
  std::mt19937_64 random(test_seed());
  const bool pairs = GetParam() != "avx2" && GetParam() != "avx512";
  const std::vector<DType> dtypes =
      pairs ? std::vector<DType>{DType::bf16} : std::vector<DType>{DType::f64, DType::f32, DType::f16, DType::bf16};
  // One query; few queries, which read keys unpacked; odd widths; several tiles; keys split among threads.
  const Sizes all_sizes[] = {{1, 1, 150, 4, 2, 8, 8},
                             {1, 6, 140, 4, 4, 8, 24},
                             {1, 9, 77, 4, 2, 5, 3},
                             {1, 270, 300, 4, 2, 16, 16},
                             {1, 1, 4200, 4, 2, 5, 5}};
  for (const Case& one : cases_with(""))
    for (const Sizes& sizes : all_sizes) {
      // Each run takes some patterns, and always the patterns that mask single pairs within a tile.
      const bool hides_pairs = one.name.find("function") != std::string::npos;
      if (sizes.queries * sizes.keys > 4000 && random() % 4 != 0 && !hides_pairs) continue;
      const Threads threads(random() % 2 ? 1 : 5);
      UnseenRows(one, sizes, dtypes[random() % dtypes.size()], random).expect_no_effect();
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, AttendUnseen,
                         ::testing::Values("avx2", "avx512", "avx512_bf16", "amx", "emulated_bf16"),
                         [](const auto& test) { return test.param; });

/// attend() and its gradients with create_graph.
Outcome attended_with_graph(const Call& call, const Pattern& pattern) {
  const auto leaf = [](const Tensor& x) { return x.detach().set_requires_grad(); };
  const std::vector<Tensor> leaves = {leaf(call.q), leaf(call.k), leaf(call.v)};
  const Attended result = attend(leaves[0], leaves[1], leaves[2], pattern, call.options);
  std::vector<Tensor> gradients =
      grad({result.out, result.lse}, leaves, {call.grad_out, call.grad_lse}, {.create_graph = true});
  for (Tensor& x : gradients) x = x.detach();
  return {result.out.detach(), result.lse.detach(), gradients[0], gradients[1], gradients[2], {}, {}};
}

TEST(AttendUnseenByDefinition, RowsHaveNoEffect) {
  std::mt19937_64 random(test_seed());
  for (const Case& one : cases_with("")) {
    const Sizes sizes = random() % 2 ? Sizes{1, 29, 71, 4, 2, 5, 3} : Sizes{1, 71, 29, 4, 4, 3, 5};
    UnseenRows(one, sizes, random() % 2 ? DType::f64 : DType::f32, random, attended_with_graph).expect_no_effect();
    if (HasFatalFailure()) return;
  }
}

TEST(AttendUnseenByDefinition, TheLastKeyHasNoEffectOnSecondDerivativesOfEarlierQueries) {
  constexpr std::int64_t n = 9;
  Call call = make_call({1, n, n, 2, 2, 4, 4});
  call.options.softcap = 3.0;
  const auto second = [&] {
    const Tensor q = call.q.detach().set_requires_grad(), k = call.k.detach().set_requires_grad();
    const Tensor out = attend(q, k, call.v, Pattern::causal(), call.options).out;
    const std::vector<Tensor> first = grad({out}, {q, k}, {call.grad_out}, {.create_graph = true});
    return slice(grad({sum(slice(first[0] * first[0], 1, 0, n - 1))}, {q})[0], 1, 0, n - 1);
  };
  const Tensor clean = second();
  std::mt19937_64 random(test_seed());
  for (std::int64_t h = 0; h < 2; ++h) {
    poison(call.k, n - 1, h, random);
    poison(call.v, n - 1, h, random);
  }
  EXPECT_TRUE(allclose(second(), clean, 1e-12, 1e-12));
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
