// poolgrad::mpi in a build without MPI.
#include <gtest/gtest.h>

#include "parallel/mpi.h"
#include "tests/tensor/support.h"

namespace poolgrad::parallel {
namespace {

TEST(MpiStub, NamesTheMissingPackage) {
  EXPECT_EQ(testing_support::error_of<Error>([] { MpiWorld(); }),
            "[mpi] poolgrad was built without MPI: apt-get install libopenmpi-dev openmpi-bin, and build it again");
}

}  // namespace
}  // namespace poolgrad::parallel
