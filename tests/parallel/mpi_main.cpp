// Runs the tests on every rank of mpirun. Rank 0 prints all output, the other ranks only their failures.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "tests/parallel/mpi_support.h"

namespace poolgrad::parallel::testing_support {

namespace {

class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "rank %d, %s.%s, %s:%d: %s\n", rank(), test.test_suite_name(), test.name(),
                 result.file_name() ? result.file_name() : "", result.line_number(), result.message());
  }
};

}  // namespace

int ranks() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int rank() {
  int own = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  return own;
}

void Group::run(int size, int steps, const std::function<void(Communicator&, int)>& body) {
  MpiWorld world;
  const auto group = world.split(rank() < size ? 0 : 1);
  world.run([&] {
    for (int step = 0; step < steps && rank() < size; ++step) body(*group, step);
  });
}

}  // namespace poolgrad::parallel::testing_support

int main(int argc, char** argv) {
  using namespace poolgrad::parallel::testing_support;
  ::testing::InitGoogleTest(&argc, argv);
  int threads = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads);
  if (rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  const int result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
