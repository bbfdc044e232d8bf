// mpi_moments FILE RANK MOMENT, under mpirun: a training run in which one rank is killed at a moment. Without mpirun,
// mpi_moments FILE... prints the steps of the complete checkpoints.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "kernels/parallel.h"
#include "parallel/mpi.h"
#include "tests/parallel/moments.h"

using namespace poolgrad;
using namespace poolgrad::parallel::testing_support;

int main(int argc, char** argv) {
  kernels::set_num_threads(1);
  try {
    if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
      for (int i = 1; i < argc; ++i) std::printf("%s %d\n", argv[i], static_cast<int>(steps_of(argv[i])));
      return 0;
    }
    const std::string path = argv[1], wanted = argv[3];
    const int culprit = std::atoi(argv[2]);
    parallel::MpiWorld world;
    const auto& all = world.communicator();
    const auto strikes = [&](Moment now) {
      if (all->rank() == culprit && to_string(now) == wanted) std::raise(SIGKILL);
      return false;
    };
    world.run([&] { train_until(strikes, all, {all->size(), 1}, path); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
