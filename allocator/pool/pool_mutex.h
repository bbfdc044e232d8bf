// The pool's mutex, and the only way to give it up before its time: a call to the device.
//
// One mutex guards all parts of a pool, and is never held across a call to the device or to a client. What a thread
// takes for such a call is in state `busy`, so that nobody else touches it.
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
  /// Calls of all threads that may end with more free memory: under way; ended. With the mutex held.
  std::size_t calls_under_way() const { return calls_; }
  std::uint64_t calls_ended() const { return ended_; }
  /// In the child of a fork, whose one thread holds the mutex: threads that waited are gone, and the condition would
  /// wait for them when it is destroyed.
  void forget_waiting_threads() noexcept { std::construct_at(&call_ended_); }

 private:
  friend class PoolLock;
  template <class PutBack>
  friend class UnlockedCall;

  /// Gives the mutex up until a call has ended and ready() is true.
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

/// The mutex, held as long as it lives. It cannot be unlocked: functions that take a PoolLock& may make device calls.
class PoolLock {
 public:
  explicit PoolLock(PoolMutex& mutex) : mutex_(mutex) { mutex_.mutex_.lock(); }
  /// At a moment when no thread is inside a device call.
  static PoolLock between_calls(PoolMutex& mutex) {
    return {mutex, [&] { return mutex.calls_ == 0; }};
  }
  ~PoolLock() { mutex_.mutex_.unlock(); }
  PoolLock(const PoolLock&) = delete;
  PoolLock& operator=(const PoolLock&) = delete;

  /// Waits for the device calls that are under way.
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

/// Calls to the device for one purpose, while what they are about is busy. Nothing else gives the mutex up. Made with
/// the mutex held; whatever ends it, an exception of any type too, the mutex is held again, the calls have ended for
/// those who wait for them, and put_back() was called, unless done() was called before: then all is published.
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

  /// Returns what call() does, which is called without the mutex.
  template <class Call>
  decltype(auto) operator()(Call call) {
    if (!std::exchange(called_, true)) ++mutex_.calls_;
    const WithoutMutex without_mutex(mutex_);
    return call();
  }
  /// The same for `calls` calls of the driver, which are counted and timed.
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
  /// Made and destroyed with the mutex held.
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
