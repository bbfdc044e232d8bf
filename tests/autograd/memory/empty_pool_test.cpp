// Block addresses depend on earlier allocations, and the budget that suffices depends on block addresses. So every test
// of this program starts with an empty pool and leaves it empty.
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
  ::testing::UnitTest::GetInstance()->listeners().Append(new EmptyPool);  // listeners() owns it
  return true;
}();

}  // namespace
}  // namespace poolgrad
