// The overhead of processes in a ring: forward and backward of one sequence on the ranks of mpirun. Runs ranks in turn
// as threads of rank 0 (LocalGroup) and as processes (MPI) with one thread each. Reports the time, the share that ranks
// wait, and the processor time of both.
//
//   mpirun -n 2 --bind-to none ring_overhead [turns] [tokens] [window]
//
// Expected: medians that differ by at most 10 %, and the same bits.
#define OMPI_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "attention/ring/ring.h"
#include "autograd/operators.h"
#include "kernels/parallel.h"
#include "parallel/mpi.h"
#include "tensor/compare.h"
#include "tensor/creation.h"

namespace {

using namespace poolgrad;
using namespace poolgrad::attention;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

/// Returns the processor seconds of the threads of this process.
double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// Sums the time that a rank spends in start() and wait().
class TimedCommunicator : public Communicator {
 public:
  TimedCommunicator(std::shared_ptr<Communicator> inner, double& seconds)
      : inner_(std::move(inner)), seconds_(seconds) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    const Clock::time_point then = Clock::now();
    auto inner = inner_->start(stream, to, out, from, in);
    seconds_ += since(then);
    return std::make_unique<Timed>(std::move(inner), seconds_);
  }

 private:
  struct Timed : Transfer {
    Timed(std::unique_ptr<Transfer> inner, double& seconds) : inner_(std::move(inner)), seconds_(seconds) {}
    void wait() override {
      const Clock::time_point then = Clock::now();
      inner_->wait();
      seconds_ += since(then);
    }
    std::unique_ptr<Transfer> inner_;
    double& seconds_;
  };
  std::shared_ptr<Communicator> inner_;
  double& seconds_;
};

struct Turn {
  double seconds = 0, waiting = 0;
  Tensor dk;
};

/// Runs forward and backward of one rank.
Turn pass(const Tensor (&whole)[3], const Pattern& pattern, const std::shared_ptr<Communicator>& communicator) {
  Turn turn;
  std::vector<Tensor> own;
  for (const Tensor& x : whole)
    own.push_back(take_shard(x, Layout::zigzag, communicator->rank(), communicator->size()).set_requires_grad());
  const Clock::time_point then = Clock::now();
  const auto timed = std::make_shared<TimedCommunicator>(communicator, turn.waiting);
  sum(ring_attend(own[0], own[1], own[2], pattern, timed, {.layout = Layout::zigzag}).out).backward();
  turn.seconds = since(then);
  turn.dk = own[1].grad();
  return turn;
}

/// Waits for all ranks without using a core.
void meet() {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int n, std::int64_t usual) { return argc > n ? std::atoll(argv[n]) : usual; };
  const std::int64_t turns = number(1, 7), tokens = number(2, 65536), window = number(3, 1024);
  kernels::set_num_threads(1);
  parallel::MpiWorld world;
  const auto all = world.communicator();
  const int ranks = all->size();
  Generator generator(1);
  Tensor whole[3];
  for (Tensor& x : whole) x = randn({1, tokens, 2, 64}, {}, generator);
  const Pattern pattern = Pattern::window(window - 1, 0);
  std::vector<double> threads, processes, threads_wait, processes_wait, threads_used, processes_used, ratios;
  bool same = true;
  for (std::int64_t n = 0; n <= turns; ++n) {  // the first turn is a warm-up
    Turn mine;
    std::vector<Turn> local(static_cast<std::size_t>(ranks));
    const double before = processor_seconds();
    if (all->rank() == 0) {
      LocalGroup group(ranks);
      group.run(1, [&](Communicator& one, int) {
        kernels::set_num_threads(1);
        local[static_cast<std::size_t>(one.rank())] = pass(whole, pattern, group.communicator(one.rank()));
      });
    }
    const double local_used = processor_seconds() - before;
    meet();
    const double then = processor_seconds();
    world.run([&] { mine = pass(whole, pattern, all); });
    double used = processor_seconds() - then;
    meet();
    MPI_Allreduce(MPI_IN_PLACE, &used, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (all->rank() != 0 || n == 0) continue;
    same = same && bit_equal(mine.dk, local[0].dk);
    const auto slower = [](const Turn& a, const Turn& b) { return a.seconds < b.seconds; };
    threads.push_back(std::ranges::max_element(local, slower)->seconds), processes.push_back(mine.seconds);
    threads_wait.push_back(local[0].waiting), processes_wait.push_back(mine.waiting);
    threads_used.push_back(local_used), processes_used.push_back(used);
    ratios.push_back(processes.back() / threads.back());
  }
  if (all->rank() == 0)
    fmt::print(
        "{} ranks, {} tokens, window of {}, {} turns, medians\n  threads    {:.3f} s, {:.1f} % waiting, {:.3f} s of "
        "the cores\n  "
        "processes  {:.3f} s, {:.1f} % waiting, {:.3f} s of the cores\n  processes over threads, turn by turn: {:.3f} "
        "({:.3f} to {:.3f}); bits {}\n",
        ranks, tokens, window, turns, median(threads), 100 * median(threads_wait) / median(threads),
        median(threads_used), median(processes), 100 * median(processes_wait) / median(processes),
        median(processes_used), median(ratios), *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()), same ? "the same" : "DIFFER");
  return same ? 0 : 1;
}
