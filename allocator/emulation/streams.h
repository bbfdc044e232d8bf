// The streams and events of an emulated GPU: work that is queued, and run late.
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

/// Nothing that is queued runs before somebody waits for it, asks about it, or too much is queued. Then streams go on
/// in any order that events allow, drawn from a seed: often one stream has the way before all others, so that what is
/// not ordered by an event is, in some run, in the order that was not meant. Not synchronised.
///
/// Every stream is one of its own, the default one too, which on a GPU waits for others: what is right here is right
/// there.
class Streams {
 public:
  using Work = std::function<void()>;

  explicit Streams(std::uint64_t seed) : random_(seed) {}

  /// Queues work; runs some, of any stream, where much is queued.
  void enqueue(std::uint64_t stream, Work work);

  std::uint64_t create_event();
  /// Throws CudaError for an event that does not exist, as all that take one.
  void destroy_event(std::uint64_t event);
  /// The event is done once all that is queued on the stream now is.
  void record(std::uint64_t event, std::uint64_t stream);
  /// What is queued on the stream from now on runs after what the event marks now; nothing where it was never recorded.
  void wait(std::uint64_t stream, std::uint64_t event);
  /// ... after what is queued now on all streams for which earlier(stream) is true.
  void wait_for_all(std::uint64_t stream, const std::function<bool(std::uint64_t)>& earlier);
  /// What is queued on the stream from now on runs once the result is set to true, by other work or between calls: as
  /// after a kernel that waits for one of another device.
  std::shared_ptr<bool> hold(std::uint64_t stream);
  /// Runs some work, or none, of any stream; whether the event is done then. Who asks often enough hears that it is.
  bool query(std::uint64_t event);
  /// Runs work, of any stream, until the event, all of a stream's work, or everything is done. Throws CudaError where
  /// that waits for a stream which is held: nobody could let it go meanwhile. `call` is whose error it is.
  void synchronize(std::uint64_t event);
  void synchronize_stream(std::uint64_t stream, const char* call = "synchronize");
  void synchronize_all();

  std::size_t queued() const { return queued_; }

  /// Work and what must run before it, as indices of earlier work.
  struct Recording {
    struct Node {
      Work work;
      std::vector<std::size_t> before;
    };
    std::vector<Node> nodes;
  };
  /// From now on what is queued on the stream is recorded, and not run; so is that of a stream that waits for an event
  /// that was recorded on it then. CUDA's rules hold, and throw CudaError where they are broken: no wait of the host
  /// for such a stream or event, no question about one, no dependence on work that is not recorded. But for questions
  /// about events that breaks the recording, too.
  void begin_capture(std::uint64_t stream);
  /// Throws CudaError where the recording was broken, or where what another stream has joined was not joined again.
  std::shared_ptr<const Recording> end_capture(std::uint64_t stream);
  bool is_captured(std::uint64_t stream) const { return captured_.contains(stream); }
  /// A call that is not allowed on a stream that is captured: its recording is broken, and CudaError thrown.
  [[noreturn]] void refuse_captured(std::uint64_t stream, const char* call, const char* why);
  /// Queues the recorded work, which runs in any order that is allowed.
  void launch(std::uint64_t stream, std::shared_ptr<const Recording> recording);

 private:
  struct Capture {
    std::uint64_t origin;
    std::string broken;  // why
    std::shared_ptr<Recording> recording = std::make_shared<Recording>();
  };
  /// A stream that is captured, or an event: the last work that comes before.
  struct Place {
    std::shared_ptr<Capture> capture;
    std::vector<std::size_t> before;
  };
  void check_whole(const Capture& capture, const char* call) const;
  void run_in_some_order(const Recording& recording);

  /// Where a stream has to come to; true once it has. An event is its last one.
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
    std::uint64_t rank = 0;  // who goes first
  };

  Mark& known(std::uint64_t event, const char* call);
  void push(std::uint64_t stream, Entry entry);
  /// Runs the next entry of one of the streams that can go on; false where all that have any are held.
  bool step(bool by_rank);
  /// Whether it is done: not where what is left is held.
  template <class Done>
  bool run_until(const Done& done);

  std::mt19937_64 random_;
  const Mark nothing_ = std::make_shared<bool>(true);
  std::map<std::uint64_t, Queue> queues_;
  std::map<std::uint64_t, Mark> events_;
  std::uint64_t last_event_ = 0;
  std::size_t queued_ = 0;
  std::map<std::uint64_t, Place> captured_;         // streams
  std::map<std::uint64_t, Place> captured_events_;  // those last recorded on one
};

}  // namespace poolgrad::emulation
