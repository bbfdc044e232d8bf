// Shared by the pool's tests: the devices of each test body, and the invariants checked after every step.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/simulated_memory.h"

namespace poolgrad::testing {

inline constexpr std::size_t KiB = 1024;
inline constexpr std::size_t MiB = 1024 * KiB;
inline constexpr std::size_t page = 2 * MiB;

/// Returns "host" or "sim" memory of `capacity` bytes in pages of the same size.
inline std::unique_ptr<DeviceMemory> make_memory(const std::string& kind, std::size_t capacity,
                                                 std::size_t granularity = page) {
  if (kind == "host") return std::make_unique<HostMemory>(capacity, granularity);
  return std::make_unique<SimulatedMemory>(0, capacity, granularity);
}

/// Tests with this fixture run on host and simulated memory.
class PoolTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<DeviceMemory> memory(std::size_t capacity = 1024 * MiB) { return make_memory(GetParam(), capacity); }
};

inline const auto devices = ::testing::Values("host", "sim");

inline std::string device_name(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

inline Stream stream_of(const CachingAllocator& pool, std::uint64_t id = 0) { return Stream{pool.device(), id}; }

/// Allocates with a category on stream `id`; throws OutOfMemoryError with the report.
inline void* allocate(CachingAllocator& pool, std::size_t bytes, Category category = Category::activation,
                      std::uint64_t id = 0, std::size_t alignment = 64) {
  const auto result =
      pool.try_allocate({.bytes = bytes, .alignment = alignment, .stream = stream_of(pool, id), .tag = {category, 0}});
  if (void* const* pointer = std::get_if<void*>(&result)) return *pointer;
  throw OutOfMemoryError(std::get<std::string>(result));
}

inline void deallocate(CachingAllocator& pool, void* pointer, std::size_t bytes, std::uint64_t id = 0) {
  pool.deallocate(pointer, bytes, 64, stream_of(pool, id));
}

/// Checks that blocks tile their windows, free neighbors of one stream are coalesced, memory comes in whole pages,
/// gauges are sums over blocks, reserved = live + cached + pending, and the device has committed the pool's pages.
inline void expect_invariants(CachingAllocator& pool) {
  const auto blocks = pool.snapshot();
  const Statistics statistics = pool.statistics();
  const std::size_t granularity = pool.memory().granularity();
  const std::size_t granule = pool.config().mode == AllocatorMode::none ? granularity : pool.config().alignment;
  std::size_t live = 0;
  std::size_t cached = 0;
  std::size_t pending = 0;
  std::array<std::size_t, category_count> by_category{};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockSnapshot& block = blocks[i];
    ASSERT_GT(block.size, 0u);
    ASSERT_EQ(block.address % 64, 0u);
    if (block.state == BlockState::live) {
      live += block.size;
      by_category[static_cast<std::size_t>(block.tag.category)] += block.requested;
      ASSERT_GE(block.size, block.requested);
      // Rounded up to the granule, or to the address's alignment if that is at most 512 bytes.
      const std::size_t alignment = block.address & -block.address;
      ASSERT_LE(block.size - block.requested, std::max<std::size_t>(granule, std::min<std::size_t>(alignment, 512)));
    }
    if (block.state == BlockState::free || block.state == BlockState::magazine) cached += block.size;
    if (block.state == BlockState::pending) pending += block.size;
    ASSERT_NE(block.state, BlockState::busy);
    if (i == 0 || blocks[i - 1].window != block.window) continue;
    const BlockSnapshot& previous = blocks[i - 1];
    ASSERT_EQ(previous.address + previous.size, block.address);
    const bool hole = block.state == BlockState::uncommitted;
    const bool after_hole = previous.state == BlockState::uncommitted;
    ASSERT_TRUE(hole == after_hole || block.address % granularity == 0);
    ASSERT_FALSE(hole && after_hole);
    ASSERT_FALSE(block.state == BlockState::free && previous.state == BlockState::free &&
                 block.stream == previous.stream);
  }
  ASSERT_EQ(statistics.allocated_bytes.current, live);
  ASSERT_EQ(statistics.active_bytes.current, live + pending);
  ASSERT_EQ(statistics.reserved_bytes.current, live + cached + pending);
  ASSERT_EQ(statistics.reserved_bytes.current % granularity, 0u);
  ASSERT_LE(statistics.reserved_bytes.current, pool.budget());
  for (std::size_t i = 0; i < category_count && pool.config().mode != AllocatorMode::lightweight; ++i) {
    ASSERT_EQ(statistics.category_bytes[i].current, by_category[i]);
  }
  const MemoryInfo info = pool.memory().info();
  ASSERT_EQ(info.total - info.free, statistics.reserved_bytes.current);
}

}  // namespace poolgrad::testing
