#include "tensor/generator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "kernels/functors/philox.h"
#include "tensor/graph.h"

namespace poolgrad {

namespace {

/// The last manual_seed() value; `times` counts the calls.
struct CommonSeed {
  std::mutex mutex;
  std::uint64_t seed = 0;
  std::atomic<std::uint64_t> times{0};
};
constinit CommonSeed common;

constinit std::atomic<std::uint64_t> threads{0};

/// The state of default_generator() for one thread.
struct ThreadStream {
  kernels::RandomKey key{0, threads.fetch_add(1, std::memory_order_relaxed), 0};
  std::uint64_t times = 0;  // last CommonSeed::times seen
};

thread_local constinit RandomLogGuard* innermost_log = nullptr;

}  // namespace

RandomLogGuard::RandomLogGuard(RandomLog& log, Mode mode)
    : log_(log), replays_(mode == replays), outer_(std::exchange(innermost_log, this)) {}
RandomLogGuard::~RandomLogGuard() { innermost_log = outer_; }

kernels::RandomKey RandomLogGuard::next(std::int64_t count) {
  const std::string asked =
      "[generator] a recomputation asks for " + std::to_string(count) + " random numbers where the first run took ";
  if (next_ == log_.size()) throw Error(asked + "no more");
  const RandomRange& range = log_[next_];
  if (range.count != count) throw Error(asked + std::to_string(range.count) + " at this point");
  ++next_;
  return range.key;
}

kernels::RandomKey& Generator::key_of_this_thread() {
  thread_local ThreadStream own;
  if (own.times != common.times.load(std::memory_order_acquire)) {
    const std::lock_guard lock(common.mutex);
    own.key = {common.seed, own.key.use, 0};
    own.times = common.times.load(std::memory_order_relaxed);
  }
  return own.key;
}

kernels::RandomKey Generator::advance(std::int64_t count) {
  const kernels::RandomKey before = key();
  key().offset += static_cast<std::uint64_t>(count);
  return before;
}

kernels::RandomKey Generator::take_at_each_replay(std::int64_t count) {
  const void* const there = Graph::recording()->value(sizeof(kernels::ReplayedKey), [this, count](void* to) {
    kernels::ReplayedKey now{advance(count)};
    const kernels::PhiloxWords block = kernels::philox_block(now.key.seed, now.key.use, now.key.offset);
    std::copy_n(block.word, 4, now.words);
    std::memcpy(to, &now, sizeof(now));
  });
  return {.replayed = static_cast<const kernels::ReplayedKey*>(there)};
}

kernels::RandomKey Generator::take(std::int64_t count) {
  if (count < 0) throw ValueError("[generator] cannot take " + std::to_string(count) + " numbers");
  RandomLogGuard* replay = innermost_log;
  while (replay != nullptr && !replay->replays_) replay = replay->outer_;
  const kernels::RandomKey taken = replay != nullptr               ? replay->next(count)
                                   : Graph::recording() != nullptr ? take_at_each_replay(count)
                                                                   : advance(count);
  for (RandomLogGuard* inside = innermost_log; inside != replay; inside = inside->outer_)
    inside->log_.push_back({taken, count});
  return taken;
}

Generator& default_generator() {
  static Generator generator{Generator::OfEveryThread{}};
  return generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator().state();  // registers the seeding thread as a user
  const std::lock_guard lock(common.mutex);
  common.seed = seed;
  common.times.fetch_add(1, std::memory_order_release);
}

}  // namespace poolgrad
