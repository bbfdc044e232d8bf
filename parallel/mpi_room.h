// What the ranks of an MpiWorld tell each other beside their messages, and the messages that are under way.
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

/// What start() and wait() throw of a failure that all ranks have been told of.
class RankFailure : public Error {
 public:
  using Error::Error;
};

/// Throws Error where a call of MPI has failed.
void check_mpi(int code, const char* call);

/// With a timeout in any case. Throws ValueError for what makes no sense.
MpiOptions resolved(MpiOptions options);

/// One message out and one in. Each is preceded by its size, from both sides, so that both know whether they agree:
/// the sender too is through only when its receiver has come for the message.
class MpiExchange {
 public:
  struct End {
    MPI_Comm group;
    int rank;   // in the group
    int world;  // among all
    attention::Message message;
  };
  /// Begins both. Memory may be null: then only sizes travel, as between simulated devices. `generation` keeps messages
  /// apart from those of failed runs.
  MpiExchange(int own, const End& to, const End& from, std::int64_t piece, int generation);

  bool done();
  /// After done() has said no: why not, if it never will be; else empty.
  const std::string& fault() const { return fault_; }
  /// The rank whose message, or whose coming for one, is still missing, and whether it has come.
  int waits_for() const { return received_ ? to_ : from_; }
  bool has_come() const { return received_ ? outgoing_.arrived : incoming_.arrived; }
  /// Whether both peers have come, so that bytes are on their way.
  bool flows() const { return incoming_.arrived && outgoing_.arrived; }

  /// Receives nothing more, if it was not on its way. True once no memory is written any more.
  void cancel_receiving();
  bool done_receiving() { return finished(receives_); }
  bool done_sending() { return finished(sends_); }
  int to() const { return to_; }

 private:
  /// What one side says of a message, and what the other does.
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

/// Failures, and the end of a run. A rank that fails tells all others; whoever hears of it stops its exchanges, so that
/// none of their memory is touched any more, and throws.
class MpiRoom {
 public:
  /// Options that are resolved.
  explicit MpiRoom(const MpiOptions& options);
  MpiRoom(const MpiRoom&) = delete;
  MpiRoom& operator=(const MpiRoom&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  int generation() const { return generation_; }
  const MpiOptions& options() const { return options_; }

  /// Throws RankFailure if any rank has failed, and Error where the room is closed.
  void check();
  /// Nothing is heard or told any more. What was not waited for is left as it is.
  void close();
  void add(const std::shared_ptr<MpiExchange>& exchange) { open_.push_back(exchange); }
  /// Throws RankFailure where it will not come to an end.
  void wait(const std::shared_ptr<MpiExchange>& exchange);
  void give_up(const std::shared_ptr<MpiExchange>& exchange);

  /// This rank has failed on its own account, unless it has failed already by an exception that it has told of.
  void fail(const std::string& reason);
  /// Ends a run: waits for all others to do so, and begins anew. Returns the failure that there was, or "".
  std::string end();
  bool failed() const { return !failure_.empty(); }
  /// Whether messages of a failed run may be left, which nobody will ever receive.
  bool has_leftovers() const { return has_leftovers_; }
  /// Says why on stderr, and ends the processes of all ranks.
  [[noreturn]] void end_all();

 private:
  using Clock = std::chrono::steady_clock;
  struct Notice {
    std::string text;
    MPI_Request request;
  };
  struct Peer {
    bool quiet = false;  // receives nothing any more
    bool ended = false;
    Clock::time_point ended_at;
    std::string waits;  // what it waited for when it became quiet
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
