// The processes that mpirun or srun has started, as the ranks of a Communicator. In the library poolgrad::mpi, the only
// one that is linked with MPI; where poolgrad was built without it, asking for it is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "attention/ring/communicator.h"

namespace poolgrad::parallel {

struct MpiOptions {
  /// Seconds that a rank waits for another before all are told who waits for whom; 0: for ever. Absent: what
  /// POOLGRAD_MPI_TIMEOUT says, else 600.
  std::optional<double> timeout = {};
  /// Seconds in which every rank must have heard of a failure. If one has not, as it computes for long or hangs, the
  /// rank that waits for it says so on stderr and ends them all (MPI_Abort).
  double grace = 10;
  /// Messages go through memory of the host (pinned for a GPU), or MPI is handed addresses of the GPU. Absent: what the
  /// MPI says that it can do.
  std::optional<bool> cuda_aware = {};
  /// Bytes that MPI is given at once, at most 2^31 - 1, as it counts in int; larger messages go in pieces.
  std::int64_t piece = std::int64_t{1} << 30;
};

/// The ranks of this run; one at a time in a process. MPI is started where the program has not done so, and then ended
/// with it: after that there is no other in this process. A program that was not started by mpirun or srun is rank 0
/// of 1.
class MpiWorld {
 public:
  /// Every rank makes one, with the same options. Throws ValueError for options that make no sense, and Error without
  /// MPI, beside another MpiWorld, and after the end of MPI.
  explicit MpiWorld(const MpiOptions& options = {});
  /// Ends MPI; all ranks with it where one has failed outside of run().
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  /// All ranks. Communicators of a process are used by one thread at a time, and serve as long as the MpiWorld. Bytes
  /// move while some communicator of the process is inside start() or wait(): a message that is too large for MPI to
  /// buffer makes no way while both of its ranks compute. On a GPU whose memory goes through the host, and before MPI
  /// reads it itself, start() waits for the stream.
  const std::shared_ptr<attention::Communicator>& communicator() const;
  /// Those ranks that give the same color (at least 0), in their order. Every rank calls it at once. Errors name ranks
  /// by their number among all.
  std::shared_ptr<attention::Communicator> split(int color);

  /// Calls body() and returns when it has returned on every rank. Every rank calls run(). If one throws, the others
  /// get an Error that names it, with its reason, from their next start() or wait(), or else from here; its own
  /// exception is rethrown here. No message of before is then under way, and ranks may go on.
  void run(const std::function<void()>& body);

 private:
  class Rank;
  class Exchange;
  struct State;
  std::shared_ptr<State> state_;
  std::shared_ptr<attention::Communicator> all_;
};

}  // namespace poolgrad::parallel
