// A program that needs more GPUs than any machine has (needs_gpu.cpp).
#include <gtest/gtest.h>

namespace poolgrad {
namespace {

TEST(NeedsGpu, SkipsATestWithTooFewGpus) { FAIL() << "it ran"; }

}  // namespace
}  // namespace poolgrad
