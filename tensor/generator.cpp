#include "tensor/generator.h"

#include <atomic>
#include <mutex>
#include <string>

#include "allocator/error.h"

namespace poolgrad {

namespace {

/// What manual_seed() said last; `times` counts how often it has spoken.
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
  std::uint64_t times = 0;  // heard of CommonSeed
};

}  // namespace

kernels::RandomKey& Generator::key_of_this_thread() {
  thread_local ThreadStream own;
  if (own.times != common.times.load(std::memory_order_acquire)) {
    const std::lock_guard lock(common.mutex);
    own.key = {common.seed, own.key.use, 0};
    own.times = common.times.load(std::memory_order_relaxed);
  }
  return own.key;
}

kernels::RandomKey Generator::take(std::int64_t count) {
  if (count < 0) throw ValueError("[generator] cannot take " + std::to_string(count) + " numbers");
  kernels::RandomKey& next = key();
  const kernels::RandomKey taken = next;
  next.offset += static_cast<std::uint64_t>(count);
  return taken;
}

Generator& default_generator() {
  static Generator generator{Generator::OfEveryThread{}};
  return generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator().state();  // a thread that seeds has used it
  const std::lock_guard lock(common.mutex);
  common.seed = seed;
  common.times.fetch_add(1, std::memory_order_release);
}

}  // namespace poolgrad
