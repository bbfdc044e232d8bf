// Shared by the tests under mpirun. Every rank runs every test in the same order, and all ranks make the same calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/mpi.h"
#include "tests/attention/ring/communicator_contract.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel::testing_support {

using namespace attention::testing_support;
using attention::Communicator;
using poolgrad::testing_support::error_of;

/// The number of ranks that mpirun has started, and the number of this one.
int ranks();
int rank();
#define NEEDS_RANKS(least) \
  if (ranks() < (least)) GTEST_SKIP() << "needs " << (least) << " ranks"

/// A group of the first ranks, for the contract tests.
struct Group {
  static int most_ranks() { return ranks(); }
  static int here(int size) { return rank() < size; }
  static std::string told(int culprit, const std::string& reason) {
    return rank() == culprit ? reason : "[exchange] rank " + std::to_string(culprit) + " failed: " + reason;
  }
  static void run(int size, int steps, const std::function<void(Communicator&, int)>& body);
};

}  // namespace poolgrad::parallel::testing_support
