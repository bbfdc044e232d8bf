#include "attention/modules/heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;

TEST(Heads, AreViewsOfThePackedTensor) {
  const Tensor packed = arange(0, 2 * 3 * 4 * 2);
  const auto parts = split_heads(reshape(packed, {2, 3, 4, 2}), {2, 1, 1});
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_TRUE(parts[2].shares_storage_with(packed));
  EXPECT_EQ(parts[0].shape(), (Shape{2, 3, 2, 2}));
  EXPECT_EQ(slice(parts[2].copy(), 0, 0, 1).to_vector<float>(), (std::vector<float>{6, 7, 14, 15, 22, 23}));
}

TEST(Heads, JoinWithoutACopyOnlyWhenAdjacent) {
  const Tensor packed = randn({2, 3, 4, 2});
  const auto parts = split_heads(packed, {2, 1, 1});
  const Tensor joined = joined_heads(parts);
  ASSERT_TRUE(joined.defined());
  EXPECT_TRUE(joined.shares_storage_with(packed));
  EXPECT_TRUE(bit_equal(joined, packed));
  EXPECT_FALSE(joined_heads({parts[1], parts[0]}).defined());
  EXPECT_FALSE(joined_heads({parts[0], parts[2]}).defined());
  EXPECT_FALSE(joined_heads({parts[0], parts[1].copy()}).defined());
  EXPECT_FALSE(joined_heads({parts[0], {}}).defined());
}

TEST(Heads, BuffersHaveTheLayoutOfTheirModels) {
  const auto parts = split_heads(randn({2, 3, 4, 2}), {2, 2});
  const Tensor apart = randn({2, 5, 1, 2});
  const auto buffers = empty_like_heads({parts[0], parts[1], apart});
  EXPECT_TRUE(joined_heads({buffers[0], buffers[1]}).is_contiguous());
  EXPECT_FALSE(buffers[1].shares_storage_with(buffers[2]));
  EXPECT_EQ(buffers[2].shape(), apart.shape());
}

TEST(Heads, GradientsReachThePackedTensor) {
  Tensor packed = randn({1, 2, 4, 2}).set_requires_grad();
  const auto parts = split_heads(packed, {3, 1});
  (sum(parts[0] * 2.0) + sum(parts[1] * 5.0)).backward();
  const Tensor expected = cat({full({1, 2, 3, 2}, 2.0), full({1, 2, 1, 2}, 5.0)}, 2);
  EXPECT_TRUE(bit_equal(packed.grad(), expected));

  packed.set_grad({});
  sum(split_heads(packed, {3, 1})[1]).backward();
  EXPECT_TRUE(bit_equal(packed.grad(), cat({zeros({1, 2, 3, 2}), ones({1, 2, 1, 2})}, 2)));
}

TEST(Heads, RefuseCountsThatDoNotAddUp) {
  EXPECT_EQ(error_of<ShapeError>([] {
              split_heads(zeros({1, 2, 4, 2}), {3, 2});
            }),
            "[split_heads] not (B, T, 3 + 2, D): packed (1, 2, 4, 2) f32 on cpu");
}

}  // namespace
}  // namespace poolgrad::attention
