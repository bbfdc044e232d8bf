// The one place where CPU threads are started. Work is cut into fixed-size chunks, so that what a chunk computes never
// depends on the number of threads. Calls made inside a parallel body run on the calling thread alone.
#pragma once

#include <cstdint>

namespace poolgrad::kernels {

/// Threads that kernels use on the CPU: POOLGRAD_THREADS, else OMP_NUM_THREADS, else the cores of the machine, at most
/// 1024. Throws ValueError where POOLGRAD_THREADS is no such number.
int num_threads();
/// Sets it for the process, from the next kernel on; throws ValueError below 1.
void set_num_threads(int threads);

/// While it lives, num_threads() stays what it is, for the thread that made it: scratch that was taken for so many is
/// enough, whoever sets another number meanwhile.
class SteadyThreads {
 public:
  SteadyThreads();
  ~SteadyThreads();
  SteadyThreads(const SteadyThreads&) = delete;
  SteadyThreads& operator=(const SteadyThreads&) = delete;

 private:
  int before_;
};

/// While it lives, what the calling thread does in parallel it does alone; num_threads() stays as it is. For dry runs,
/// whose loops are too short to wait for other threads.
class OnThisThread {
 public:
  OnThisThread();
  ~OnThisThread();
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  bool before_;
};

namespace detail {
/// Runs call(context, item, worker) for every item of [0, items): in equal consecutive parts per worker, or, where
/// `dynamic`, one after another as workers become free. The first exception stops what has not begun and is rethrown.
void run_parallel(std::int64_t items, bool dynamic, void (*call)(const void*, std::int64_t, int), const void* context);
}  // namespace detail

/// Calls body(begin, end) for consecutive chunks of [0, n), each `chunk` long but the last; chunks run on several
/// threads. One thread where n <= chunk. An exception in a body is rethrown here.
template <class Body>
void parallel_ranges(std::int64_t n, std::int64_t chunk, const Body& body) {
  if (n <= 0) return;
  if (n <= chunk) return body(std::int64_t{0}, n);
  struct Context {
    std::int64_t n, chunk;
    const Body& body;
  };
  const Context context{n, chunk, body};
  detail::run_parallel((n + chunk - 1) / chunk, false,
                       [](const void* erased, std::int64_t item, int) {
                         const auto& [count, size, run] = *static_cast<const Context*>(erased);
                         const std::int64_t end = (item + 1) * size;
                         run(item * size, end < count ? end : count);
                       },
                       &context);
}

/// Calls body(item, worker) for every item of [0, n), each as soon as a thread is free: for items of unequal cost. They
/// are taken in ascending order, and whoever has taken one runs it at once, so a body may wait for what the bodies of
/// smaller items do. worker < num_threads() names the thread, for per-thread scratch. An exception is rethrown here.
template <class Body>
void parallel_items(std::int64_t n, const Body& body) {
  if (n <= 0) return;
  if (n == 1) return body(std::int64_t{0}, 0);
  detail::run_parallel(
      n, true,
      [](const void* erased, std::int64_t item, int worker) { (*static_cast<const Body*>(erased))(item, worker); },
      &body);
}

}  // namespace poolgrad::kernels
