// A row that does not see another does not depend on what lies there: patterns of every kind, padding and biases of
// -infinity, by every instruction set.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/instruction_sets.h"
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
  // One query; few, which go straight to memory; odd widths; several tiles; keys that are shared out.
  const Sizes all_sizes[] = {{1, 1, 150, 4, 2, 8, 8},
                             {1, 6, 140, 4, 4, 8, 24},
                             {1, 9, 77, 4, 2, 5, 3},
                             {1, 270, 300, 4, 2, 16, 16},
                             {1, 1, 4200, 4, 2, 5, 5}};
  for (const Case& one : cases_with(""))
    for (const Sizes& sizes : all_sizes) {
      // Some patterns in each run, and always those that hide single pairs from the middle of a tile.
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

}  // namespace
}  // namespace poolgrad::attention::testing_support
