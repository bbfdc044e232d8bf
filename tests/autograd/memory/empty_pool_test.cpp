// Where blocks lie depends on what the pool held before, and what fits a budget on where they lie: every test of the
// program begins with an empty pool, and leaves one.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/device.h"

namespace poolgrad {
namespace {

class EmptyPool : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { allocator_for(cpu).trim(); }
  void OnTestEnd(const ::testing::TestInfo&) override {
    EXPECT_EQ(allocator_for(cpu).statistics().allocated_bytes.current, 0u) << "live after the test";
  }
};

[[maybe_unused]] const bool listens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new EmptyPool);  // which deletes it
  return true;
}();

}  // namespace
}  // namespace poolgrad
