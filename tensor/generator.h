// Random numbers as a function of (seed, stream of use, index), by counter-based Philox 4x32-10. A generator only hands
// out disjoint index ranges. Its state is three numbers, and a range can be replayed exactly (checkpointing, dropout's
// backward).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/random.h"

namespace poolgrad {

/// A range that a generator handed out. A log of ranges, in order, lets a recomputation draw the same numbers.
struct RandomRange {
  kernels::RandomKey key;
  std::int64_t count = 0;
};
using RandomLog = std::vector<RandomRange>;

/// Records the ranges of all generators on this thread in `log` during its lifetime. With `replays`, ranges come from
/// `log` in order, and generators keep their state. Guards nest: a range comes from the innermost replay and goes to
/// every log inside it. The log must outlive the guard.
class RandomLogGuard {
 public:
  enum Mode { records, replays };
  RandomLogGuard(RandomLog& log, Mode mode);
  ~RandomLogGuard();
  RandomLogGuard(const RandomLogGuard&) = delete;
  RandomLogGuard& operator=(const RandomLogGuard&) = delete;

 private:
  friend class Generator;
  kernels::RandomKey next(std::int64_t count);

  RandomLog& log_;
  const bool replays_;
  std::size_t next_ = 0;
  RandomLogGuard* const outer_;
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0, std::uint64_t use = 0) : key_{seed, use, 0} {}
  /// Copies the state; both generators then hand out the same ranges.
  Generator(const Generator& other) : key_(other.state()) {}
  Generator& operator=(const Generator& other) {
    set_state(other.state());
    return *this;
  }

  /// Takes `count` numbers, which the returned key identifies permanently. While a Graph records, takes nothing: each
  /// replay takes as many, and the generator must outlive the graph. Throws Error if a RandomLogGuard replays a
  /// different count.
  kernels::RandomKey take(std::int64_t count);
  /// Restarts with another seed in the same stream of use.
  void set_seed(std::uint64_t seed) { set_state({seed, key().use, 0}); }

  /// The complete state, for checkpoints.
  kernels::RandomKey state() const { return key(); }
  void set_state(kernels::RandomKey state) { key() = state; }

 private:
  friend Generator& default_generator();
  struct OfEveryThread {};
  explicit Generator(OfEveryThread) : of_every_thread_(true) {}
  static kernels::RandomKey& key_of_this_thread();
  kernels::RandomKey advance(std::int64_t count);
  kernels::RandomKey take_at_each_replay(std::int64_t count);
  kernels::RandomKey& key() { return of_every_thread_ ? key_of_this_thread() : key_; }
  const kernels::RandomKey& key() const { return of_every_thread_ ? key_of_this_thread() : key_; }

  kernels::RandomKey key_;
  bool of_every_thread_ = false;
};

/// Returns the default generator: one object per process with a state per thread, usable on any thread. Threads are
/// numbered from 0 in the order of first use. Thread n draws from stream of use n of the last manual_seed() (0 at
/// start). Threads that start together get arbitrary numbers. For repeatable draws each sets its stream with
/// `default_generator().set_state({seed, use, 0})`.
Generator& default_generator();
/// Seeds default_generator() for all present and future threads. Each restarts in its own stream of use.
void manual_seed(std::uint64_t seed);

}  // namespace poolgrad
