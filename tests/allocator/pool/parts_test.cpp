// The parts of a pool without the pool, each only with the parts that it depends on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "allocator/memory/simulated_memory.h"
#include "allocator/pool/releaser.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t page = std::size_t{2} << 20;

struct Parts {
  explicit Parts(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config = {})
      : ground(std::move(memory), config),
        arenas(ground.settings.granule, ground.settings.page, ground.memory->divisible()),
        ledger(ground, arenas, [this](std::uint64_t stream, std::uint64_t) { new_tickets.push_back(stream); }),
        pages(ground, arenas, ledger),
        releaser(ground, arenas, ledger, pages) {}

  Need need(std::size_t bytes, std::uint64_t stream = 0, Category category = Category::activation) const {
    Need need;
    need.requested = need.size = bytes;
    need.alignment = 64;
    need.stream = {ground.settings.device, stream};
    need.tag = {category, 0};
    return need;
  }
  Stream stream(std::uint64_t id) const { return {ground.settings.device, id}; }
  /// A busy block on new pages.
  Block* commit(PoolLock& lock, std::size_t bytes, Category category = Category::activation) {
    Need wanted = need(bytes, 0, category);
    EXPECT_EQ(pages.commit(lock, wanted), bytes);
    return wanted.block;
  }
  /// Does the last step of an allocation.
  Block* hand_out(Block* block) {
    Arena::mark_live(block);
    ground.accounts.handed_out(*block);
    return block;
  }
  /// Does the first step of a free.
  Block* withdraw(Block* block) {
    Arena::clear_live(block);
    ground.accounts.given_back(*block);
    return block;
  }

  std::vector<std::uint64_t> new_tickets;
  Ground ground;
  Arenas arenas;
  StreamLedger ledger;
  PageSupply pages;
  Releaser releaser;
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

TEST(PageSupply, CommitsWithinTheBudgetAndCountsBeforeTheDeviceIsAsked) {
  Parts parts(device(8), {.budget = 3 * page});
  PoolLock lock(parts.ground.mutex);
  parts.commit(lock, 2 * page);
  EXPECT_EQ(parts.pages.unused_budget(), page);
  Need more = parts.need(2 * page);
  EXPECT_EQ(parts.pages.page_deficit(more), 2 * page);
  EXPECT_EQ(parts.pages.commit(lock, more), 0u);
  EXPECT_TRUE(more.refused);
  EXPECT_FALSE(more.device_full);
  EXPECT_EQ(parts.ground.accounts.reserved_bytes.current, 2 * page);
  EXPECT_EQ(parts.ground.memory->info().free, 6 * page);
}

TEST(PageSupply, LeavesNothingReservedWhenTheDeviceRefuses) {
  Parts parts(device(1), {.budget = 8 * page});
  PoolLock lock(parts.ground.mutex);
  Need need = parts.need(2 * page);
  EXPECT_EQ(parts.pages.commit(lock, need), 0u);
  EXPECT_TRUE(need.device_full);
  EXPECT_EQ(parts.ground.accounts.reserved_bytes.current, 0u);
  EXPECT_EQ(parts.ground.memory->info().free, page);
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

TEST(PageSupply, TakesSmallWindowsWhenAddressesAreScarce) {
  const std::size_t mib = std::size_t{1} << 20;
  auto few = std::make_unique<FewAddresses>(device(2048), 520 * mib);
  FewAddresses& memory = *few;
  Parts parts(std::move(few));
  PoolLock lock(parts.ground.mutex);
  parts.commit(lock, page);
  EXPECT_EQ(memory.left(), 264 * mib) << "the device has more than there are addresses";
  parts.commit(lock, page, Category::parameter);
  EXPECT_EQ(memory.left(), 8 * mib);
  parts.commit(lock, 254 * mib);  // the rest of the first window
  parts.commit(lock, 2 * page);
  EXPECT_EQ(memory.left(), 4 * mib);
}

TEST(PageSupply, MovesFreePagesOfAFullDeviceWithinTheBudget) {
  Parts parts(device(64));
  PoolLock lock(parts.ground.mutex);
  parts.ledger.put_back(parts.commit(lock, 8 * page));
  Need need = parts.need(8 * page);
  EXPECT_EQ(parts.pages.stitchable_bytes(need), 0u);
  need.device_full = true;
  EXPECT_EQ(parts.pages.stitchable_bytes(need), 8 * page);
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

TEST(PageSupply, ReturnsEmptyWindowsForALargeRequest) {
  Parts parts(std::make_unique<SmallWindows>(device(64), 8 * page, 16 * page), {.budget = 64 * page});
  PoolLock lock(parts.ground.mutex);
  for (Block* block : {parts.commit(lock, 8 * page), parts.commit(lock, 8 * page)}) parts.ledger.put_back(block);
  EXPECT_EQ(parts.releaser.release(lock, SIZE_MAX), 16 * page);
  parts.commit(lock, 16 * page);
}

TEST(PageSupply, LeavesNothingReservedWhenTheDeviceThrows) {
  auto failing = std::make_unique<FailingMemory>(device(8));
  FailingMemory& memory = *failing;
  Parts parts(std::move(failing));
  memory.fail_by([] { throw 1; });
  PoolLock lock(parts.ground.mutex);
  for (const std::uint64_t call : {1u, 2u}) {  // reserve(), commit()
    memory.fail_call(memory.calls() + call);
    Need need = parts.need(page);
    EXPECT_THROW(parts.pages.commit(lock, need), int);
    EXPECT_EQ(parts.ground.accounts.reserved_bytes.current, 0u);
    EXPECT_EQ(parts.arenas.free_bytes(), 0u);
    EXPECT_EQ(parts.ground.mutex.calls_under_way(), 0u);
  }
  memory.fail_call(0, 0);
  parts.commit(lock, page);
}

TEST(Releaser, ReleasesTheOldestPagesOfBothArenas) {
  Parts parts(device(8));
  PoolLock lock(parts.ground.mutex);
  Block* const long_lived = parts.commit(lock, page, Category::parameter);
  Block* const transient = parts.commit(lock, page);
  parts.ground.accounts.tick = 7;
  parts.ledger.put_back(long_lived);
  parts.ground.accounts.tick = 8;
  parts.ledger.put_back(transient);
  EXPECT_EQ(parts.releaser.pinned_bytes(), 0u);
  EXPECT_EQ(parts.releaser.release(lock, 1), page);
  EXPECT_EQ(parts.arenas.of(Tag{Category::parameter, 0}).free_bytes(), 0u);
  EXPECT_EQ(parts.arenas.of(Tag{Category::activation, 0}).free_bytes(), page);
  EXPECT_EQ(parts.releaser.release(lock, SIZE_MAX), page);
  EXPECT_EQ(parts.releaser.release(lock, SIZE_MAX), 0u);
  EXPECT_EQ(parts.ground.memory->info().free, 8 * page);
}

TEST(Releaser, ReleasesNoMoreThanAFullDeviceLacks) {
  Parts parts(device(4096));
  PoolLock lock(parts.ground.mutex);
  std::vector<Block*> blocks(6);  // a handle of four pages each
  for (Block*& block : blocks) block = parts.commit(lock, 4 * page);
  for (const std::size_t i : {0u, 2u, 4u}) parts.ledger.put_back(blocks[i]);
  Need need = parts.need(2 * page);
  need.device_full = true;
  EXPECT_EQ(parts.releaser.release_for(lock, need), 4 * page);
}

TEST(StreamLedger, FreesAtOnceOnTheOwnStreamAndLaterOnOthers) {
  auto slow = std::make_unique<DelayedMemory>(device(8));
  DelayedMemory& delays = *slow;
  Parts parts(std::move(slow));
  PoolLock lock(parts.ground.mutex);
  Block* block = parts.hand_out(parts.commit(lock, page));
  parts.ledger.free(lock, parts.withdraw(block), parts.stream(0));
  EXPECT_EQ(parts.arenas.free_bytes(), page);
  EXPECT_EQ(parts.ground.accounts.active_bytes.current, 0u);

  block = parts.hand_out(parts.arenas.of(Tag{}).take(page, 64, 0));
  parts.ledger.free(lock, parts.withdraw(block), parts.stream(7));
  EXPECT_EQ(parts.ledger.pending_bytes(), page);
  EXPECT_EQ(parts.ledger.poll_pending(lock), 0u);
  EXPECT_THAT(parts.new_tickets, ElementsAre(7u));
  EXPECT_EQ(parts.ground.accounts.active_bytes.current, page);
  delays.finish_events();
  EXPECT_EQ(parts.ledger.poll_pending(lock), page);
  EXPECT_EQ(parts.arenas.free_bytes(), page);
  EXPECT_EQ(parts.ground.accounts.active_bytes.current, 0u);
}

TEST(StreamLedger, GivesABlockToAnotherStreamBehindOneEvent) {
  Parts parts(device(8));
  PoolLock lock(parts.ground.mutex);
  parts.ledger.put_back(parts.commit(lock, page));
  for (const std::uint64_t events : {1u, 1u}) {
    Need need = parts.need(page, 5);
    EXPECT_EQ(parts.ledger.take_from_other_streams(lock, need, parts.arenas.of(need.tag)), page);
    ASSERT_NE(need.block, nullptr);
    EXPECT_EQ(need.block->stream, 5u);
    EXPECT_EQ(parts.ground.accounts.events_recorded, events);
    need.block->stream = 0;  // as if it had been freed before the event was recorded
    need.block->ticket = 1;
    parts.arenas.of(need.block).put(need.block);
  }
}

}  // namespace
}  // namespace poolgrad
