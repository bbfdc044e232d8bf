// A real pool's records are a trace without contradictions, and so is its snapshot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "allocator/lab/formats/trace_file.h"
#include "tests/allocator/pool_testing.h"
#include "tests/allocator/trace/trace_testing.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using ::testing::UnorderedElementsAreArray;

constexpr std::size_t page = poolgrad::testing::page;

struct Live {
  void* pointer;
  std::size_t bytes;
  std::uint64_t stream;
};

// Makes random allocations and frees on three streams, with all other events of a trace.
void run(CachingAllocator& pool, std::uint64_t seed, int operations, bool alone) {
  std::mt19937_64 random(seed);
  std::vector<Live> live;
  const MemoryScope scope("test", Category::activation);
  for (int i = 0; i < operations; ++i) {
    const std::uint64_t stream = random() % 3;
    if (live.size() < 100 && random() % 100 < 55) {
      const std::size_t bytes = random() % (random() % 20 == 0 ? 8 * page : random() % 4 == 0 ? page : 4096);
      const auto block = pool.try_allocate({.bytes = bytes, .stream = {pool.device(), stream}});
      if (void* const* pointer = std::get_if<void*>(&block)) live.push_back({*pointer, bytes, stream});
    } else if (!live.empty()) {
      const std::size_t index = random() % live.size();
      std::swap(live[index], live.back());
      if (random() % 10 == 0) pool.use(live.back().pointer, {pool.device(), stream});
      pool.deallocate(live.back().pointer, live.back().bytes, 64, {pool.device(), live.back().stream});
      live.pop_back();
    }
    if (random() % 200 == 0) pool.order({pool.device(), stream}, {pool.device(), random() % 3});
    if (alone && random() % 300 == 0) pool.trim(random() % (16 * page));
    if (alone && random() % 500 == 0) pool.begin_step();
  }
  for (std::size_t i = 0; i < live.size(); i += 2)  // the others stay
    pool.deallocate(live[i].pointer, live[i].bytes, 64, {pool.device(), live[i].stream});
}

std::vector<std::uint64_t> held_addresses(const std::vector<BlockSnapshot>& blocks) {
  std::vector<std::uint64_t> addresses;
  for (const BlockSnapshot& block : blocks)
    if (block.state == BlockState::live || block.state == BlockState::pending) addresses.push_back(block.address);
  return addresses;
}

void expect_consistent(const CachingAllocator& pool) {
  const Trace trace = pool.trace();
  ASSERT_FALSE(trace.events.empty());
  const WindowedTrace cut = cut_trace(trace);
  EXPECT_EQ(cut.contradictions, 0u);
  EXPECT_THAT(held_addresses(cut.trace.blocks), UnorderedElementsAreArray(held_addresses(trace.blocks)));
  for (const SnapshotEncoding encoding : {SnapshotEncoding::pickle, SnapshotEncoding::json})
    for (const Trace& back : decode_pytorch_snapshot(encode_pytorch_snapshot(std::span(&cut, 1), encoding), "file"))
      EXPECT_EQ(cut_trace(back).contradictions, 0u);
  EXPECT_TRUE(trace.lost > 0 || cut.before.empty());
  // The sums in viewers equal the pool's counters.
  const Statistics statistics = pool.statistics();
  std::uint64_t reserved = 0, active = 0;
  for (const BlockSnapshot& block : cut.trace.blocks) {
    if (block.state != BlockState::uncommitted) reserved += block.size;
    if (block.state == BlockState::live || block.state == BlockState::pending) active += block.size;
  }
  EXPECT_EQ(reserved, statistics.reserved_bytes.current);
  EXPECT_EQ(active, statistics.active_bytes.current);
}

class RecordedTrace : public ::testing::TestWithParam<std::size_t> {};  // number of events in a ring

TEST_P(RecordedTrace, IsConsistentForOneThread) {
  const std::uint64_t seed = seed_or(1);
  for (std::uint64_t round = 0; round < 4; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    // The budget is too small for all blocks: all stages of the reclaim policy run.
    CachingAllocator pool(poolgrad::testing::make_memory("sim", 128 * page),
                          {.budget = (round % 2 == 0 ? 96 : 24) * page, .trace = GetParam()});
    run(pool, seed + round, 4000, true);
    expect_consistent(pool);
  }
}

TEST_P(RecordedTrace, IsConsistentForManyThreads) {
  const std::uint64_t seed = seed_or(1);
  SCOPED_TRACE("seed " + std::to_string(seed));
  CachingAllocator pool(poolgrad::testing::make_memory("sim", 1024 * page), {.trace = GetParam()});
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back([&pool, seed, i] { run(pool, seed + i, 3000, false); });
  for (std::thread& thread : threads) thread.join();
  expect_consistent(pool);
}

INSTANTIATE_TEST_SUITE_P(Rings, RecordedTrace, ::testing::Values(std::size_t{1} << 16, std::size_t{500}),
                         [](const auto& events) { return events.param > 1000 ? "Whole" : "Overwritten"; });

}  // namespace
}  // namespace poolgrad
