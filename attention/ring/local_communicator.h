// A group of ranks within this process: every rank has buffers of its own, and nothing but the bytes of messages goes
// from one to another. The same program runs on a thread for each rank, or on one thread with the ranks taking turns.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "attention/ring/communicator.h"

namespace poolgrad::attention {

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
  /// new. All ranks draw the same numbers from default_generator(), from its state on the calling thread, which goes on
  /// from where rank 0 ends.
  void run(int steps, const std::function<void(Communicator&, int)>& body);

 private:
  class Room;
  class Rank;
  class Exchange;
  std::shared_ptr<Room> room_;
  std::vector<std::shared_ptr<Communicator>> ranks_;
};

}  // namespace poolgrad::attention
