// Threads that take turns: the caller waits while one runs its function. So a program with several threads, and their
// thread-local caches, is deterministic.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace poolgrad::testing {

class WorkerThreads {
 public:
  /// Runs `work`, which must not throw, on thread `number` (0: the caller) to its end.
  void run(unsigned number, const std::function<void()>& work) {
    if (number == 0) return work();
    std::unique_ptr<Worker>& worker = workers_[number];
    if (!worker) worker = std::make_unique<Worker>();
    worker->run(work);
  }
  /// Ends the thread; its number may be used again.
  void end(unsigned number) { workers_.erase(number); }

 private:
  class Worker {
   public:
    ~Worker() {
      hand_over(nullptr);
      thread_.join();
    }
    void run(const std::function<void()>& work) {
      hand_over(&work);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !has_work_; });
    }

   private:
    void hand_over(const std::function<void()>* work) {
      const std::lock_guard lock(mutex_);
      work_ = work;
      has_work_ = true;
      changed_.notify_all();
    }
    void loop() {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [this] { return has_work_; });
        if (work_ == nullptr) return;
        (*work_)();
        has_work_ = false;
        changed_.notify_all();
      }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    const std::function<void()>* work_ = nullptr;
    bool has_work_ = false;
    std::thread thread_{[this] { loop(); }};
  };

  std::map<unsigned, std::unique_ptr<Worker>> workers_;
};

}  // namespace poolgrad::testing
