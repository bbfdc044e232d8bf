// Counts the host's reads of a recorded step's results on the emulated device.
#include <gtest/gtest.h>

#include "tests/emulation/device.h"
#include "tests/nn/training/recorded_regression.h"

namespace poolgrad::nn {
namespace {

TEST(RecordedStepOnTheEmulatedDevice, ReadsFromTheDeviceOnce) {
  Training recorded(OptimizerKind::muon, true);
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t before = emulation::device(0).copies_to_host();
    recorded.run(i);
    EXPECT_EQ(emulation::device(0).copies_to_host() - before, 1u) << "step " << i;
  }
}

}  // namespace
}  // namespace poolgrad::nn
