// Memory of tensors moved out to a file and back. The bytes go through a ring of host memory: a thread writes what a
// forward pass leaves there while the pass goes on, and reads ahead what its backward will ask for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "allocator/base/fork.h"
#include "autograd/memory/offload_file.h"
#include "autograd/memory/offload_ring.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// On the CPU, moving out copies into the ring; where that is full it waits for the thread, and what is larger than all
/// of it goes to the file past it. The ring is memory of the host beside all pools, so no budget of a pool counts it.
/// From a GPU bytes come 2 MiB at a time, behind what made the memory, and the caller waits for them; on their way back
/// nobody waits. Simulated devices have no bytes: places in the file, and the order of streams, are all that is moved;
/// where their work waits in streams, copies have one of their own, and the pool is told, so that it reuses no block
/// under a copy.
///
/// What is found out in the background changes no result: what could not be written stays in the ring. Space of the
/// disk is taken when a tensor is moved, so whether it is taken does not depend on how fast the thread is. A child of
/// fork() has what is in the ring and no thread; what is in the file is its parent's.
class Offload : public std::enable_shared_from_this<Offload> {
 public:
  /// nullptr where no folder is named. Throws FileError where there can be no file in it.
  static std::shared_ptr<Offload> to(const std::string& folder, std::size_t ring_bytes);
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// The bytes of a storage outside of its device, for as long as it lives. Keeps its Offload.
  class Moved;

  /// All of the tensor's storage; afterwards the tensor may be let go. `order` is its own, and larger for what a
  /// backward asks for earlier. nullptr where nothing more can be moved, the disk is full say: then failure() tells
  /// why. This and bring_back() are for one thread at a time; a Moved may die on any.
  std::unique_ptr<Moved> move_out(const Tensor& tensor, std::uint64_t order);
  /// Fills all of the tensor's storage with what was moved, then reads ahead what comes next. FileError.
  void bring_back(Moved& moved, const Tensor& into);
  /// The tensor that was brought back is let go again, unchanged.
  void let_go(Moved& moved);

  /// Whether nothing has failed so far.
  bool can_move() const { return !has_failed_; }
  /// Why nothing more is moved; empty where it is.
  std::string failure() const;

  /// How tensors came back: their bytes were in the ring, or had to be waited for.
  struct Counts {
    std::uint64_t from_ring = 0, from_file = 0;
  };
  Counts counts() const;
  /// Waits until the thread has nothing to do.
  void settle();

 private:
  struct Worker {
    std::condition_variable wake, done;
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Ring = OffloadRing<Moved>;

  Offload(const std::string& folder, std::size_t ring_bytes);
  bool in_child() const;
  bool put_into_ring(Moved& moved, const Tensor& tensor);
  // With the mutex held.
  void fail(const std::string& reason);
  bool start();
  bool make_room(Lock& lock, std::uint64_t before, bool waits);
  void read_ahead(std::uint64_t from);
  std::deque<Moved*>& queue_of(const Moved& moved);
  void enqueue(Moved& moved);
  void give_slot_back(Moved& moved);
  void* address(Ring::Place place) const { return buffer_.get() + place->offset; }
  void work();

  const std::shared_ptr<OffloadFile> file_;
  const int process_;
  mutable ForkMutex mutex_;  // of what follows
  std::atomic<bool> has_failed_{false};
  std::string failure_;
  Counts counts_;
  Ring ring_;
  std::unique_ptr<std::byte[]> buffer_;
  std::map<std::uint64_t, Moved*> away_;  // by order: what nobody has in memory
  std::deque<Moved*> reads_, writes_;     // for the thread
  Moved* under_way_ = nullptr;            // what the thread is moving
  bool ends_ = false;
  std::unique_ptr<Worker> worker_;
};

class Offload::Moved {
 public:
  ~Moved();
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

 private:
  friend class Offload;
  Moved(std::shared_ptr<Offload> offload, std::unique_ptr<const OffloadFile::Extent> extent, std::size_t bytes,
        std::uint64_t order)
      : offload_(std::move(offload)), extent_(std::move(extent)), bytes_(bytes), order_(order) {}
  enum class Task : std::uint8_t { none, read, write };
  /// Whether the ring has the bytes, and not only room for them.
  bool is_in_ring() const { return slot_ && task_ != Task::read; }

  std::shared_ptr<Offload> offload_;
  std::unique_ptr<const OffloadFile::Extent> extent_;
  const std::size_t bytes_;
  const std::uint64_t order_;
  std::optional<Ring::Place> slot_;
  Task task_ = Task::none;   // of the thread: queued or under way
  bool is_written_ = false;  // the file has the bytes
};

}  // namespace poolgrad
