#include "kernels/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "allocator/error.h"

namespace poolgrad::kernels {
namespace {

class Parallel : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_num_threads(GetParam()); }
  void TearDown() override { set_num_threads(before_); }

 private:
  int before_ = num_threads();
};
INSTANTIATE_TEST_SUITE_P(Threads, Parallel, ::testing::Values(1, 2, 3, 8));

TEST_P(Parallel, RangesCoverEveryIndexOnceInChunksOfTheGivenSize) {
  for (const std::int64_t n : {0, 1, 9, 10, 11, 1000, 1001}) {
    std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
    parallel_ranges(n, 10, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_EQ(begin % 10, 0);
      EXPECT_EQ(end, std::min(n, begin + 10));
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    for (const auto& count : visits) EXPECT_EQ(count, 1);
  }
}

TEST_P(Parallel, ItemsAreEachVisitedOnceByAWorkerWithinTheTeam) {
  for (const std::int64_t n : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
    parallel_items(n, [&](std::int64_t item, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, num_threads());
      ++visits[static_cast<std::size_t>(item)];
    });
    for (const auto& count : visits) EXPECT_EQ(count, 1);
  }
}

TEST_P(Parallel, NestedCallsStayOnTheirThread) {
  std::atomic<int> visits = 0;
  parallel_ranges(8, 1, [&](std::int64_t, std::int64_t) {
    const auto thread = std::this_thread::get_id();
    parallel_items(16, [&](std::int64_t, int worker) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      EXPECT_EQ(worker, 0);
      ++visits;
    });
  });
  EXPECT_EQ(visits, 8 * 16);
}

TEST_P(Parallel, AGuardKeepsLoopsOnItsThread) {
  const auto seen = [] {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    parallel_items(64, [&](std::int64_t, int worker) {
      EXPECT_LT(worker, num_threads());
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    return threads;
  };
  const int threads = num_threads();
  {
    const OnThisThread outer;
    { const OnThisThread inner; }
    EXPECT_EQ(seen(), std::set{std::this_thread::get_id()});
    EXPECT_EQ(num_threads(), threads);
  }
  std::atomic<int> together = 0;
  parallel_items(threads, [&](std::int64_t, int) {  // each thread waits for all others
    ++together;
    while (together < threads) std::this_thread::yield();
  });
}

TEST_P(Parallel, AnExceptionReachesTheCallerAndTheNextLoopWorks) {
  const auto failing = [](std::int64_t item, int) {
    if (item == 5) throw std::runtime_error("item 5");
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    try {
      parallel_items(100, failing);
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "item 5");
    }
    EXPECT_THROW(parallel_ranges(100, 1, [&](std::int64_t begin, std::int64_t) { failing(begin, 0); }),
                 std::runtime_error);
    std::atomic<int> visits = 0;
    parallel_items(100, [&](std::int64_t, int) { ++visits; });
    EXPECT_EQ(visits, 100);
  }
}

TEST(ParallelThreads, RunOnSeveralThreads) {
  const int before = num_threads();
  set_num_threads(2);
  std::atomic<int> arrived = 0;
  std::set<int> workers;
  std::mutex mutex;
  parallel_items(2, [&](std::int64_t, int worker) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();  // ends only if both items run concurrently
    const std::lock_guard lock(mutex);
    workers.insert(worker);
  });
  EXPECT_EQ(workers, (std::set<int>{0, 1}));
  set_num_threads(before);
}

TEST(ParallelThreads, KeepTheirNumberWhileAGuardHoldsIt) {
  const int before = num_threads();
  set_num_threads(2);
  {
    const SteadyThreads steady;
    std::thread([] { set_num_threads(5); }).join();
    EXPECT_EQ(num_threads(), 2);
    parallel_items(100, [&](std::int64_t, int worker) { EXPECT_LT(worker, 2); });
    const SteadyThreads within;
    EXPECT_EQ(num_threads(), 2);
  }
  EXPECT_EQ(num_threads(), 5);
  set_num_threads(before);
}

TEST(ParallelThreads, RejectFewerThanOneThread) {
  const int before = num_threads();
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_EQ(num_threads(), before);
}

}  // namespace
}  // namespace poolgrad::kernels
