// Reports of the emulated device about operands and streams that fail on a GPU only sometimes.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"
#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

TEST(CudaOperands, InHostMemoryAreRejected) {
  TestArray x(DType::f32, {8}), out(DType::f32, {8}), sum(DType::f32, {1});
  const Twin twin(out), one(sum);
  const auto error_of = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string reason = "an operand is in memory of the host, not of cuda:0";
  EXPECT_EQ(error_of([&] { unary(cuda0, UnaryOp::exp, twin.on_device(), x); }), "[exp] " + reason);
  EXPECT_EQ(error_of([&] { reduce(cuda0, ReduceOp::sum, one.on_device(), x); }), "[sum] " + reason);
  EXPECT_EQ(error_of([&] { softmax(cuda0, twin.on_device(), x); }), "[softmax] " + reason);
}

/// Computes y = 2 x on one stream and z = y + 1 on another, in 60 of the allowed orders. Returns whether z was ever
/// wrong.
bool streams_can_go_wrong(bool ordered) {
  const Stream first{cuda0.device, 11}, second{cuda0.device, 12};
  CachingAllocator& pool = allocator_for(cuda0.device);
  bool wrong = false;
  for (int repeat = 0; repeat < 60; ++repeat) {
    const DeviceArray<float> x(std::vector<float>(100, 3.0f), first), y(std::vector<float>(100, 0.0f), first),
        z(std::vector<float>(100, 0.0f), first);
    cuda::synchronize(first);
    const auto view = [](const DeviceArray<float>& array) { return View{array.data(), DType::f32, 1, {100}, {1}}; };
    unary(first, UnaryOp::affine, view(y), view(x), 2, 0);
    if (ordered) pool.order(second, first);
    unary(second, UnaryOp::affine, view(z), view(y), 1, 1);
    wrong |= z.read(second) != std::vector<float>(100, 7.0f);
    cuda::synchronize(first);
  }
  return wrong;
}

TEST(StreamMutants, AKernelOnTheWrongStreamIsDetected) { EXPECT_TRUE(streams_can_go_wrong(false)); }

TEST(StreamMutants, AnEventOrdersTheOtherStream) { EXPECT_FALSE(streams_can_go_wrong(true)); }

// With POOLGRAD_SYNC=1 each launch is waited for, so an error names its own operator. CMakeLists.txt runs the test that
// way too. Otherwise the next wait or launch reports the error.

__global__ void fails_in_a_kernel(float* x) {
  POOLGRAD_DYNAMIC_SHARED(float, staged);
  x[threadIdx.x] = staged[threadIdx.x];  // unwritten memory
}

TEST(AsynchronousLaunchError, NamesItsOperator) {
  const DeviceArray<float> x(std::vector<float>(32, 1.0f));
  const auto error_of = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const CudaError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string own = error_of([&] {
    cuda::launch("broken", &fails_in_a_kernel, {{1}, {32}, 128}, cuda0, x.data());
  });
  const std::string later = error_of([&] { cuda::synchronize(cuda0); });
  const std::string& found = synchronous() ? own : later;
  EXPECT_EQ(found.rfind("[broken] thread ", 0), 0u) << own << "; " << later;
  EXPECT_EQ(synchronous() ? later : own, "no error");
  EXPECT_EQ(x.read().size(), 32u) << "the next call works";
}

TEST(AsynchronousLaunchError, IsRaisedByTheOwnOperator) {
  const std::vector<float> ones(16, 1.0f);
  const Stream held{cuda0.device, 21};
  const DeviceArray<float> x(ones, held), y(ones, held), z(ones, held);
  cuda::synchronize(held);
  emulation::Device& device = emulation::device(0);
  const auto error_while_held = [&](const auto& run) -> std::string {
    const std::shared_ptr<bool> mark = device.hold(held.id);
    std::string error = "no error";
    try {
      run();
    } catch (const CudaError& caught) {
      error = caught.what();
    }
    device.let_go(*mark);
    cuda::synchronize(held);
    return error;
  };
  const auto expected = [](const std::string& op) {
    return synchronous() ? "[" + op + "] the work waits for a stream that is held" : "no error";
  };
  const Gemm product{.m = 4, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4};
  EXPECT_EQ(error_while_held([&] { gemm(held, product, x.data(), y.data(), z.data()); }), expected("gemm"));
  EXPECT_EQ(error_while_held([&] { cuda::copy_bytes(held, z.data(), ones.data(), 64); }), expected("copy"));
  EXPECT_EQ(error_while_held([&] { cuda::copy_to_device(held, z.data(), 0, y.data(), 64); }), expected("copy"));
  EXPECT_EQ(z.read(), ones);
}

}  // namespace
}  // namespace poolgrad::kernels
