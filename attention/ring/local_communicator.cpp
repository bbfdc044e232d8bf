#include "attention/ring/communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <thread>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "kernels/elementwise.h"
#include "tensor/generator.h"

namespace poolgrad::attention {

namespace {

/// Half of an exchange: one end of one message.
struct Post {
  enum class State { open, copying, done };
  Stream stream;
  Message message;
  std::uint64_t generation = 0;
  State state = State::open;
};

std::string name(int rank) { return "rank " + std::to_string(rank); }

/// Returns ": " and the message of the error; "" without one.
std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return std::string(": ") + exception.what();
  } catch (...) {
    return {};
  }
}

/// Copies in order with the streams of both ends, which may belong to two devices.
void move(const Post& to, const Post& from) {
  const auto bytes = [](const Message& message) { return View{message.data, DType::u8, 1, {message.bytes}, {1}}; };
  const StreamGuard there(to.stream), here(from.stream);
  kernels::copy(to.stream.device.is_cpu() ? from.stream : to.stream, bytes(to.message), bytes(from.message));
}

}  // namespace

/// The shared state of the ranks. The mutex guards all of it except the copying itself.
class LocalGroup::Room {
 public:
  Room(int ranks, Progress how)
      : size(ranks), progress(how), lanes_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {
    reset();
  }

  void reset() {
    const std::lock_guard lock(mutex_);
    failure_.clear();
    ++generation_;
    for (Lane& lane : lanes_) lane = {};
    gave_up_.assign(static_cast<std::size_t>(size), false);
    says_why_ = false;
    waits_for_.assign(static_cast<std::size_t>(size), runs);
  }

  void post(int from, int to, Post& mine, bool sends);
  void wait(int rank, int to, const Post& out, int from, const Post& in);
  void give_up(int rank, int to, Post& out, int from, Post& in);
  void check(int rank) {
    const std::lock_guard lock(mutex_);
    admit(rank);
    if (!failure_.empty()) throw Error("[exchange] " + failure_);
  }
  /// Until reset(), the code that runs the ranks calls fail() with the exception that ends a rank.
  void says_why() {
    const std::lock_guard lock(mutex_);
    says_why_ = true;
  }
  /// Fails all ranks with the first reason.
  void fail(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
    changed_.notify_all();
  }
  void end(int rank) {
    const std::lock_guard lock(mutex_);
    admit(rank);
    waits_for_[static_cast<std::size_t>(rank)] = ended;
    find_deadlock();
  }

  const int size;
  const Progress progress;

 private:
  /// Messages from one rank to another with one end missing; at most one of the two queues has entries.
  struct Lane {
    std::deque<Post*> sends, receives;
  };
  Lane& lane(int from, int to) { return lanes_[static_cast<std::size_t>(from * size + to)]; }
  void find_deadlock();
  /// Requires the mutex. Blames a rank that runs on after it gave up an exchange, or is silent about it for `patience`.
  void admit(int rank) {
    if (!gave_up_[static_cast<std::size_t>(rank)] || !failure_.empty()) return;
    failure_ = name(rank) + " gave up an exchange";
    changed_.notify_all();
  }

  static constexpr int runs = -1, ended = -2;
  static constexpr std::chrono::seconds patience{2};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  std::uint64_t generation_ = 0;  // a post of an earlier generation is void
  std::vector<Lane> lanes_;
  std::vector<bool> gave_up_;   // ranks that gave up an exchange
  bool says_why_ = false;       // an exception that passes is reported by fail()
  std::vector<int> waits_for_;  // by rank: the rank it waits for, or that it runs or has ended
};

/// Posts one end of a message, and moves the message if the other end is there.
void LocalGroup::Room::post(int from, int to, Post& mine, bool sends) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) throw Error("[exchange] " + failure_);
  mine.generation = generation_;
  std::deque<Post*>& others = sends ? lane(from, to).receives : lane(from, to).sends;
  if (others.empty()) {
    (sends ? lane(from, to).sends : lane(from, to).receives).push_back(&mine);
    return;
  }
  Post& other = *others.front();
  const Post &source = sends ? mine : other, &target = sends ? other : mine;
  if (source.message.bytes != target.message.bytes) {
    failure_ = name(from) + " sends " + std::to_string(source.message.bytes) + " bytes to " + name(to) +
               ", which expects " + std::to_string(target.message.bytes);
  } else if (source.stream.device == target.stream.device && source.stream.id != target.stream.id) {
    failure_ = name(from) + " and " + name(to) + " use different streams of " + to_string(source.stream.device);
  }
  if (!failure_.empty()) {
    changed_.notify_all();
    throw Error("[exchange] " + failure_);
  }
  others.pop_front();
  mine.state = other.state = Post::State::copying;
  lock.unlock();
  try {
    if (source.message.bytes > 0) move(target, source);
    lock.lock();
  } catch (...) {
    // For any exception: no rank may wait for a copy that has ended.
    lock.lock();
    mine.state = other.state = Post::State::open;
    if (failure_.empty())
      failure_ = "a message from " + name(from) + " to " + name(to) + " was lost" + reason_of(std::current_exception());
    changed_.notify_all();
    throw;
  }
  mine.state = other.state = Post::State::done;
  const auto moved = [&](int rank, int peer) {
    int& waits = waits_for_[static_cast<std::size_t>(rank)];
    if (waits == peer) waits = runs;
  };
  moved(from, to), moved(to, from);
  changed_.notify_all();
}

void LocalGroup::Room::wait(int rank, int to, const Post& out, int from, const Post& in) {
  std::unique_lock lock(mutex_);
  admit(rank);
  std::optional<std::chrono::steady_clock::time_point> heard_by;
  for (;;) {
    const bool sent = out.state == Post::State::done, received = in.state == Post::State::done;
    if (sent && received) return;
    if (in.generation != generation_) throw Error("[exchange] the group has restarted since this exchange began");
    // The peer is copying: on a failure, wait until it is through before the memory is freed.
    const bool copying = out.state == Post::State::copying || in.state == Post::State::copying;
    if (!failure_.empty() && !copying) throw Error("[exchange] " + failure_);
    const bool open = out.state == Post::State::open || in.state == Post::State::open;
    if (failure_.empty() && open) {
      const int peer = in.state == Post::State::open ? from : to;
      if (progress == Progress::turns) {
        failure_ = name(rank) + " waits for " + name(peer) +
                   ", which has not started: every rank must start an exchange before any rank waits";
        continue;
      }
      waits_for_[static_cast<std::size_t>(rank)] = peer;
      find_deadlock();
      if (!failure_.empty()) continue;
    }
    const auto is_silent = [&](const Post& post, int peer) {
      return post.state == Post::State::open && gave_up_[static_cast<std::size_t>(peer)];
    };
    const int silent = is_silent(out, to) ? to : is_silent(in, from) ? from : runs;
    if (silent == runs || !failure_.empty()) {
      changed_.wait(lock);
    } else {
      if (!heard_by) heard_by = std::chrono::steady_clock::now() + patience;
      if (changed_.wait_until(lock, *heard_by) == std::cv_status::timeout) admit(silent);
    }
    waits_for_[static_cast<std::size_t>(rank)] = runs;
  }
}

/// Requires the mutex. If no rank runs, no message will ever come.
void LocalGroup::Room::find_deadlock() {
  std::string waiting;
  for (int rank = 0; rank < size; ++rank) {
    const int peer = waits_for_[static_cast<std::size_t>(rank)];
    if (peer == runs) return;
    if (peer == ended) continue;
    const bool gone = waits_for_[static_cast<std::size_t>(peer)] == ended;
    waiting += (waiting.empty() ? "" : ", ") + name(rank) + " for " + name(peer) + (gone ? ", which has ended" : "");
  }
  if (waiting.empty() || !failure_.empty()) return;
  failure_ = "every rank waits: " + waiting;
  changed_.notify_all();
}

void LocalGroup::Room::give_up(int rank, int to, Post& out, int from, Post& in) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return out.state != Post::State::copying && in.state != Post::State::copying; });
  if (out.generation != generation_) return;
  if (out.state == Post::State::done && in.state == Post::State::done) return;
  std::erase(lane(rank, to).sends, &out);
  std::erase(lane(from, rank).receives, &in);
  gave_up_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();  // ranks that already wait for it wait no longer than `patience`
  if (!says_why_ || std::uncaught_exceptions() == 0) admit(rank);
}

class LocalGroup::Exchange final : public Transfer {
 public:
  Exchange(std::shared_ptr<Room> room, Stream stream, int rank, int to, Message out, int from, Message in)
      : room_(std::move(room)), rank_(rank), to_(to), from_(from), out_{stream, out}, in_{stream, in} {}
  ~Exchange() override {
    if (!waited_) room_->give_up(rank_, to_, out_, from_, in_);
  }
  void begin() {
    room_->post(rank_, to_, out_, true);
    room_->post(from_, rank_, in_, false);
  }
  void wait() override {
    if (waited_) return;
    room_->wait(rank_, to_, out_, from_, in_);
    waited_ = true;
  }

 private:
  std::shared_ptr<Room> room_;
  int rank_, to_, from_;
  Post out_, in_;
  bool waited_ = false;
};

class LocalGroup::Rank final : public Communicator {
 public:
  Rank(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return room_->size; }
  std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    for (const int peer : {to, from})
      if (peer < 0 || peer >= size())
        throw IndexError("[exchange] there is no rank " + std::to_string(peer) + " among " + std::to_string(size()));
    room_->check(rank_);
    auto exchange = std::make_unique<Exchange>(room_, stream, rank_, to, out, from, in);
    exchange->begin();
    return exchange;
  }

 private:
  std::shared_ptr<Room> room_;
  int rank_;
};

LocalGroup::LocalGroup(int ranks, Progress progress) {
  if (ranks < 1) throw ValueError("[LocalGroup] needs at least one rank, got " + std::to_string(ranks));
  room_ = std::make_shared<Room>(ranks, progress);
  for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_shared<Rank>(room_, rank));
}

LocalGroup::~LocalGroup() = default;

void LocalGroup::run(int steps, const std::function<void(Communicator&, int)>& body) {
  std::exception_ptr error;
  // Ranks work on one sequence as one program: each draws the same numbers, on any thread.
  std::vector<kernels::RandomKey> random(ranks_.size(), default_generator().state());
  const auto take_step = [&](Communicator& rank, int step) {
    kernels::RandomKey& own = random[static_cast<std::size_t>(rank.rank())];
    default_generator().set_state(own);
    body(rank, step);
    own = default_generator().state();
  };
  if (room_->progress == Progress::turns) {
    try {
      for (int step = 0; step < steps; ++step)
        for (const auto& rank : ranks_) take_step(*rank, step);
    } catch (...) {
      error = std::current_exception();
    }
  } else {
    std::mutex mutex;
    const std::source_location line = CallSite::current();
    const auto failed = [&](const std::string& reason) {  // called while an exception is handled
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      room_->fail(reason);
    };
    const auto run_rank = [&](Communicator& rank) {
      const CallSite site(line);
      try {
        for (int step = 0; step < steps; ++step) take_step(rank, step);
      } catch (const std::exception& exception) {
        failed(name(rank.rank()) + " failed: " + exception.what());
      } catch (...) {
        failed(name(rank.rank()) + " failed");
      }
      room_->end(rank.rank());
    };
    room_->says_why();
    std::vector<std::jthread> threads;
    try {
      for (const auto& rank : ranks_) threads.emplace_back([&] { run_rank(*rank); });
    } catch (const std::exception& exception) {
      failed(std::string("a rank could not be started: ") + exception.what());
    }
  }
  default_generator().set_state(random[0]);
  room_->reset();
  if (error) std::rethrow_exception(error);
}

}  // namespace poolgrad::attention
