// Kernels of one device on memory of another.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "tests/kernels/cuda/device_array.h"

namespace poolgrad::kernels {
namespace {

using testing::cuda0;
using testing::DeviceArray;

constexpr Stream cuda1{Device{DeviceType::cuda, 1}};

[[maybe_unused]] const bool two_devices = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  return true;
}();

View all_of(const DeviceArray<float>& array) { return {array.data(), DType::f32, 1, {3}, {1}}; }

std::string error_of_call(const auto& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CudaPeers, AKernelReadsAPeerOnlyAfterSharing) {
  const DeviceArray<float> there({1, 2, 3}, cuda1), here({0, 0, 0}, cuda0);
  const auto doubled = [&] { unary(cuda0, UnaryOp::affine, all_of(here), all_of(there), 2, 0); };
  EXPECT_EQ(error_of_call(doubled), "[affine] an operand is in memory of cuda:1, not of cuda:0");
  EXPECT_TRUE(allocator_for(cuda1.device).memory().share_with(cuda0.device));
  cuda::order(cuda0, cuda1);  // waits for the kernel that made the operand
  doubled();
  EXPECT_EQ(here.read(), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(error_of_call([&] { unary(cuda1, UnaryOp::exp, all_of(there), all_of(here)); }),
            "[exp] an operand is in memory of cuda:0, not of cuda:1")
      << "access is for one direction";
}

__global__ void fill_much(float* x) {
  POOLGRAD_DYNAMIC_SHARED(float, staged);
  staged[0] = 1.0f;
  x[0] = staged[0];
}

TEST(CudaPeers, AKernelsLimitOfSharedMemoryIsRaisedOnEachDevice) {
  for (const Stream stream : {cuda0, cuda1}) {
    const DeviceArray<float> x(std::vector<float>(1), stream);
    cuda::launch("fill", &fill_much, {{1}, {1}, 100 * 1024}, stream, x.data());
    EXPECT_EQ(x.read(), std::vector<float>(1, 1.0f));
  }
}

TEST(CudaPeers, ACopyGivesTheSourceAccessToItsTarget) {
  const DeviceArray<float> there({1, 2, 3}, cuda1), here({0, 0, 0}, cuda0);
  copy(cuda0, all_of(here), all_of(there));
  EXPECT_EQ(here.read(), (std::vector<float>{1, 2, 3}));
  EXPECT_TRUE(emulation::device(0).is_open_to(1, here.data()));
}

}  // namespace
}  // namespace poolgrad::kernels
