#include "attention/modules/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using testing_support::error_of;

/// Positions [begin, end) of a sequence of (2, *, 3, 4).
Tensor positions(std::int64_t begin, std::int64_t end) {
  Generator generator(5);
  return slice(randn({2, 64, 3, 4}, {}, generator), 1, begin, end);
}

TEST(KvCache, HoldsWhatWasAppendedInOrder) {
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

TEST(KvCache, LeavesABufferAloneThatAnotherHolds) {
  Tensor buffer;
  append_positions(buffer, 0, positions(0, 6));
  append_positions(buffer, 6, positions(6, 7));  // now with room
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

TEST(KvCache, RefusesWhatDoesNotContinueTheSequence) {
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
