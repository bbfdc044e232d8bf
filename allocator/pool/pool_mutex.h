// The pool's mutex, which is released early only for device calls.
//
// One mutex guards all parts of a pool. It is never held across a call to the device or to a client. Blocks taken for
// such a call are in state `busy`, so that other threads do not touch them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "allocator/report/statistics.h"

namespace poolgrad {

class PoolMutex {
 public:
  /// Device calls of all threads that may end with more free memory: in progress; ended. Requires the mutex.
  std::size_t calls_under_way() const { return calls_; }
  std::uint64_t calls_ended() const { return ended_; }
  /// In the child of a fork, whose one thread holds the mutex: the waiting threads are gone, and the destructor of the
  /// condition would wait for them.
  void forget_waiting_threads() noexcept { std::construct_at(&call_ended_); }

 private:
  friend class PoolLock;
  template <class PutBack>
  friend class UnlockedCall;

  /// Releases the mutex until a call has ended and ready() is true.
  template <class Ready>
  void wait(Ready ready) {
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    call_ended_.wait(held, ready);
    held.release();
  }

  std::mutex mutex_;
  std::condition_variable call_ended_;
  std::size_t calls_ = 0;
  std::uint64_t ended_ = 0;
};

/// Holds the mutex for its lifetime. It cannot be unlocked, but functions that take a PoolLock& may make device calls.
class PoolLock {
 public:
  explicit PoolLock(PoolMutex& mutex) : mutex_(mutex) { mutex_.mutex_.lock(); }
  /// Locks at a moment without device calls in progress.
  static PoolLock between_calls(PoolMutex& mutex) {
    return {mutex, [&] { return mutex.calls_ == 0; }};
  }
  ~PoolLock() { mutex_.mutex_.unlock(); }
  PoolLock(const PoolLock&) = delete;
  PoolLock& operator=(const PoolLock&) = delete;

  /// Waits for the device calls in progress.
  void wait_for_calls() {
    const std::uint64_t all_of_them = mutex_.ended_ + mutex_.calls_;
    mutex_.wait([&] { return mutex_.ended_ >= all_of_them || mutex_.calls_ == 0; });
  }

 private:
  template <class PutBack>
  friend class UnlockedCall;

  template <class Ready>
  PoolLock(PoolMutex& mutex, Ready ready) : PoolLock(mutex) {
    mutex_.wait(ready);
  }

  PoolMutex& mutex_;
};

struct NothingToPutBack {
  void operator()() const noexcept {}
};

/// Device calls for one purpose, on busy blocks. Only this releases the mutex. Constructed with the mutex held. At its
/// end, also by any exception, the mutex is held again and waiting threads see the calls as ended. Calls put_back()
/// unless done() was called first: then all results are committed.
template <class PutBack = NothingToPutBack>
class UnlockedCall {
 public:
  explicit UnlockedCall(PoolLock& lock, PutBack put_back = {}) : mutex_(lock.mutex_), put_back_(put_back) {}
  ~UnlockedCall() {
    if (!done_) put_back_();
    if (!called_) return;
    --mutex_.calls_;
    ++mutex_.ended_;
    mutex_.call_ended_.notify_all();
  }
  UnlockedCall(const UnlockedCall&) = delete;
  UnlockedCall& operator=(const UnlockedCall&) = delete;

  /// Calls call() without the mutex and returns its result.
  template <class Call>
  decltype(auto) operator()(Call call) {
    if (!std::exchange(called_, true)) ++mutex_.calls_;
    const WithoutMutex without_mutex(mutex_);
    return call();
  }
  /// The same for `calls` driver calls, which are counted and timed.
  template <class Call>
  decltype(auto) timed(Statistics& statistics, std::uint64_t calls, Call call) {
    const Timer timer{statistics, calls};
    return (*this)(call);
  }
  void done() { done_ = true; }

 private:
  struct WithoutMutex {
    explicit WithoutMutex(PoolMutex& given_up) : mutex(given_up) { mutex.mutex_.unlock(); }
    ~WithoutMutex() { mutex.mutex_.lock(); }
    WithoutMutex(const WithoutMutex&) = delete;
    WithoutMutex& operator=(const WithoutMutex&) = delete;
    PoolMutex& mutex;
  };
  /// Created and destroyed with the mutex held.
  struct Timer {
    ~Timer() {
      const auto passed = std::chrono::steady_clock::now() - start;
      statistics.driver_calls += calls;
      statistics.driver_nanoseconds +=
          static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
    }
    Statistics& statistics;
    const std::uint64_t calls;
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  };

  PoolMutex& mutex_;
  PutBack put_back_;
  bool called_ = false;
  bool done_ = false;
};

}  // namespace poolgrad
