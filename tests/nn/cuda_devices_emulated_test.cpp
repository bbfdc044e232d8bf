// With two emulated devices, tests can see which devices are used and which work waits for which.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/emulation/device.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using testing_support::error_of;

constexpr Device one{DeviceType::cuda, 0}, other{DeviceType::cuda, 1};

[[maybe_unused]] const bool two_are_emulated = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  return true;
}();

// This is the first test of the program: no device has been used.
TEST(EmulatedDevices, AnUnusedDeviceIsNotInitialized) {
  if (emulation::is_in_use(0)) GTEST_SKIP() << "a test before has used cuda:0";
  const Tensor x = to(arange(0, 100, 1), other);
  EXPECT_TRUE(bit_equal(x + x, arange(0, 200, 2)));
  EXPECT_TRUE(emulation::is_in_use(1));
  EXPECT_FALSE(emulation::is_in_use(0)) << "of a GPU, that would be a context of some 500 MiB";
  EXPECT_EQ(allocators_of(DeviceType::cuda).size(), 1u);
}

TEST(EmulatedDevices, AnUploadDoesNotWaitForTheDevice) {
  bool ran = false;
  emulation::device(0).enqueue("earlier", current_stream(one).id, [&] { ran = true; });
  const Tensor x = to(ones({1000}), one);
  EXPECT_FALSE(ran) << "pageable memory would have waited on a GPU";
  EXPECT_TRUE(bit_equal(x, ones({1000})));
  EXPECT_TRUE(ran);
}

TEST(EmulatedDevices, TheErrorNamesTheMissingAndTheLastDevice) {
  const Tensor x = ones({4});
  const std::string error = "[allocator] cuda:2 cannot be used: the last CUDA device is cuda:1; use cpu or sim:N";
  EXPECT_EQ(error_of<DeviceError>([&] { to(x, Device{DeviceType::cuda, 2}); }), error);
  EXPECT_EQ(error_of<DeviceError>([&] { zeros({4}, {DType::f32, Device{DeviceType::cuda, 2}}); }), error);
  EXPECT_EQ(error_of<DeviceError>([&] { pinned_allocator_for(cpu); }),
            "[allocator] memory of the host is pinned for CUDA devices, got cpu");
}

}  // namespace
}  // namespace poolgrad::nn
