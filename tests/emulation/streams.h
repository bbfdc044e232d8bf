// The streams and events of an emulated GPU, which run queued work late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

namespace poolgrad::emulation {

/// Queued work runs only when a caller waits for it, queries it, or too much is queued. Then streams advance in a
/// random order that events allow, drawn from a seed. Often one stream runs ahead of all others, so that some run
/// exposes missing synchronization. Not thread-safe.
///
/// All streams are independent, also the default one, which on a GPU waits for others: a program that is correct here
/// is correct there.
class Streams {
 public:
  using Work = std::function<void()>;

  explicit Streams(std::uint64_t seed) : random_(seed) {}

  /// Queues work. If much is queued, runs some, of any stream.
  void enqueue(std::uint64_t stream, Work work);

  std::uint64_t create_event();
  /// Throws CudaError for an event that does not exist, as do all calls with an event.
  void destroy_event(std::uint64_t event);
  /// Completes the event once all work now queued on the stream is done.
  void record(std::uint64_t event, std::uint64_t stream);
  /// Makes later work of the stream wait for the event's last record(). Does nothing if it was never recorded.
  void wait(std::uint64_t stream, std::uint64_t event);
  /// The same for the work queued now on all streams for which earlier(stream) is true.
  void wait_for_all(std::uint64_t stream, const std::function<bool(std::uint64_t)>& earlier);
  /// Holds later work of the stream until the result is set to true, by other work or between calls, as behind a kernel
  /// that waits for another device.
  std::shared_ptr<bool> hold(std::uint64_t stream);
  /// Runs some work, or none, of any stream. Returns whether the event is done, which repeated queries eventually see.
  bool query(std::uint64_t event);
  /// Runs work of any stream until the event, all work of a stream, or all work is done. Throws CudaError, named after
  /// `call`, if that requires a held stream: this would never end.
  void synchronize(std::uint64_t event);
  void synchronize_stream(std::uint64_t stream, const char* call = "synchronize");
  void synchronize_all();

  std::size_t queued() const { return queued_; }

  /// Work and its predecessors, as indices of earlier work.
  struct Recording {
    struct Node {
      Work work;
      std::vector<std::size_t> before;
    };
    std::vector<Node> nodes;
  };
  /// Starts to record the stream's work instead of running it, and that of streams that wait for an event recorded on
  /// it. Enforces CUDA's rules with CudaError: the host may neither wait for nor query such a stream or event, and
  /// recorded work may not depend on other work. A violation invalidates the recording, except a query of an event.
  void begin_capture(std::uint64_t stream);
  /// Throws CudaError if the recording was invalidated, or if a forked stream was not joined again.
  std::shared_ptr<const Recording> end_capture(std::uint64_t stream);
  bool is_captured(std::uint64_t stream) const { return captured_.contains(stream); }
  /// Refuses a call on a captured stream: invalidates its recording and throws CudaError.
  [[noreturn]] void refuse_captured(std::uint64_t stream, const char* call, const char* why);
  /// Queues the recorded work, to run in any allowed order.
  void launch(std::uint64_t stream, std::shared_ptr<const Recording> recording);

 private:
  struct Capture {
    std::uint64_t origin;
    std::string broken;  // the reason
    std::shared_ptr<Recording> recording = std::make_shared<Recording>();
  };
  /// Capture state of a stream or an event: its last preceding work.
  struct Place {
    std::shared_ptr<Capture> capture;
    std::vector<std::size_t> before;
  };
  void check_whole(const Capture& capture, const char* call) const;
  void run_in_some_order(const Recording& recording);

  /// A point in a stream; true once reached. An event is its latest mark.
  using Mark = std::shared_ptr<bool>;
  struct Record {
    Mark mark;
  };
  struct Wait {
    Mark mark;
  };
  using Entry = std::variant<Work, Record, Wait>;
  struct Queue {
    std::deque<Entry> entries;
    std::uint64_t rank = 0;  // lowest runs first
  };

  Mark& known(std::uint64_t event, const char* call);
  void push(std::uint64_t stream, Entry entry);
  /// Runs the next entry of a stream that can proceed; false if all streams with entries are held.
  bool step(bool by_rank);
  /// Runs entries until done(); false if only held work is left.
  template <class Done>
  bool run_until(const Done& done);

  std::mt19937_64 random_;
  const Mark nothing_ = std::make_shared<bool>(true);
  std::map<std::uint64_t, Queue> queues_;
  std::map<std::uint64_t, Mark> events_;
  std::uint64_t last_event_ = 0;
  std::size_t queued_ = 0;
  std::map<std::uint64_t, Place> captured_;         // streams
  std::map<std::uint64_t, Place> captured_events_;  // events recorded on captured streams
};

}  // namespace poolgrad::emulation
