// Skips every test of a program, with the reason, on a machine without the GPUs that it needs.
#include <gtest/gtest.h>

#include <string>

#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"

namespace poolgrad {
namespace {

/// Why there are too few; empty where there are enough.
std::string reason_to_skip() {
  try {
    cuda_device_description(POOLGRAD_GPUS_NEEDED - 1);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

/// A skip that an environment asks for is counted as passed.
class NeedsGpu : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    static const std::string reason = reason_to_skip();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

[[maybe_unused]] const bool listens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new NeedsGpu);
  return true;
}();

}  // namespace
}  // namespace poolgrad
