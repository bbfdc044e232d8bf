#include "kernels/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/number.h"
#include "allocator/error.h"

#if defined(__SANITIZE_ADDRESS__) && defined(__clang__)  // memory that its OpenMP keeps for ended threads
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so"; }
#endif

namespace poolgrad::kernels {
namespace {

constexpr int most_threads_of_environment = 1024;

int threads_from_environment() {
  if (const char* const text = std::getenv("POOLGRAD_THREADS"); text && *text) {
    const auto threads = number_in<int>(text);
    if (!threads || *threads < 1 || *threads > most_threads_of_environment)
      throw ValueError("[POOLGRAD_THREADS] must be a whole number from 1 to " +
                       std::to_string(most_threads_of_environment) + ", got " + text);
    return *threads;
  }
  const char* const text = std::getenv("OMP_NUM_THREADS");  // may be a list
  const int threads = text ? std::atoi(text) : 0;
  return std::clamp(threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency()), 1,
                    most_threads_of_environment);
}

std::atomic<int>& thread_count() {
  static std::atomic<int> count{threads_from_environment()};
  return count;
}

thread_local bool inside_parallel_region = false;
thread_local int steady_threads = 0;  // 0: no fixed number

/// Calls work(worker) once on each of `team` threads, including the caller.
template <class Work>
void on_team(int team, const Work& work) {
#if defined(POOLGRAD_STD_THREADS)  // the thread sanitizer understands these, but not GCC's OpenMP runtime
  std::vector<std::jthread> threads;
  for (int worker = 1; worker < team; ++worker) threads.emplace_back([&work, worker] { work(worker); });
  work(0);
#else
  // A region may get fewer threads than requested: this loops over workers.
#pragma omp parallel for num_threads(team) schedule(static, 1)
  for (int worker = 0; worker < team; ++worker) work(worker);
#endif
}

}  // namespace

OnThisThread::OnThisThread() : before_(std::exchange(inside_parallel_region, true)) {}
OnThisThread::~OnThisThread() { inside_parallel_region = before_; }

SteadyThreads::SteadyThreads() : before_(std::exchange(steady_threads, num_threads())) {}
SteadyThreads::~SteadyThreads() { steady_threads = before_; }

int num_threads() { return steady_threads > 0 ? steady_threads : thread_count().load(); }

void set_num_threads(int threads) {
  if (threads < 1) throw ValueError("[set_num_threads] needs at least one thread, got " + std::to_string(threads));
  thread_count() = threads;
}

void detail::run_parallel(std::int64_t items, bool dynamic, void (*call)(const void*, std::int64_t, int),
                          const void* context) {
  const int team = static_cast<int>(std::min<std::int64_t>(num_threads(), items));
  if (team <= 1 || inside_parallel_region) {
    for (std::int64_t item = 0; item < items; ++item) call(context, item, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  std::mutex error_mutex;
  on_team(team, [&](int worker) {
    inside_parallel_region = true;
    try {
      if (dynamic) {
        for (std::int64_t item; !failed && (item = next++) < items;) call(context, item, worker);
      } else {
        const std::int64_t end = items * (worker + 1) / team;
        for (std::int64_t item = items * worker / team; item < end && !failed; ++item) call(context, item, worker);
      }
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!failed.exchange(true)) error = std::current_exception();
    }
    inside_parallel_region = false;
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace poolgrad::kernels
