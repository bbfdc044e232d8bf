// The emulated device does things in an order of the run's own in every test program of which a file includes this:
// what holds, holds in all of them. POOLGRAD_TEST_SEED repeats a run, POOLGRAD_EMULATED_SEED chooses the order alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/test_seed.h"

namespace poolgrad {

/// Before the first test, and so before there is a device.
class OrderOfTheRun : public ::testing::Environment {
 public:
  void SetUp() override {
    ASSERT_EQ(setenv("POOLGRAD_EMULATED_SEED", std::to_string(test_seed()).c_str(), /*overwrite=*/0), 0);
  }
};
inline const ::testing::Environment* const order_of_the_run = ::testing::AddGlobalTestEnvironment(new OrderOfTheRun);

}  // namespace poolgrad
