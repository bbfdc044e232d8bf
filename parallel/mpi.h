// Processes started by mpirun or srun, as the ranks of a Communicator. The library poolgrad::mpi alone links with MPI.
// In a build without MPI, MpiWorld throws Error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "attention/ring/communicator.h"

namespace poolgrad::parallel {

struct MpiOptions {
  /// Seconds that a rank waits for another before it reports on all ranks which rank waits for which; 0: no limit.
  /// Absent: POOLGRAD_MPI_TIMEOUT, else 600.
  std::optional<double> timeout = {};
  /// Seconds for every rank to acknowledge a failure. If a rank computes for long or hangs, the waiting rank reports it
  /// on stderr and ends all ranks (MPI_Abort).
  double grace = 10;
  /// True: MPI gets GPU addresses. False: messages go through host memory (pinned for a GPU). Absent: as the MPI
  /// library reports its support.
  std::optional<bool> cuda_aware = {};
  /// Bytes per MPI call, at most 2^31 - 1, since MPI counts in int. Larger messages go in pieces.
  std::int64_t piece = std::int64_t{1} << 30;
};

/// The ranks of this run; one object at a time per process. It initializes MPI unless the program did, and then
/// finalizes it; MPI cannot start again in the process. A program not started by mpirun or srun is rank 0 of 1.
class MpiWorld {
 public:
  /// Every rank must construct one with the same options. Throws ValueError for invalid options. Throws Error without
  /// MPI, beside another MpiWorld, and after MPI has been finalized.
  explicit MpiWorld(const MpiOptions& options = {});
  /// Finalizes MPI. Ends all ranks if one has failed outside of run().
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  /// Returns the communicator of all ranks, valid as long as the MpiWorld. One thread at a time may use the
  /// communicators of a process. Bytes move only inside start() or wait() of some communicator of the process. A
  /// message too large for MPI's buffers therefore stalls while both ranks compute. start() waits for the stream of a
  /// GPU before it copies through the host or MPI reads GPU memory.
  const std::shared_ptr<attention::Communicator>& communicator() const;
  /// Returns a communicator of the ranks with the same color (at least 0), in rank order. Every rank must call it at
  /// the same point. Errors use world rank numbers.
  std::shared_ptr<attention::Communicator> split(int color);

  /// Calls body() and returns once it has returned on every rank. Every rank must call run(). If one rank throws, run()
  /// rethrows its exception there. The other ranks get an Error with its number and reason from their next start() or
  /// wait(), or from run(). No earlier message is pending afterwards, and ranks may continue.
  void run(const std::function<void()>& body);

 private:
  class Rank;
  class Exchange;
  struct State;
  std::shared_ptr<State> state_;
  std::shared_ptr<attention::Communicator> all_;
};

}  // namespace poolgrad::parallel
