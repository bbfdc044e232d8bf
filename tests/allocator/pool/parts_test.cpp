// The parts of a pool without the pool, each only with the parts that it depends on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "allocator/memory/simulated_memory.h"
#include "allocator/pool/cache_trimmer.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t page = std::size_t{2} << 20;

struct Parts {
  explicit Parts(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config = {})
      : context(std::move(memory), config),
        arenas(context.settings.granule, context.settings.page, context.memory->divisible()),
        tracker(context, arenas, [this](std::uint64_t stream, std::uint64_t) { new_tickets.push_back(stream); }),
        pages(context, arenas, tracker),
        trimmer(context, arenas, tracker, pages) {}

  AllocationAttempt attempt(std::size_t bytes, std::uint64_t stream = 0,
                            Category category = Category::activation) const {
    AllocationAttempt attempt;
    attempt.requested = attempt.size = bytes;
    attempt.alignment = 64;
    attempt.stream = {context.settings.device, stream};
    attempt.tag = {category, 0};
    return attempt;
  }
  Stream stream(std::uint64_t id) const { return {context.settings.device, id}; }
  /// A busy block on new pages.
  Block* commit(PoolLock& lock, std::size_t bytes, Category category = Category::activation) {
    AllocationAttempt wanted = attempt(bytes, 0, category);
    EXPECT_EQ(pages.commit(lock, wanted), bytes);
    return wanted.block;
  }
  /// Does the last step of an allocation.
  Block* hand_out(Block* block) {
    Arena::mark_live(block);
    context.accounts.handed_out(*block);
    return block;
  }
  /// Does the first step of a free.
  Block* record_free(Block* block) {
    Arena::clear_live(block);
    context.accounts.given_back(*block);
    return block;
  }

  std::vector<std::uint64_t> new_tickets;
  PoolContext context;
  Arenas arenas;
  StreamTracker tracker;
  PageProvider pages;
  CacheTrimmer trimmer;
};

std::unique_ptr<DeviceMemory> device(std::size_t pages) {
  return std::make_unique<SimulatedMemory>(0, pages * page, page);
}

TEST(UnlockedCall, ReleasesTheMutexDuringTheCall) {
  PoolMutex mutex;
  PoolLock lock(mutex);
  UnlockedCall call(lock);
  const int answer = call([&] {
    std::thread([&] {
      const PoolLock other(mutex);
      EXPECT_EQ(mutex.calls_under_way(), 1u);
    }).join();
    return 42;
  });
  EXPECT_EQ(answer, 42);
  bool other_was_in = false;
  std::thread other([&] {
    const PoolLock wanted(mutex);
    other_was_in = true;
  });
  EXPECT_FALSE(other_was_in);
  call([&] { other.join(); });
  EXPECT_TRUE(other_was_in);
}

TEST(UnlockedCall, UndoesUnlessDoneAfterAnyException) {
  PoolMutex mutex;
  PoolLock lock(mutex);
  std::vector<std::string> put_back;
  const auto attempt = [&](const std::string& name, bool done, auto body) {
    UnlockedCall call(lock, [&]() noexcept { put_back.push_back(name); });
    if (done) call.done();
    call(body);
  };
  attempt("refused", false, [] {});
  attempt("published", true, [] {});
  EXPECT_THROW(attempt("not even an exception", false, [] { throw 1; }), int);
  EXPECT_THAT(put_back, ElementsAre("refused", "not even an exception"));
  EXPECT_EQ(mutex.calls_under_way(), 0u);
  EXPECT_EQ(mutex.calls_ended(), 3u);
}

TEST(UnlockedCall, EndsBeforeWaitingThreadsContinue) {
  PoolMutex mutex;
  std::atomic<bool> waiting = false;
  bool published = false;
  std::thread other;
  {
    PoolLock lock(mutex);
    UnlockedCall call(lock, [&]() noexcept { published = true; });
    call([&] {
      other = std::thread([&] {
        PoolLock wanted(mutex);
        waiting = true;
        wanted.wait_for_calls();
        EXPECT_TRUE(published);
      });
      while (!waiting) std::this_thread::yield();
    });
  }
  other.join();
}

TEST(PoolSettings, CheckPageAgesAtLeastEvery1024Hits) {
  SimulatedMemory memory(0, std::size_t{1} << 20);
  EXPECT_EQ(PoolSettings(memory, {.decay_ms = 20}).hits_between_looks, 1024u) << "the clock is dear";
  EXPECT_EQ(PoolSettings(memory, {.decay = 30, .decay_ms = 20}).hits_between_looks, 30u);
  EXPECT_EQ(PoolSettings(memory, {.decay = 5000}).hits_between_looks, 1024u);
  EXPECT_FALSE(PoolSettings(memory, {}).decays);
}

TEST(Accounts, FollowTheStatesOfABlock) {
  Block block;
  block.size = 128;
  block.requested = 100;
  block.tag.category = Category::gradient;
  for (const bool by_category : {true, false}) {
    Accounts accounts(by_category);
    const Gauge& gradients = accounts.category_bytes[static_cast<std::size_t>(Category::gradient)];
    accounts.handed_out(block);
    EXPECT_EQ(accounts.allocated_bytes.current, 128u);
    EXPECT_EQ(gradients.current, by_category ? 100u : 0u);
    accounts.given_back(block);
    EXPECT_EQ(accounts.allocation.current, 0u);
    EXPECT_EQ(accounts.active_bytes.current, 128u);
    accounts.no_longer_active(128);
    EXPECT_EQ(accounts.active_bytes.current, 0u);
    EXPECT_EQ(accounts.tick, 1u);
    EXPECT_EQ(gradients.peak, by_category ? 100u : 0u);
    accounts.reset_peaks();
    EXPECT_EQ(gradients.peak, 0u);
    EXPECT_EQ(accounts.active_bytes.peak, 0u);
  }
}

TEST(PageProvider, CommitsWithinTheBudgetAndCountsBeforeTheDeviceIsAsked) {
  Parts parts(device(8), {.budget = 3 * page});
  PoolLock lock(parts.context.mutex);
  parts.commit(lock, 2 * page);
  EXPECT_EQ(parts.pages.unused_budget(), page);
  AllocationAttempt more = parts.attempt(2 * page);
  EXPECT_EQ(parts.pages.page_deficit(more), 2 * page);
  EXPECT_EQ(parts.pages.commit(lock, more), 0u);
  EXPECT_TRUE(more.refused);
  EXPECT_FALSE(more.device_full);
  EXPECT_EQ(parts.context.accounts.reserved_bytes.current, 2 * page);
  EXPECT_EQ(parts.context.memory->info().free, 6 * page);
}

TEST(PageProvider, LeavesNothingReservedWhenTheDeviceRefuses) {
  Parts parts(device(1), {.budget = 8 * page});
  PoolLock lock(parts.context.mutex);
  AllocationAttempt attempt = parts.attempt(2 * page);
  EXPECT_EQ(parts.pages.commit(lock, attempt), 0u);
  EXPECT_TRUE(attempt.device_full);
  EXPECT_EQ(parts.context.accounts.reserved_bytes.current, 0u);
  EXPECT_EQ(parts.context.memory->info().free, page);
  EXPECT_EQ(parts.arenas.free_bytes(), 0u);
}

// A device with few addresses, as for a process under ulimit -v.
class FewAddresses : public MemoryAdaptor {
 public:
  FewAddresses(std::unique_ptr<DeviceMemory> memory, std::size_t addresses)
      : MemoryAdaptor(std::move(memory)), addresses_(addresses) {}
  void* reserve(std::size_t bytes) override {
    if (bytes > addresses_) return nullptr;
    addresses_ -= bytes;
    return MemoryAdaptor::reserve(bytes);
  }
  std::size_t left() const { return addresses_; }

 private:
  std::size_t addresses_;
};

TEST(PageProvider, TakesSmallWindowsWhenAddressesAreScarce) {
  const std::size_t mib = std::size_t{1} << 20;
  auto few = std::make_unique<FewAddresses>(device(2048), 520 * mib);
  FewAddresses& memory = *few;
  Parts parts(std::move(few));
  PoolLock lock(parts.context.mutex);
  parts.commit(lock, page);
  EXPECT_EQ(memory.left(), 264 * mib) << "the device has more than there are addresses";
  parts.commit(lock, page, Category::parameter);
  EXPECT_EQ(memory.left(), 8 * mib);
  parts.commit(lock, 254 * mib);  // the rest of the first window
  parts.commit(lock, 2 * page);
  EXPECT_EQ(memory.left(), 4 * mib);
}

TEST(PageProvider, MovesFreePagesOfAFullDeviceWithinTheBudget) {
  Parts parts(device(64));
  PoolLock lock(parts.context.mutex);
  parts.tracker.put_back(parts.commit(lock, 8 * page));
  AllocationAttempt attempt = parts.attempt(8 * page);
  EXPECT_EQ(parts.pages.stitchable_bytes(attempt), 0u);
  attempt.device_full = true;
  EXPECT_EQ(parts.pages.stitchable_bytes(attempt), 8 * page);
}

// A device of many pages and few addresses, whose windows are small.
class SmallWindows : public MemoryAdaptor {
 public:
  SmallWindows(std::unique_ptr<DeviceMemory> memory, std::size_t window, std::size_t addresses)
      : MemoryAdaptor(std::move(memory)), window_(window), addresses_(addresses) {}
  MemoryInfo info() const override { return {.free = window_, .total = window_}; }
  void* reserve(std::size_t bytes) override {
    if (bytes > addresses_) return nullptr;
    addresses_ -= bytes;
    return MemoryAdaptor::reserve(bytes);
  }
  void unreserve(void* address, std::size_t bytes) noexcept override {
    addresses_ += bytes;
    MemoryAdaptor::unreserve(address, bytes);
  }

 private:
  std::size_t window_;
  std::size_t addresses_;
};

TEST(PageProvider, ReturnsEmptyWindowsForALargeRequest) {
  Parts parts(std::make_unique<SmallWindows>(device(64), 8 * page, 16 * page), {.budget = 64 * page});
  PoolLock lock(parts.context.mutex);
  for (Block* block : {parts.commit(lock, 8 * page), parts.commit(lock, 8 * page)}) parts.tracker.put_back(block);
  EXPECT_EQ(parts.trimmer.release(lock, SIZE_MAX), 16 * page);
  parts.commit(lock, 16 * page);
}

TEST(PageProvider, LeavesNothingReservedWhenTheDeviceThrows) {
  auto failing = std::make_unique<FailingMemory>(device(8));
  FailingMemory& memory = *failing;
  Parts parts(std::move(failing));
  memory.fail_by([] { throw 1; });
  PoolLock lock(parts.context.mutex);
  for (const std::uint64_t call : {1u, 2u}) {  // reserve(), commit()
    memory.fail_call(memory.calls() + call);
    AllocationAttempt attempt = parts.attempt(page);
    EXPECT_THROW(parts.pages.commit(lock, attempt), int);
    EXPECT_EQ(parts.context.accounts.reserved_bytes.current, 0u);
    EXPECT_EQ(parts.arenas.free_bytes(), 0u);
    EXPECT_EQ(parts.context.mutex.calls_under_way(), 0u);
  }
  memory.fail_call(0, 0);
  parts.commit(lock, page);
}

TEST(CacheTrimmer, ReleasesTheOldestPagesOfBothArenas) {
  Parts parts(device(8));
  PoolLock lock(parts.context.mutex);
  Block* const long_lived = parts.commit(lock, page, Category::parameter);
  Block* const transient = parts.commit(lock, page);
  parts.context.accounts.tick = 7;
  parts.tracker.put_back(long_lived);
  parts.context.accounts.tick = 8;
  parts.tracker.put_back(transient);
  EXPECT_EQ(parts.trimmer.pinned_bytes(), 0u);
  EXPECT_EQ(parts.trimmer.release(lock, 1), page);
  EXPECT_EQ(parts.arenas.of(Tag{Category::parameter, 0}).free_bytes(), 0u);
  EXPECT_EQ(parts.arenas.of(Tag{Category::activation, 0}).free_bytes(), page);
  EXPECT_EQ(parts.trimmer.release(lock, SIZE_MAX), page);
  EXPECT_EQ(parts.trimmer.release(lock, SIZE_MAX), 0u);
  EXPECT_EQ(parts.context.memory->info().free, 8 * page);
}

TEST(CacheTrimmer, ReleasesNoMoreThanAFullDeviceLacks) {
  Parts parts(device(4096));
  PoolLock lock(parts.context.mutex);
  std::vector<Block*> blocks(6);  // a handle of four pages each
  for (Block*& block : blocks) block = parts.commit(lock, 4 * page);
  for (const std::size_t i : {0u, 2u, 4u}) parts.tracker.put_back(blocks[i]);
  AllocationAttempt attempt = parts.attempt(2 * page);
  attempt.device_full = true;
  EXPECT_EQ(parts.trimmer.release_for(lock, attempt), 4 * page);
}

TEST(StreamTracker, FreesAtOnceOnTheOwnStreamAndLaterOnOthers) {
  auto slow = std::make_unique<DelayedMemory>(device(8));
  DelayedMemory& delays = *slow;
  Parts parts(std::move(slow));
  PoolLock lock(parts.context.mutex);
  Block* block = parts.hand_out(parts.commit(lock, page));
  parts.tracker.free(lock, parts.record_free(block), parts.stream(0));
  EXPECT_EQ(parts.arenas.free_bytes(), page);
  EXPECT_EQ(parts.context.accounts.active_bytes.current, 0u);

  block = parts.hand_out(parts.arenas.of(Tag{}).take(page, 64, 0));
  parts.tracker.free(lock, parts.record_free(block), parts.stream(7));
  EXPECT_EQ(parts.tracker.pending_bytes(), page);
  EXPECT_EQ(parts.tracker.poll_pending(lock), 0u);
  EXPECT_THAT(parts.new_tickets, ElementsAre(7u));
  EXPECT_EQ(parts.context.accounts.active_bytes.current, page);
  delays.finish_events();
  EXPECT_EQ(parts.tracker.poll_pending(lock), page);
  EXPECT_EQ(parts.arenas.free_bytes(), page);
  EXPECT_EQ(parts.context.accounts.active_bytes.current, 0u);
}

TEST(StreamTracker, GivesABlockToAnotherStreamBehindOneEvent) {
  Parts parts(device(8));
  PoolLock lock(parts.context.mutex);
  parts.tracker.put_back(parts.commit(lock, page));
  for (const std::uint64_t events : {1u, 1u}) {
    AllocationAttempt attempt = parts.attempt(page, 5);
    EXPECT_EQ(parts.tracker.take_from_other_streams(lock, attempt, parts.arenas.of(attempt.tag)), page);
    ASSERT_NE(attempt.block, nullptr);
    EXPECT_EQ(attempt.block->stream, 5u);
    EXPECT_EQ(parts.context.accounts.events_recorded, events);
    attempt.block->stream = 0;  // as if it had been freed before the event was recorded
    attempt.block->ticket = 1;
    parts.arenas.of(attempt.block).put(attempt.block);
  }
}

}  // namespace
}  // namespace poolgrad
