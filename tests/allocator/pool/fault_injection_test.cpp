// Every call to the device fails once at every place, by a refusal or by an exception of any type. So does every
// allocation of host memory by the program. Nothing leaks, and the next call works.
#include <array>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <utility>

#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"
#include "tests/effort.h"

namespace {

// This call of operator new from now on throws in this thread; 0: none.
thread_local std::uint64_t failing_new = 0;
thread_local bool all_fail = false;  // all later calls fail too

void* counted_new(std::size_t bytes, std::size_t alignment) {
  if (failing_new != 0 && --failing_new == 0) throw std::bad_alloc();
  if (all_fail && failing_new == 0) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted_new(bytes, alignof(std::max_align_t)); }
// As in the standard library. A sanitizer's version would not call the operator above.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_new(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace poolgrad::testing {
namespace {

// A device whose events allocate no host memory. It knows whose work was done when memory was released.
class WatchedMemory : public MemoryAdaptor {
 public:
  struct Seen {
    std::array<bool, 8> waited{};  // by stream
    std::array<bool, 8> before_memory_went{};
    bool memory_went = false;
  };
  WatchedMemory(std::unique_ptr<DeviceMemory> memory, Seen& seen) : MemoryAdaptor(std::move(memory)), seen_(seen) {}

  EventId record_event(Stream stream) override { return 1 + stream.id; }
  bool event_finished(EventId) override { return false; }
  void stream_wait(Stream, EventId) override {}
  void synchronize(EventId event) override { seen_.waited.at(event - 1) = true; }
  void discard_event(EventId) noexcept override {}
  void decommit(void* address, std::size_t bytes) noexcept override {
    failing_new = 0;
    all_fail = false;
    if (!std::exchange(seen_.memory_went, true)) seen_.before_memory_went = seen_.waited;
    MemoryAdaptor::decommit(address, bytes);
  }

 private:
  Seen& seen_;
};

TEST(WatchedPool, WaitsForAllWorkWithoutMemoryToDoSo) {
  for (std::uint64_t k = 1, last = 12; k <= last; ++k) {
    for (const bool all : {false, true}) {
      SCOPED_TRACE("request " + std::to_string(k) + (all ? " and all after it fail" : " fails"));
      WatchedMemory::Seen seen;
      auto pool =
          std::make_unique<CachingAllocator>(std::make_unique<WatchedMemory>(make_memory("sim", 64 * page), seen));
      const auto of = [&](std::uint64_t stream) { return allocate(*pool, page, Category::activation, stream); };
      of(2);
      void* in_use = of(0);
      pool->use(in_use, stream_of(*pool, 4));
      of(5);
      pool->stream_destroyed(stream_of(*pool, 5));
      for (std::uint64_t i = 0; i < 4; ++i) allocate(*pool, 64, Category::parameter, 6 + i % 2);
      void* free = of(1);
      void* pending = of(0);
      deallocate(*pool, free, page, 1);
      pool->use(pending, stream_of(*pool, 3));
      deallocate(*pool, pending, page, 0);
      seen.waited = {};
      failing_new = k;
      all_fail = all;
      pool.reset();
      ASSERT_TRUE(seen.memory_went);
      for (std::size_t stream = 0; stream < 8; ++stream) EXPECT_TRUE(seen.before_memory_went[stream]) << stream;
    }
  }
}

class FaultInjectionTest : public PoolTest {
 protected:
  struct Live {
    void* pointer;
    std::size_t bytes;
    std::uint64_t stream;
  };

  // 200 operations that reach every kind of call: growth, frees and allocations across streams, release, trim.
  void run_script(CachingAllocator& pool) {
    std::mt19937_64 random(42);
    std::vector<Live> live;
    const auto release = [&] {
      std::swap(live[random() % live.size()], live.back());
      deallocate(pool, live.back().pointer, live.back().bytes, random() % 3 == 0 ? random() % 2 : live.back().stream);
      live.pop_back();
    };
    for (int step = 0; step < 200; ++step) {
      if (step % 40 == 39) {
        pool.trim(page);
      } else if (live.size() < 6 && random() % 3 != 0) {
        const std::size_t bytes = 1 + random() % (2 * page);
        const std::uint64_t stream = random() % 2;
        try {
          live.push_back({allocate(pool, bytes, Category::activation, stream), bytes, stream});
        } catch (const Error&) {
          ++refused_;
        }
      } else if (!live.empty()) {
        release();
      }
      expect_invariants(pool);
      if (HasFatalFailure()) return;
    }
    while (!live.empty()) release();
  }

  std::size_t refused_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Devices, FaultInjectionTest, devices, device_name);

TEST_P(FaultInjectionTest, SurvivesTheFailureOfAnyOneCall) {
  std::uint64_t calls = 0;
  for (std::uint64_t k = 0; k == 0 || k <= calls; ++k) {
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(calls));
    auto failing = std::make_unique<FailingMemory>(memory(64 * page));
    FailingMemory* device = failing.get();
    CachingAllocator pool(std::move(failing), {.budget = 7 * page});
    if (k != 0) device->fail_call(k);
    run_script(pool);
    ASSERT_FALSE(HasFatalFailure());
    if (k == 0) calls = device->calls();
    device->fail_call(0, 0);
    // All memory is released, and the whole budget can be allocated.
    pool.set_budget(7 * page);
    void* all = allocate(pool, 7 * page);
    deallocate(pool, all, 7 * page);
    EXPECT_EQ(pool.statistics().active_bytes.current, 0u);
    pool.trim();
    expect_invariants(pool);
    EXPECT_EQ(device->info().free, device->info().total);
  }
  EXPECT_GT(calls, 50u);
}

TEST_P(FaultInjectionTest, FailsCleanlyWhenTheDeviceRefusesEverything) {
  auto failing = std::make_unique<FailingMemory>(memory(64 * page));
  FailingMemory* device = failing.get();
  CachingAllocator pool(std::move(failing));
  device->fail_call(1, 1000);
  for (int i = 0; i < 10; ++i) EXPECT_THROW(allocate(pool, page), OutOfMemoryError);
  device->fail_call(0, 0);
  EXPECT_NO_THROW(allocate(pool, page));
  expect_invariants(pool);
}

// Counts the page moves that threw.
class FailingMoves : public FailingMemory {
 public:
  FailingMoves(std::unique_ptr<DeviceMemory> inner, int& failed) : FailingMemory(std::move(inner)), failed_(failed) {}
  bool move(void* from, void* to, std::size_t bytes) override {
    const int before = failed_++;
    const bool moved = FailingMemory::move(from, to, bytes);
    failed_ = before;
    return moved;
  }

 private:
  int& failed_;
};

// A program that makes every device call from every function that uses one, and sees each exception.
class AnyExceptionTest : public PoolTest {
 protected:
  struct Live {
    void* pointer;
    std::size_t bytes;
    std::uint64_t stream;
  };

  static constexpr std::size_t granularity = 64 * KiB;

  // Catches the exceptions of `call`.
  template <class Call>
  void attempt(Call call) {
    failing_new = due_;
    try {
      call();
    } catch (const OutOfMemoryError&) {
    } catch (...) {
      ++thrown_;
    }
    due_ = failing_new;
    failing_new = 0;
  }

  // Six steps like those of training on three streams, with calls of every kind between them.
  void run_script(CachingAllocator& pool) {
    std::mt19937_64 random(7);
    int thrown_before = 0;
    const auto stream = [&](std::uint64_t id) { return stream_of(pool, id); };
    for (int step = 0; step < 6; ++step) {
      attempt([&] { pool.begin_step(); });
      std::vector<Live> live;
      live.reserve(64);
      for (int i = 0; i < 16; ++i) {
        const std::size_t bytes = i % 3 == 0 ? 300 * KiB + 1 : (std::size_t{8} << (i % 5)) * KiB;
        const std::uint64_t id = step < 3 ? 0 : random() % 3;
        attempt([&] { live.push_back({allocate(pool, bytes, Category::activation, id), bytes, id}); });
        if (step >= 3 && i % 5 == 0 && !live.empty()) {
          attempt([&] { pool.use(live.back().pointer, stream((id + 1) % 3)); });
        }
        if (step >= 3 && i % 8 == 6 && !live.empty()) {
          Live& block = live.back();
          const std::uint64_t next = (block.stream + 1) % 3;
          attempt([&] { block.stream = pool.transfer_to_stream(block.pointer, stream(next)) ? next : block.stream; });
          const std::size_t wanted = block.bytes + granularity;
          attempt([&] {
            const Stream own = stream(block.stream);
            block.bytes = pool.expand_in_place(block.pointer, block.bytes, wanted, own) ? wanted : block.bytes;
          });
        }
        if (step >= 3 && i % 7 == 0) attempt([&] { pool.order(stream(1), stream(2)); });
        if (live.size() > 8) give_back(pool, live, step < 3 ? 0 : random());
        // Each check takes longer than the step.
        if (std::exchange(thrown_before, thrown_) != thrown_ || i % 4 == 3) expect_invariants(pool);
        if (HasFatalFailure()) return;
      }
      if (step == 4) attempt([&] { pool.stream_destroyed(stream(2)); });
      while (!live.empty()) give_back(pool, live, step < 3 ? 0 : random());
      if (step % 2 == 1) attempt([&] { pool.trim(step == 3 ? granularity : SIZE_MAX); });
      if (step == 4) attempt([&] { pool.set_budget(48 * granularity); });
    }
  }

  static constexpr std::size_t moved_from = 16 * MiB;

  // Every second MiB is idle, and the budget allows no further one.
  void move_pages(CachingAllocator& pool) {
    std::vector<void*> blocks;
    blocks.reserve(moved_from / MiB);
    for (std::size_t i = 0; i < moved_from / MiB; ++i) attempt([&] { blocks.push_back(allocate(pool, MiB)); });
    for (std::size_t i = 0; i < blocks.size(); i += 2)
      attempt([&] { deallocate(pool, std::exchange(blocks[i], nullptr), MiB); });
    void* large = nullptr;
    attempt([&] { large = allocate(pool, moved_from / 2); });
    expect_invariants(pool);
    if (large != nullptr) attempt([&] { deallocate(pool, large, moved_from / 2); });
    for (void* block : blocks) attempt([&] { deallocate(pool, block, MiB); });
  }

  void give_back(CachingAllocator& pool, std::vector<Live>& live, std::uint64_t chance) {
    std::swap(live[chance % live.size()], live.back());
    const Live block = live.back();
    live.pop_back();
    attempt([&] { deallocate(pool, block.pointer, block.bytes, chance % 3 == 0 ? chance % 2 : block.stream); });
  }

  // Without failures, all memory is released, the pool waits for no thread that does not exist, and steps are planned
  // as usual.
  void expect_usable(CachingAllocator& pool) {
    pool.set_budget(48 * granularity);
    EXPECT_THROW(allocate(pool, 49 * granularity), OutOfMemoryError);
    deallocate(pool, allocate(pool, 48 * granularity), 48 * granularity);
    EXPECT_EQ(pool.statistics().active_bytes.current, 0u);
    pool.trim();
    expect_invariants(pool);
    EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
    if (pool.config().mode != AllocatorMode::planned) return;
    const std::uint64_t hits = pool.statistics().planned_hits;
    for (int step = 0; step < 140; ++step) {  // a useless plan is retried after up to 64 steps
      pool.begin_step();
      for (int i = 0; i < 4; ++i) deallocate(pool, allocate(pool, 40 * KiB), 40 * KiB);
    }
    EXPECT_GT(pool.statistics().planned_hits, hits);
    pool.trim();
  }

  // Runs the script with the k-th failure, for every k until no call fails; `arm` and `disarm` set and clear it.
  void survive(const AllocatorConfig& config, const std::function<void(FailingMemory&, std::uint64_t)>& arm,
               bool moves_only = false) {
    std::uint64_t last = 0;
    for (std::uint64_t k = 1; k == last + 1; ++k) {
      SCOPED_TRACE("failure " + std::to_string(k));
      auto failing = std::make_unique<FailingMoves>(
          make_memory(GetParam(), moves_only ? 2 * moved_from : 64 * granularity, granularity), failed_moves_);
      FailingMemory* device = failing.get();
      CachingAllocator pool(std::move(failing), config);
      thrown_ = due_ = 0;
      arm(*device, k);
      moves_only ? move_pages(pool) : run_script(pool);
      const bool met = counts_news_ ? due_ == 0 : device->calls() >= k;
      device->fail_call(0, 0);
      due_ = 0;
      ASSERT_FALSE(HasFatalFailure());
      expect_usable(pool);
      ASSERT_FALSE(HasFailure());
      EXPECT_EQ(device->info().free, device->info().total);
      if (met) last = k;
    }
    EXPECT_GT(last, moves_only ? 10u : 60u);
  }

  static std::vector<AllocatorConfig> configurations() {
    const std::size_t budget = 40 * granularity;
    return {{.budget = budget},
            {.budget = budget, .poison = true, .magazines = false, .decay = 30, .trace = 64},
            {.budget = budget, .mode = AllocatorMode::none},
            {.budget = budget, .mode = AllocatorMode::planned}};
  }

  std::uint64_t due_ = 0;  // number of the pool's call of operator new that fails
  bool counts_news_ = false;
  int thrown_ = 0;
  int failed_moves_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Devices, AnyExceptionTest, devices, device_name);

TEST_P(AnyExceptionTest, AtADeviceCallLeavesThePoolUnchanged) {
  const std::vector<std::function<void()>> raises = {
      [] { throw std::bad_alloc(); }, [] { throw CudaError("[device] out of order"); }, [] { throw 42; }};
  // Each call fails with each exception in turn. In a brief run it fails with one, chosen by the seed, and neighboring
  // calls fail with the others.
  const std::size_t first = is_brief() ? test_seed() % raises.size() : 0;
  for (std::size_t turn = first; turn < (is_brief() ? first + 1 : raises.size()); ++turn) {
    const auto arm = [&](FailingMemory& device, std::uint64_t k) {
      device.fail_by(raises[(k + turn) % raises.size()]);
      device.fail_call(k);
    };
    failed_moves_ = 0;
    survive({.budget = moved_from}, arm, true);
    EXPECT_GT(failed_moves_, 1) << "what lies idle is moved by several calls, and each of them has failed";
    for (const AllocatorConfig& config : configurations()) {
      SCOPED_TRACE(config.text());
      survive(config, arm);
      if (HasFailure()) return;
    }
  }
}

TEST_P(AnyExceptionTest, AtAHeapRequestLeavesThePoolUnchanged) {
  counts_news_ = true;
  for (const AllocatorConfig& config : configurations()) {
    SCOPED_TRACE(config.text());
    survive(config, [&](FailingMemory& device, std::uint64_t k) {
      device.fail_call(UINT64_MAX, 0);
      due_ = k;
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace poolgrad::testing
