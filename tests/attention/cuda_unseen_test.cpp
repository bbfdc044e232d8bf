// Rows do not depend on rows that they do not see: on cuda:0, the emulated device, with portable kernels and with
// tensor cores, for many queries and for few.
#include <gtest/gtest.h>

#include "tests/attention/unseen_rows.h"
#include "tests/effort.h"
#include "tests/mma_allowed.h"

namespace poolgrad::attention::testing_support {
namespace {

constexpr Device gpu{DeviceType::cuda, 0};

void expect_no_effect(std::initializer_list<DType> dtypes, std::initializer_list<Sizes> all_sizes) {
  std::mt19937_64 random(test_seed());
  for (const Case& one : cases_with("")) {
    if (random() % (is_brief() ? 20 : 2) != 0) continue;
    const DType dtype = dtypes.begin()[random() % dtypes.size()];
    const Sizes& sizes = all_sizes.begin()[random() % all_sizes.size()];
    UnseenRows(one, sizes, dtype, random, [](const Call& call, const Pattern& pattern) {
      return attended(call, pattern, gpu);
    }).expect_no_effect();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(CudaUnseen, RowsHaveNoEffectByPortableKernels) {
  const MmaAllowed allowed(false);
  expect_no_effect({DType::f64, DType::f32, DType::f16, DType::bf16},
                   {{1, 37, 70, 4, 2, 6, 5}, {1, 1, 150, 4, 2, 8, 8}, {1, 6, 140, 4, 4, 8, 24}});
}

TEST(CudaUnseen, RowsHaveNoEffectByTensorCores) {
  const MmaAllowed allowed;
  expect_no_effect({DType::f16, DType::bf16, DType::f32}, {{1, 70, 140, 4, 2, 32, 48}, {1, 20, 70, 4, 2, 16, 16}});
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
