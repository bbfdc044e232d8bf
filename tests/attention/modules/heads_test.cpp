#include "attention/modules/heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
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

/// Positions [begin, end) of a sequence of (2, *, 3, 4).
Tensor positions(std::int64_t begin, std::int64_t end) {
  Generator generator(5);
  return slice(randn({2, 64, 3, 4}, {}, generator), 1, begin, end);
}

TEST(KvCache, HoldsAppendedPositionsInOrder) {
  Tensor buffer;
  std::int64_t length = 0;
  for (const std::int64_t count : {5, 1, 1, 0, 7, 1, 40, 9}) {
    const Tensor all = append_positions(buffer, length, positions(length, length + count));
    length += count;
    EXPECT_TRUE(bit_equal(all, positions(0, length))) << length;
  }
}

TEST(KvCache, CopiesAGrowingSequenceAConstantNumberOfTimes) {
  const auto allocated = [] {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::cache)].allocated;
  };
  const std::int64_t length = 3000;
  const Tensor one = ones({1, 1, 2, 8});
  const std::uint64_t before = allocated(), whole = static_cast<std::uint64_t>(length) * 2 * 8 * sizeof(float);
  Tensor buffer;
  for (std::int64_t t = 0; t < length; ++t) append_positions(buffer, t, one);
  EXPECT_LT(allocated() - before, 5 * whole);
}

TEST(KvCache, DoesNotWriteASharedBuffer) {
  Tensor buffer;
  append_positions(buffer, 0, positions(0, 6));
  append_positions(buffer, 6, positions(6, 7));  // the buffer has room now
  Tensor branch = buffer;                        // a second continuation of the same sequence
  const Tensor left = append_positions(buffer, 7, positions(7, 8)).copy();
  const Tensor right = append_positions(branch, 7, positions(20, 21)).copy();
  EXPECT_TRUE(bit_equal(append_positions(buffer, 8, positions(8, 9)), positions(0, 9)));
  EXPECT_TRUE(bit_equal(left, positions(0, 8)));
  EXPECT_TRUE(bit_equal(slice(right, 1, 7), positions(20, 21)));
}

TEST(KvCache, PassesGradientsToEveryPart) {
  Tensor first = ones({1, 2, 1, 2}).set_requires_grad(), second = ones({1, 1, 1, 2}).set_requires_grad();
  Tensor buffer;
  append_positions(buffer, 0, first);
  const Tensor all = append_positions(buffer, 2, second);
  sum(all * from_data<float>({1, 2, 3, 4, 5, 6}, {1, 3, 1, 2})).backward();
  EXPECT_EQ(first.grad().to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(second.grad().to_vector<float>(), (std::vector<float>{5, 6}));
}

TEST(KvCache, RefusesATensorThatDoesNotContinueTheSequence) {
  Tensor buffer;
  append_positions(buffer, 0, zeros({2, 3, 1, 4}));
  EXPECT_EQ(error_of<ShapeError>([&] {
              append_positions(buffer, 3, zeros({1, 1, 1, 4}));
            }),
            "[kv_cache] x does not continue the 3 positions that are kept: buffer (2, 3, 1, 4) f32 on cpu, x (1, 1, 1, "
            "4) f32 on cpu");
  EXPECT_THROW(append_positions(buffer, 4, zeros({2, 1, 1, 4})), ShapeError);
  EXPECT_THROW(append_positions(buffer, 3, zeros({2, 1, 1, 4}, {.dtype = DType::f64})), DTypeError);
  EXPECT_EQ(append_positions(buffer, 3, zeros({2, 1, 1, 4})).shape(), (Shape{2, 4, 1, 4}));
}

}  // namespace
}  // namespace poolgrad::attention
