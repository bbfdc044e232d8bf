// A process may fork while its threads allocate; the child can use pools like its parent.
#include "allocator/base/fork.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "allocator/base/address_sanitizer.h"
#include "allocator/base/lru.h"
#include "allocator/base/owner_flag.h"
#include "allocator/memory/race_detector.h"
#include "allocator/memory_scope.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

// The address sanitizer of GCC 12 forks without taking its allocator's locks, so the child may find them held for ever.
// Under it, threads pause while the process forks; without it, they keep running.
class Rest {
 public:
  // A worker calls begin() and end() around its work between two pauses.
  void begin() {
    for (++busy_; wanted_; ++busy_) {
      --busy_;
      while (wanted_) std::this_thread::yield();
    }
  }
  void end() { --busy_; }
  template <class F>
  auto during(const F& f) {
    wanted_ = needed;
    while (wanted_ && busy_ != 0) std::this_thread::yield();
    const auto result = f();
    wanted_ = false;
    return result;
  }

 private:
#ifdef POOLGRAD_ADDRESS_SANITIZER
  static constexpr bool needed = true;
#else
  static constexpr bool needed = false;
#endif
  std::atomic<bool> wanted_ = false;
  std::atomic<int> busy_ = 0;
};
Rest rest;

// Runs `body` in a child and returns its result, or -1 if the child hangs or ends abnormally.
template <class Body>
int in_fork(const Body& body) {
  const pid_t child = rest.during(fork);
  if (child == 0) _exit(body());
  int status = 0;
  for (int waited = 0; waited < 3000; ++waited) {
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

// Threads that repeat an action until the object is destroyed.
class Again {
 public:
  explicit Again(std::function<void(std::mt19937_64&)> once) : once_(std::move(once)) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) threads_.emplace_back([this, seed] { work(seed); });
    started_.wait();
  }
  ~Again() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    rest.begin();
    started_.count_down();
    while (!done_) {
      once_(random);
      rest.end();
      rest.begin();
    }
    rest.end();
  }

  const std::function<void(std::mt19937_64&)> once_;
  std::atomic<bool> done_ = false;
  std::latch started_{3};
  std::vector<std::thread> threads_;
};

class ForkTest : public PoolTest {
 protected:
  // Allocates and frees small and large blocks, and calls the device.
  struct Work : Again {
    explicit Work(CachingAllocator& pool)
        : Again([&pool](std::mt19937_64& random) {
            const MemoryScope scope("fork");
            for (int i = 0; i < 200; ++i) {
              const std::size_t bytes = random() % 8 == 0 ? page + random() % page : 1 + random() % (32 * KiB);
              deallocate(pool, allocate(pool, bytes), bytes);
            }
            pool.trim();
            static_cast<void>(pool.statistics());
          }) {}
  };

  // The child's work: returns 0, or the number of the step that failed.
  static int use(CachingAllocator& pool) {
    std::vector<std::pair<void*, std::size_t>> blocks;
    for (const std::size_t bytes : {1 * KiB, 3 * page, 40 * KiB, page, 64 * KiB}) {
      blocks.emplace_back(allocate(pool, bytes), bytes);
    }
    if (pool.statistics().allocated_bytes.current < 4 * page) return 1;
    for (const auto& [block, bytes] : blocks) deallocate(pool, block, bytes);
    for (int i = 0; i < 100; ++i) deallocate(pool, allocate(pool, 1 * KiB), 1 * KiB);
    pool.trim();
    const Statistics statistics = pool.statistics();
    if (statistics.reserved_bytes.current != statistics.active_bytes.current + statistics.cached_bytes()) return 2;
#ifndef POOLGRAD_THREAD_SANITIZER  // which lets no child of several threads make a thread
    std::thread other([&] { deallocate(pool, allocate(pool, 1 * KiB), 1 * KiB); });
    other.join();
#endif
    for (const BlockSnapshot& block : pool.snapshot()) {
      if (block.state == BlockState::busy) return 3;
    }
    return 0;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ForkTest, devices, device_name);

TEST_P(ForkTest, LetsTheChildAllocateAndReadStatistics) {
  CachingAllocator pool(memory(), {.trace = 1000});
  const Work work(pool);
  for (int i = 0; i < 60; ++i) ASSERT_EQ(in_fork([&] { return use(pool); }), 0) << "fork " << i;
}

TEST_P(ForkTest, LetsTheChildDestroyItsPools) {
  auto pool = std::make_unique<CachingAllocator>(memory());
  CachingAllocator other(memory());
  {
    const Work work(*pool);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(in_fork([&] {
                  pool.reset();
                  CachingAllocator fresh(make_memory(GetParam(), 64 * page));
                  return use(other) + use(fresh);
                }),
                0);
    }
  }
}

TEST_P(ForkTest, GivesTheChildTheCachesOfOtherThreads) {
  CachingAllocator pool(memory(), {.budget = page});
  std::atomic<int> step = 0;
  std::thread thread([&] {
    deallocate(pool, allocate(pool, 512 * KiB), 512 * KiB);
    deallocate(pool, allocate(pool, 1 * KiB), 1 * KiB);
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  const int result = in_fork([&] {
    if (pool.statistics().requests != 2) return 1;
    void* all = allocate(pool, page);
    deallocate(pool, all, page);
    return pool.trim() == page ? 0 : 2;
  });
  step = 2;
  thread.join();
  EXPECT_EQ(result, 0);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, page) << "the parent's pool is its own";
}

TEST_P(ForkTest, LetsTheChildDetectRaces) {
  CachingAllocator pool(std::make_unique<RaceDetector>(memory()));
  const Work work(pool);
  for (int i = 0; i < 30; ++i) ASSERT_EQ(in_fork([&] { return use(pool); }), 0) << "fork " << i;
}

TEST(Fork, LetsTheChildEnterScopesAndReadTheirNames) {
  const CachingAllocator pool(make_memory("host", page));
  const MemoryScope outer("fork");
  ASSERT_EQ(in_fork([] {
              const MemoryScope inner("child");
              return scope_name(current_tag().scope) == "fork.child" ? 0 : 1;
            }),
            0);
  EXPECT_EQ(scope_name(current_tag().scope), "fork");
}

TEST(Fork, WaitsForWritersOfASharedMutex) {
  ForkSharedMutex mutex;
  std::atomic<int> first = 0, second = 0;
  const Again work([&](std::mt19937_64& random) {
    if (random() % 2 == 0) {
      const std::shared_lock lock(mutex);
      for (int i = 0; i < 100; ++i) std::atomic_thread_fence(std::memory_order_seq_cst);
      return;
    }
    const std::lock_guard lock(mutex);
    ++first;
    for (int i = 0; i < 100; ++i) std::atomic_thread_fence(std::memory_order_seq_cst);
    ++second;
  });
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(in_fork([&] {
                const std::lock_guard lock(mutex);
                return first == second ? 0 : 1;
              }),
              0)
        << "fork " << i;
  }
}

TEST(Fork, LetsTheChildUseADeviceBesideItsPool) {
  auto memory = std::make_unique<SimulatedMemory>(0, 64 * page);
  SimulatedMemory* device = memory.get();
  const CachingAllocator pool(std::move(memory));
  const Again work([&](std::mt19937_64&) {
    for (int i = 0; i < 1000; ++i) device->advance(1);
  });
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(in_fork([&] {
                const std::uint64_t before = device->now();
                device->advance(1);
                return device->now() == before + 1 ? 0 : 1;
              }),
              0)
        << "fork " << i;
  }
}

TEST(Fork, LetsTheChildNameCallSites) {
  const CachingAllocator pool(std::make_unique<HostMemory>());
  const std::string product = "product";
  const auto name = [&] {
    const CallSite here(product, std::source_location::current());
    return std::string_view(CallSite::of(std::source_location::current()).function_name());
  };
  const Again work([&](std::mt19937_64&) {
    for (int i = 0; i < 1000; ++i) static_cast<void>(name());
  });
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(in_fork([&] { return name() == "product backward" ? 0 : 1; }), 0) << "fork " << i;
  }
}

TEST(Fork, LetsTheChildUseACache) {
  struct Kept {
    std::uint64_t number;
    std::size_t bytes() const { return 1; }
  };
  CachingAllocator pool(std::make_unique<HostMemory>());
  Lru<Kept> cache(100, 100);
  const auto get = [&](std::uint64_t number) {
    const auto same = [&](const Kept& kept) { return kept.number == number; };
    const auto make = [&]() -> Kept {
      deallocate(pool, allocate(pool, 1 * KiB), 1 * KiB);  // a thread that creates objects may use pools
      return {number};
    };
    return cache.get_once(number % 4, same, make).number + cache.get(number % 4, same, make).number;
  };
  const Again work([&](std::mt19937_64& random) {
    for (int i = 0; i < 1000; ++i) static_cast<void>(get(random() % 200));
  });
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(in_fork([&] {
                for (std::uint64_t number = 0; number < 200; ++number)
                  if (get(number) != 2 * number) return 1;
                return cache.statistics().entries == 100 ? 0 : 2;
              }),
              0)
        << "fork " << i;
  }
}

TEST(Fork, CopiesHostMemoryForTheChild) {
  CachingAllocator pool(std::make_unique<HostMemory>());
  auto* bytes = static_cast<char*>(allocate(pool, page));
  std::memset(bytes, 1, page);
  EXPECT_EQ(in_fork([&] {
              const bool there = bytes[0] == 1 && bytes[page - 1] == 1;
              std::memset(bytes, 2, page);
              return there ? 0 : 1;
            }),
            0);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(bytes[page - 1], 1);
  deallocate(pool, bytes, page);
}

}  // namespace
}  // namespace poolgrad::testing
