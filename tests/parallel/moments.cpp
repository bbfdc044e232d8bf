#include "tests/parallel/moments.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "allocator/error.h"
#include "autograd/engine/engine.h"

namespace poolgrad::parallel::testing_support {

using attention::Communicator, attention::Message, attention::Transfer;

namespace {

/// Set to the strikes of this thread's rank while it writes.
thread_local const Strikes* watches_files = nullptr;

bool fails(Moment moment, const std::string& path) {
  return watches_files != nullptr && path.find(".safetensors.tmp.") != std::string::npos && (*watches_files)(moment);
}
std::string path_of(int descriptor) {
  char path[4096];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return {path, static_cast<std::size_t>(length < 0 ? 0 : length)};
}

/// The phase of the run, and the function that is called at each moment.
struct Watch {
  const Strikes& strikes;
  enum { aside, forward, backward } phase = aside;

  void at(Moment moment) const {
    if (strikes(moment)) throw ValueError("out of luck");
  }
};

class WatchedCommunicator final : public Communicator {
 public:
  WatchedCommunicator(std::shared_ptr<Communicator> ranks, const Watch& watch)
      : ranks_(std::move(ranks)), watch_(watch) {}
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    if (watch_.phase == Watch::forward) watch_.at(Moment::forward);
    auto watched = std::make_unique<Watched>(watch_);
    watched->inner = ranks_->start(stream, to, out, from, in);
    return watched;
  }

 private:
  struct Watched : Transfer {
    explicit Watched(const Watch& of) : watch(of) {}
    void wait() override {
      if (watch.phase == Watch::forward) watch.at(Moment::ring_exchange);
      inner->wait();
    }
    const Watch& watch;
    std::unique_ptr<Transfer> inner;
  };
  std::shared_ptr<Communicator> ranks_;
  const Watch& watch_;
};

class WatchedRanks final : public nn::Ranks {
 public:
  WatchedRanks(nn::Ranks& inner, Watch& watch) : inner_(inner), watch_(watch) {}
  bool armed = false;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  nn::BatchShare share(std::int64_t rows, std::int64_t length) const override { return inner_.share(rows, length); }
  void sum(std::span<double> values) override { inner_.sum(values); }
  std::unique_ptr<nn::GradientSums> sum_gradients(const std::vector<Tensor>& parameters) override {
    return std::make_unique<Sums>(inner_.sum_gradients(parameters), *this);
  }
  void share_out(const std::vector<Tensor>& tensors, const std::vector<int>& owners) override {
    if (armed) watch_.at(Moment::optimizer_step);
    inner_.share_out(tensors, owners);
  }
  void transfer(const std::vector<Tensor>& tensors, int from, int to) override {
    if (armed && rank() == from) watch_.at(Moment::writing);
    inner_.transfer(tensors, from, to);
  }
  void agree(const std::vector<std::pair<std::string, std::string>>& values) override { inner_.agree(values); }

 private:
  struct Sums : nn::GradientSums {
    Sums(std::unique_ptr<GradientSums> sums, WatchedRanks& ranks) : inner(std::move(sums)), of(ranks) {}
    void begin(std::int64_t passes) override {
      if (of.armed) of.watch_.phase = Watch::forward;
      inner->begin(passes);
    }
    void finish() override {
      of.watch_.phase = Watch::aside;
      if (of.armed) of.watch_.at(Moment::gradient_reduction);
      inner->finish();
    }
    std::unique_ptr<GradientSums> inner;
    WatchedRanks& of;
  };
  nn::Ranks& inner_;
  Watch& watch_;
};

}  // namespace

std::string to_string(Moment moment) {
  constexpr const char* names[] = {"start",
                                   "before_the_first_step",
                                   "forward",
                                   "ring_exchange",
                                   "backward",
                                   "gradient_reduction",
                                   "optimizer_step",
                                   "writing",
                                   "renaming",
                                   "report",
                                   "end"};
  return names[static_cast<int>(moment)];
}

void train_until(const Strikes& strikes, const std::shared_ptr<Communicator>& all, const Grid& grid,
                 const std::string& path) {
  Watch watch{strikes};
  watch.at(Moment::start);
  std::unique_ptr<WatchedRanks> ranks;
  RankOfRun run({.batch = 4, .shard = true}, std::make_shared<WatchedCommunicator>(all, watch), grid, Layout::zigzag,
                [&](TrainingRanks& own) {
                  ranks = std::make_unique<WatchedRanks>(own, watch);
                  return ranks.get();
                });
  watch.at(Moment::before_the_first_step);
  run.losses(2);
  run.trainer.save(path);
  double it_is_written = 1;
  run.ranks->sum({&it_is_written, 1});

  ranks->armed = true;
  HookHandle hook = register_hook(run.trainer.model().parameters().back(), [&](const Tensor& gradient) {
    if (std::exchange(watch.phase, Watch::backward) == Watch::forward) watch.at(Moment::backward);
    return gradient;
  });
  run.losses(1);
  hook.remove();

  watches_files = &strikes;
  struct Leave {
    ~Leave() { watches_files = nullptr; }
  } leave;
  run.trainer.save(path);
  if (all->rank() != 0) watch.at(Moment::renaming);
  watch.at(Moment::report);
  run.trainer.validate(1);
  watch.at(Moment::end);
}

std::int64_t steps_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return 0;
  RankOfRun alone({.batch = 4});
  alone.trainer.resume(path);
  return alone.trainer.steps_done();
}

}  // namespace poolgrad::parallel::testing_support

using poolgrad::parallel::testing_support::Moment;

/// Replaces the function of the C library.
extern "C" ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  using namespace poolgrad::parallel::testing_support;
  if (watches_files != nullptr && bytes > 1) {
    const std::string path = path_of(descriptor);
    if (path.find(".safetensors.tmp.") != std::string::npos) {
      syscall(SYS_write, descriptor, data, bytes / 2);
      if (fails(Moment::writing, path)) {
        errno = ENOSPC;
        return -1;
      }
      return static_cast<ssize_t>(bytes / 2);
    }
  }
  return syscall(SYS_write, descriptor, data, bytes);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  using namespace poolgrad::parallel::testing_support;
  if (fails(Moment::renaming, from)) {
    errno = EIO;
    return -1;
  }
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
