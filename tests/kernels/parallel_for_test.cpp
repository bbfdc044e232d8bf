#include "kernels/parallel_for.h"

#include <gtest/gtest.h>

#include "allocator/base/clock.h"
#include "kernels/definition/functors.h"
#include "kernels/definition/pointwise.h"
#include "kernels/elementwise.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

TEST(ParallelFor, RunsThePointwiseFunctorsOfTheGpuOnAnyLayout) {
  std::mt19937_64 random(test_seed());
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{31, 33}, Shape{5, 7, 1025}})
    for (const Layout in : input_layouts)
      for (const Layout to : output_layouts) {
        TestArray x(DType::f32, shape, in), out(DType::f32, shape, to), expected(DType::f32, shape);
        x.random(random);
        parallel_for("gelu", {}, out.count(), traffic(out.view(), x.view()),
                     PointwiseUnary<functors::Gelu, float>{out, x});
        unary({}, UnaryOp::gelu, expected, x);
        expect_elements(
            out, [&](std::int64_t i) { return expected[i]; }, tolerance(DType::f32), tolerance(DType::f32));
      }
}

TEST(ParallelFor, OnlyTheClockMovesOnSim) {
  const Stream sim{Device{DeviceType::sim, 4}};
  const std::uint64_t start = device_clock(sim.device);
  parallel_for("test", sim, 10, {1e6, 0}, [](std::int64_t) { FAIL() << "computed"; });
  EXPECT_EQ(device_clock(sim.device) - start, simulated_nanoseconds({1e6, 0}));
}

}  // namespace
}  // namespace poolgrad::kernels
