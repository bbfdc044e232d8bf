// Control messages between the ranks of an MpiWorld, and its pending exchanges.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "attention/ring/communicator.h"
#include "parallel/mpi.h"

namespace poolgrad::parallel {

/// Thrown by start() and wait() for a failure that all ranks know.
class RankFailure : public Error {
 public:
  using Error::Error;
};

/// Throws Error if an MPI call failed.
void check_mpi(int code, const char* call);

/// Returns options with a timeout set. Throws ValueError for invalid options.
MpiOptions resolved(MpiOptions options);

/// One outgoing and one incoming message. Both sides first exchange the sizes, so both detect a mismatch. A sender also
/// waits until its receiver has started.
class MpiExchange {
 public:
  struct End {
    MPI_Comm group;
    int rank;   // in the group
    int world;  // in the world
    attention::Message message;
  };
  /// Starts both messages. With null memory only the sizes travel, as between simulated devices. `generation` separates
  /// messages from those of failed runs.
  MpiExchange(int own, const End& to, const End& from, std::int64_t piece, int generation);

  bool done();
  /// After done() returned false: the reason if the exchange can never finish, else empty.
  const std::string& fault() const { return fault_; }
  /// The rank that this exchange still waits for, and whether that rank has started.
  int waits_for() const { return received_ ? to_ : from_; }
  bool has_come() const { return received_ ? outgoing_.arrived : incoming_.arrived; }
  /// Whether both peers have started, so that bytes are in transfer.
  bool flows() const { return incoming_.arrived && outgoing_.arrived; }

  /// Cancels receives that are not in transfer. done_receiving() is true once nothing writes to memory any more.
  void cancel_receiving();
  bool done_receiving() { return finished(receives_); }
  bool done_sending() { return finished(sends_); }
  int to() const { return to_; }

 private:
  /// Size of a message by this side and by the peer.
  struct Size {
    std::int64_t own, other = -1;
    MPI_Request request = MPI_REQUEST_NULL;
    bool arrived = false;
  };
  bool agreed(Size& size, int sender, int receiver);
  static bool finished(std::vector<MPI_Request>& requests);

  int to_, from_, own_;
  Size outgoing_, incoming_;
  std::vector<MPI_Request> sends_, receives_;
  bool received_ = false;
  std::string fault_;
};

/// Failure handling and the end of a run. A failing rank notifies all others. A notified rank stops its exchanges, so
/// that none of their memory is in use, and throws.
class MpiProgressEngine {
 public:
  /// `options` must be resolved().
  explicit MpiProgressEngine(const MpiOptions& options);
  MpiProgressEngine(const MpiProgressEngine&) = delete;
  MpiProgressEngine& operator=(const MpiProgressEngine&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  int generation() const { return generation_; }
  const MpiOptions& options() const { return options_; }

  /// Throws RankFailure if any rank has failed, and Error if the room is closed.
  void check();
  /// Stops all communication. Pending exchanges stay as they are.
  void close();
  void add(const std::shared_ptr<MpiExchange>& exchange) { open_.push_back(exchange); }
  /// Throws RankFailure if the exchange cannot finish.
  void wait(const std::shared_ptr<MpiExchange>& exchange);
  void give_up(const std::shared_ptr<MpiExchange>& exchange);

  /// Reports a failure of this rank, unless it has already reported one by an exception.
  void fail(const std::string& reason);
  /// Ends a run: waits for all other ranks to end theirs and resets the state. Returns the failure of the run, or "".
  std::string end();
  bool failed() const { return !failure_.empty(); }
  /// Whether messages of a failed run may remain without a receiver.
  bool has_leftovers() const { return has_leftovers_; }
  /// Prints the reason to stderr and ends the processes of all ranks.
  [[noreturn]] void end_all();

 private:
  using Clock = std::chrono::steady_clock;
  struct Notice {
    std::string text;
    MPI_Request request;
  };
  struct Peer {
    bool quiet = false;  // has stopped receiving
    bool ended = false;
    Clock::time_point ended_at;
    std::string waits;  // the peer's wait when it became quiet
  };
  enum Kind : char { suspicion = 's', failure = 'f', quiet = 'q', ended = 'e' };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  bool every(bool Peer::*is) const;
  void tell(Kind kind, const std::string& text);
  void hear();
  void become_quiet();
  [[noreturn]] void raise();
  void time_out(const std::string& reason);
  std::string answers() const;
  double since(Clock::time_point then) const { return std::chrono::duration<double>(Clock::now() - then).count(); }

  MpiOptions options_;
  double timeout_;
  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0, generation_ = 0, waits_for_ = -1;
  bool certain_ = false, quiet_ = false, ended_ = false, has_leftovers_ = false;
  std::string failure_;
  std::vector<Peer> peers_;
  std::list<Notice> notices_;
  std::vector<std::shared_ptr<MpiExchange>> open_, abandoned_;
};

}  // namespace poolgrad::parallel
