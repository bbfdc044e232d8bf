// mpi_endings WAY, under mpirun: one rank leaves the others in some way. Every surviving rank prints how it ended.
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "allocator/error.h"
#include "parallel/mpi.h"

using namespace poolgrad;

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  try {
    parallel::MpiWorld world({.timeout = way == "hangs" ? 0.5 : 60, .grace = 1});
    const auto& all = world.communicator();
    const int last = all->size() - 1;
    const bool is_last = all->rank() == last;
    const auto forever = [] { std::this_thread::sleep_for(std::chrono::hours(1)); };
    const auto wait_for_last = [&] {
      for (;;) all->start({}, all->rank(), {}, last, {})->wait();
    };
    if (way == "outside of run" && is_last) throw ValueError("out of luck");
    world.run([&] {
      if (way == "throws while another computes") {
        if (is_last) throw ValueError("out of luck");
        if (all->rank() == 0) forever();
        wait_for_last();
      }
      if (way == "is killed" && is_last) std::raise(SIGKILL);
      if (way == "hangs" && is_last) forever();
      wait_for_last();
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
