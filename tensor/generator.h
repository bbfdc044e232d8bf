// Random numbers as a function of (seed, stream of use, index): Philox 4x32-10 by counter. A generator only hands out
// disjoint index ranges, so its state is three numbers, and a range can be replayed exactly (checkpointing, dropout's
// backward).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/random.h"

namespace poolgrad {

/// What generators handed out, in order: what a computation that is run again needs to draw the same numbers.
struct RandomRange {
  kernels::RandomKey key;
  std::int64_t count = 0;
};
using RandomLog = std::vector<RandomRange>;

/// While alive, what any generator hands out on this thread is written down in `log`, or, with `replays`, comes from
/// there, in order, and the generators stay as they are. They nest: a range comes from the innermost replay and goes
/// to every log inside it. The log must outlive it.
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
  /// Goes on from where the other one is; both then hand out the same ranges.
  Generator(const Generator& other) : key_(other.state()) {}
  Generator& operator=(const Generator& other) {
    set_state(other.state());
    return *this;
  }

  /// Takes `count` numbers; the key names them for ever. While a Graph records, nothing is taken: each replay takes as
  /// many, and needs the generator to be alive. Throws Error where a RandomLogGuard replays others.
  kernels::RandomKey take(std::int64_t count);
  /// Begins anew with another seed, in the same stream of use.
  void set_seed(std::uint64_t seed) { set_state({seed, key().use, 0}); }

  /// The whole state, for checkpoints.
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

/// The generator used where none is given. It is one object for the whole process, with a state for each thread, so it
/// may be kept anywhere and used on any thread. Threads are numbered from 0 in the order in which they first use it,
/// and number n draws from stream of use n of the seed that manual_seed() set last (0 at start). Threads that start
/// together are numbered by chance; what they draw is repeatable once each has chosen its stream with
/// `default_generator().set_state({seed, use, 0})`.
Generator& default_generator();
/// Seeds default_generator() for all threads, those to come too: each begins anew in its own stream of use.
void manual_seed(std::uint64_t seed);

}  // namespace poolgrad
