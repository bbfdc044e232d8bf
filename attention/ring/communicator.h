// Messages between the ranks of a group, each with memory and streams of its own: what ring attention asks of MPI,
// NCCL or a group within one process (LocalGroup).
// tests/attention/ring/communicator_contract.h is this contract as a test suite.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/stream.h"

namespace poolgrad::attention {

/// Bytes on the device of the stream that they travel by.
struct Message {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// An exchange under way: one message out, one in.
class Transfer {
 public:
  Transfer() = default;
  /// Gives up what was not waited for: none of its memory is touched afterwards, and ranks that count on it fail.
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Work put on the exchange's stream after this call finds the incoming message, and may overwrite the outgoing one.
  /// Waiting again does nothing. Throws Error, saying which rank is to blame, where a rank failed or the message cannot
  /// come any more.
  virtual void wait() = 0;
};

/// One rank's end. Ranks are 0 .. size() - 1. A communicator is used by one thread at a time.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Begins to send `out` to rank `to` and to receive `in` from rank `from`, in order with the work on `stream`, and
  /// returns without waiting for either. Until the transfer was waited for, `out` may be read and not written, and `in`
  /// neither. Between two ranks messages arrive in the order in which they were started; a rank may send to itself, and
  /// empty messages count like others. Throws IndexError for a rank that does not exist, Error where the message has
  /// another size than its receiver expects (on both ranks, here or in wait()) and after a failure of the group.
  virtual std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) = 0;
};

/// A group of ranks within this process: every rank has buffers of its own, and nothing but the bytes of messages goes
/// from one to another. Ranks may be on several devices, those of one device on one stream of it. The same program runs
/// on a thread for each rank, or on one thread with the ranks taking turns.
class LocalGroup {
 public:
  /// threads: waiting blocks. turns: there is nobody to wait for, so that waiting for a message that was not sent yet
  /// is an error.
  enum class Progress { threads, turns };

  /// Throws ValueError below one rank.
  explicit LocalGroup(int ranks, Progress progress = Progress::threads);
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  /// Lives on its own; a group may die before its communicators.
  const std::shared_ptr<Communicator>& communicator(int rank) const {
    return ranks_.at(static_cast<std::size_t>(rank));
  }

  /// Calls body(communicator, step) for every rank and every step of [0, steps): in threads, each rank's steps in a
  /// row; in turns, all ranks' step 0, then all ranks' step 1, and so on. So a step may wait for what every rank
  /// started in steps before it; in threads also for what they start in the same one. If a rank throws, the others get
  /// an Error that names it from their next start() or wait(), and its exception is rethrown here; the group is then as
  /// new. Of a rank that catches the exception itself they hear after two seconds that it gave an exchange up. All
  /// ranks draw the same numbers from default_generator(), from its state on the calling thread, which goes on from
  /// where rank 0 ends.
  void run(int steps, const std::function<void(Communicator&, int)>& body);

 private:
  class Room;
  class Rank;
  class Exchange;
  std::shared_ptr<Room> room_;
  std::vector<std::shared_ptr<Communicator>> ranks_;
};

}  // namespace poolgrad::attention
