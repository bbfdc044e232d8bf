// Reports of the emulated device about warpgroup products that are undefined on a GPU.
#include <gmock/gmock.h>

#include "tests/kernels/cuda/warpgroup_products.h"

namespace poolgrad::kernels::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <ProductFault fault, Product product = Product::scores>
std::string error_of(int block = warpgroup_threads) {
  return multiply<BFloat16, 64, product, fault>(false, block).error;
}

TEST(WarpgroupFaults, AWriteWithoutAFenceAndABarrierIsReported) {
  for (const std::string& error : {error_of<ProductFault::no_fence>(), error_of<ProductFault::fence_too_late>(),
                                   error_of<ProductFault::no_fence, Product::scores_of_staged>(),
                                   error_of<ProductFault::no_fence, Product::results>()})
    EXPECT_THAT(error, AllOf(HasSubstr("[multiply] thread "), HasSubstr(" multiplies shared staged["),
                             HasSubstr("with no fence_for_products() and barrier in between")));
}

TEST(WarpgroupFaults, OtherUseOfItsRegistersIsReported) {
  EXPECT_THAT(error_of<ProductFault::no_begin>(),
              HasSubstr("without begin_products() after its last use of registers"));
  EXPECT_THAT(error_of<ProductFault::returns>(), HasSubstr("has returned before it waited for its products"));
  EXPECT_THAT(error_of<ProductFault::waits_for_one>(), HasSubstr("has returned before it waited for its products"));
  EXPECT_EQ((multiply<BFloat16, 64, Product::scores, ProductFault::no_wait>().wrong), 64 * 64)
      << "sums are not there yet";
}

TEST(WarpgroupFaults, AWriteUnderAProductIsReported) {
  EXPECT_THAT(error_of<ProductFault::overwrites>(),
              AllOf(HasSubstr(" writes shared staged["), HasSubstr("which is read by a product of thread ")));
  EXPECT_THAT(
      error_of<ProductFault::overtakes>(),
      AllOf(HasSubstr(" writes shared staged["), ::testing::AnyOf(HasSubstr("which is read by a product of thread "),
                                                                  HasSubstr("has read with no barrier in between"))));
}

TEST(WarpgroupFaults, AnIncompleteWarpgroupIsReported) {
  EXPECT_THAT((error_of<ProductFault::half_of_the_warps>()),
              HasSubstr("warps of a warpgroup have begun different numbers of products"));
  EXPECT_THAT(error_of<ProductFault::none>(96), HasSubstr("in a block of 96 threads, which is not a multiple of 128"));
}

TEST(WarpgroupFaults, AMatrixInTheMiddleOfEightRowsIsReported) {
  EXPECT_THAT((error_of<ProductFault::middle_of_rows, Product::results>()), HasSubstr("in the middle of eight rows"));
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
