// Skips every test of a program, with the reason, on a machine without a GPU.
#include <gtest/gtest.h>

#include "allocator/memory/cuda_memory.h"

namespace poolgrad {
namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    if (const std::string reason = cuda_unavailable_reason(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

[[maybe_unused]] const ::testing::Environment* const needs_gpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace poolgrad
