// A test program that includes this file runs the emulated device's work in an order chosen by the run's seed.
// POOLGRAD_TEST_SEED repeats a run, POOLGRAD_EMULATED_SEED chooses the order alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/test_seed.h"

namespace poolgrad {

/// Sets the seed before the first test, and so before a device exists.
class OrderOfTheRun : public ::testing::Environment {
 public:
  void SetUp() override {
    ASSERT_EQ(setenv("POOLGRAD_EMULATED_SEED", std::to_string(test_seed()).c_str(), /*overwrite=*/0), 0);
  }
};
inline const ::testing::Environment* const order_of_the_run = ::testing::AddGlobalTestEnvironment(new OrderOfTheRun);

}  // namespace poolgrad
