// Saved tensors of a CUDA device offloaded to a file.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "autograd/engine/engine.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

constexpr Device device{DeviceType::cuda, 0};

/// The gradient of a chain whose saved tensors have `count` elements each.
Tensor gradient_of_chain(const Tensor& start, int length = 3) {
  Tensor x = start;
  for (int i = 0; i < length; ++i) x = tanh(x * 1.1) + sin(x);
  return grad({sum(x)}, {start})[0];
}

TEST(CudaOffload, GivesTheSameBits) {
  Generator generator(test_seed());
  for (const std::int64_t count : {1000, 530'001}) {  // 2.1 MB: two pieces
    const Tensor x = to(randn({count}, {}, generator), device).set_requires_grad();
    const Tensor expected = gradient_of_chain(x);
    const Rematerialisation policy({.offload_folder = ::testing::TempDir(), .offload_all = true});
    EXPECT_TRUE(bit_equal(gradient_of_chain(x), expected)) << count << " elements";
    EXPECT_GT(policy.statistics().offloaded, 4u);
    EXPECT_GT(policy.statistics().loaded, 4u);
    EXPECT_EQ(policy.statistics().recomputed, 0u);
    EXPECT_EQ(policy.offload_failure(), "");
  }
  EXPECT_EQ(pinned_allocator_for(device).statistics().allocation.current, 0u);
}

TEST(CudaOffload, OrdersMemoryOfAnotherStream) {
  Generator generator(test_seed());
  CachingAllocator& pool = allocator_for(device);
  const Tensor x = to(randn({10'000}, {}, generator), device).set_requires_grad();
  const Tensor expected = gradient_of_chain(x);
  const std::unique_ptr<CudaDriver> driver = make_cuda_driver(device.index);
  const Stream other{device, driver->stream_create()};
  for (int repeat = 0; repeat < 10; ++repeat) {
    const Rematerialisation policy(  // reading from the file is cheaper than anything else
        {.offload_folder = ::testing::TempDir(), .device = device, .file_speed = 1e9});
    Tensor y = x;
    {
      const StreamGuard guard(other);
      pool.order(other, {device, 0});
      for (int i = 0; i < 3; ++i) y = tanh(y * 1.1) + sin(y);
    }
    EXPECT_GT(policy.client()->reclaim(SIZE_MAX), 0u);  // on stream 0, which is not ordered after `other`
    EXPECT_GT(policy.statistics().offloaded, 0u);
    pool.order({device, 0}, other);
    EXPECT_TRUE(bit_equal(grad({sum(y)}, {x})[0], expected)) << "repetition " << repeat << "; seed " << test_seed();
  }
}

TEST(CudaOffload, ServesABudgetSmallerThanTheSavedTensors) {
  Generator generator(test_seed());
  const Tensor x = to(randn({1 << 19}, {}, generator), device).set_requires_grad();
  const Tensor expected = gradient_of_chain(x, 6);
  allocator_for(device).trim();
  const MemoryBudget budget(std::size_t{28} << 20, device, {.offload_folder = ::testing::TempDir()});
  EXPECT_TRUE(bit_equal(gradient_of_chain(x, 6), expected)) << "seed " << test_seed();
  const RematerialisationStatistics statistics = budget.statistics();
  EXPECT_GT(statistics.offloaded + statistics.dropped, 0u);
}

}  // namespace
}  // namespace poolgrad
