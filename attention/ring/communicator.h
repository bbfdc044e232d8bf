// Messages between the ranks of a group, each with memory and streams of its own. Ring attention needs this interface
// from MPI, NCCL or a group within one process (LocalGroup). tests/attention/ring/communicator_contract.h tests the
// contract.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/stream.h"

namespace poolgrad::attention {

/// Bytes on the device of the stream that transfers them.
struct Message {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// A pending exchange: one message out, one in.
class Transfer {
 public:
  Transfer() = default;
  /// Cancels a pending exchange: its memory is not touched afterwards, and ranks that depend on it fail.
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Later work on the exchange's stream finds the incoming message, and may overwrite the outgoing one. A second wait
  /// does nothing. Throws Error, naming the rank at fault, if a rank failed or the message cannot come any more.
  virtual void wait() = 0;
};

/// The communicator of one rank. Ranks are 0 .. size() - 1. One thread uses it at a time.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts to send `out` to rank `to` and to receive `in` from rank `from`, in order with the work on `stream`, and
  /// returns at once. Before wait() has returned, `out` must not be written, and `in` neither read nor written. Between
  /// two ranks, messages arrive in the order of their starts. A rank may send to itself, and empty messages count like
  /// others. Throws IndexError for a rank that does not exist, and Error after a failure of the group. If the message
  /// and its receiver differ in size, throws Error on both ranks, here or in wait().
  virtual std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) = 0;
};

/// A group of ranks within this process. Every rank has its own buffers, and only the bytes of messages pass between
/// ranks. Ranks may use several devices; ranks of one device share a stream. The same program runs on a thread for each
/// rank, or on one thread with ranks in turns.
class LocalGroup {
 public:
  /// threads: wait() blocks. turns: one thread runs all ranks, so waiting for a message that was not sent yet throws.
  enum class Progress { threads, turns };

  /// Throws ValueError below one rank.
  explicit LocalGroup(int ranks, Progress progress = Progress::threads);
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  /// A communicator may outlive its group.
  const std::shared_ptr<Communicator>& communicator(int rank) const {
    return ranks_.at(static_cast<std::size_t>(rank));
  }

  /// Calls body(communicator, step) for every rank and every step of [0, steps). With threads, each rank runs its steps
  /// in a row. In turns, all ranks run step 0, then all run step 1, and so on. So a step may wait for messages that
  /// ranks started in earlier steps; with threads also in the same step.
  ///
  /// If a rank throws, the next start() or wait() of the other ranks throws Error that names it. run() rethrows its
  /// exception and resets the group. If a rank catches the exception itself, the others learn after two seconds that it
  /// gave up an exchange. All ranks draw the same numbers from default_generator(), from its state on the calling
  /// thread, which continues from the end of rank 0.
  void run(int steps, const std::function<void(Communicator&, int)>& body);

 private:
  class Room;
  class Rank;
  class Exchange;
  std::shared_ptr<Room> room_;
  std::vector<std::shared_ptr<Communicator>> ranks_;
};

}  // namespace poolgrad::attention
