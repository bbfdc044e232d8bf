#include "kernels/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "allocator/error.h"
#include "kernels/dispatch.h"
#include "kernels/functors/elementwise.h"
#include "kernels/parallel.h"
#include "tests/kernels/elementwise_reference.h"

namespace poolgrad::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LaunchShape shape(Extent grid, Extent block, std::int64_t shared_bytes = 0) { return {grid, block, shared_bytes}; }

TEST(Launch, AcceptsShapesAtGpuLimits) {
  check_launch("op", shape({2147483647, 65535, 65535}, {1024}, 227 * 1024));
  check_launch("op", shape({}, {16, 1, 64}));
  check_launch("op", shape({}, {1, 1024, 1}));
}

TEST(Launch, RejectsShapesBeyondGpuLimits) {
  for (const LaunchShape& bad :
       {shape({}, {1025}), shape({}, {32, 33}), shape({}, {1, 1, 65}), shape({}, {0}), shape({0}, {1}),
        shape({-1}, {1}), shape({std::int64_t{1} << 31}, {1}), shape({1, 65536}, {1}), shape({1, 1, 65536}, {1}),
        shape({1}, {1}, 227 * 1024 + 1), shape({1}, {1}, -1), shape({1}, {std::int64_t{1} << 62, 1 << 10, 1})})
    EXPECT_THROW(check_launch("op", bad), ValueError);
}

TEST(Launch, NamesTheOperatorTheReasonAndTheWholeShape) {
  EXPECT_THAT([] { check_launch("softmax", shape({7}, {2048}, 64)); },
              ThrowsMessage<ValueError>("[softmax] a block is at least 1 and at most 1024 x 1024 x 64 threads: "
                                        "grid (7, 1, 1), block (2048, 1, 1), 64 bytes of shared memory"));
}

TEST(Launch, CoversAnyNumberOfElementsWithinTheLimits) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{256}, std::int64_t{257}, std::int64_t{1} << 31,
                               std::int64_t{1} << 40, INT64_MAX}) {
    const LaunchShape covering = grid_stride_shape(n);
    check_launch("op", covering);
    EXPECT_LE((covering.grid.x - 1) * covering.block.x, n - 1) << n << " elements leave a block without work";
  }
  EXPECT_EQ(grid_stride_shape(257).grid.x, 2);
}

TEST(Pointwise, RunsTheGpuFunctorOverStridesOnTheCpu) {
  // A transposed input and a broadcast row.
  std::vector<float> x(6), out(6, -1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 2.5f;
  const View in{x.data(), DType::f32, 2, {2, 3}, {1, 2}};
  const View result{out.data(), DType::f32, 2, {2, 3}, {3, 1}};

  parallel_ranges(result.count(), 2, [&](std::int64_t begin, std::int64_t end) {
    const testing::PointwiseUnary<functors::Gelu, float> body{result, in};
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });

  for (std::size_t row = 0; row < 2; ++row)
    for (std::size_t column = 0; column < 3; ++column) {
      const double value = x[row + 2 * column];
      EXPECT_NEAR(out[3 * row + column], value * 0.5 * (1.0 + std::erf(value / std::sqrt(2.0))), 1e-6);
    }
}

TEST(Cuda, ExplainsAMissingGpu) {
  const std::string reason = cuda::unavailable_reason();
  if (reason.empty()) GTEST_SKIP() << "this machine has a CUDA device";
  const Stream stream{{DeviceType::cuda, 0}};
  EXPECT_THAT([&] { unary(stream, UnaryOp::gelu, View{}, View{}); },
              ThrowsMessage<DeviceError>("[gelu] has no kernel for cuda:0: " + reason));
}

}  // namespace
}  // namespace poolgrad::kernels
