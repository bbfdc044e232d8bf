// Threads of CPU kernels. Work splits into chunks of fixed size, so results never depend on the number of threads.
// Calls inside a parallel body run on the calling thread alone.
#pragma once

#include <cstdint>

namespace poolgrad::kernels {

/// Returns the threads that CPU kernels use: POOLGRAD_THREADS, else OMP_NUM_THREADS, else the cores of the machine, at
/// most 1024. Throws ValueError if POOLGRAD_THREADS is not such a number.
int num_threads();
/// Sets the number for the process, from the next kernel on. Throws ValueError below 1.
void set_num_threads(int threads);

/// Freezes num_threads() for the constructing thread. Scratch sized for it stays large enough if another thread sets
/// another number.
class SteadyThreads {
 public:
  SteadyThreads();
  ~SteadyThreads();
  SteadyThreads(const SteadyThreads&) = delete;
  SteadyThreads& operator=(const SteadyThreads&) = delete;

 private:
  int before_;
};

/// Makes the calling thread run parallel work alone; num_threads() keeps its value. For dry runs, whose loops are too
/// short to use other threads.
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
/// Runs call(context, item, worker) for every item of [0, items). Each worker gets an equal consecutive part, or with
/// `dynamic` the next item as soon as it is free. The first exception cancels items that have not started and is
/// rethrown.
void run_parallel(std::int64_t items, bool dynamic, void (*call)(const void*, std::int64_t, int), const void* context);
}  // namespace detail

/// Calls body(begin, end) for consecutive chunks of [0, n) on several threads. Each chunk has `chunk` items except the
/// last. Uses one thread if n <= chunk. Rethrows an exception of a body.
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

/// Calls body(item, worker) for every item of [0, n), each on the next free thread: for items of unequal cost. Threads
/// take items in ascending order and run each at once, so a body may wait for bodies of smaller items. worker <
/// num_threads() numbers the thread, for per-thread scratch. Rethrows an exception of a body.
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
