// Random operations against a deliberately simple model: a map of the live intervals.
#include <map>
#include <random>
#include <set>

#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

struct Shape {
  const char* name;
  std::size_t budget;
  std::size_t live_blocks;
  unsigned largest_octave;  // of a size, above 1 byte
  std::uint64_t streams;
  std::size_t granularity = page;
};

class Shadow {
 public:
  void add(void* pointer, std::size_t bytes, std::uint64_t stream, std::size_t capacity) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    ASSERT_EQ(address % 64, 0u);
    const std::size_t extent = std::max<std::size_t>(bytes, 1);
    const auto after = blocks_.lower_bound(address);
    ASSERT_TRUE(after == blocks_.end() || address + extent <= after->first);
    if (after != blocks_.begin()) {
      const auto& [start, block] = *std::prev(after);
      ASSERT_LE(start + std::max<std::size_t>(block.bytes, 1), address);
    }
    blocks_[address] = {bytes, stream};
    live_ += bytes;
    ASSERT_LE(live_, capacity);
  }

  bool empty() const { return blocks_.empty(); }
  std::size_t size() const { return blocks_.size(); }
  std::size_t live() const { return live_; }

  struct Entry {
    void* pointer;
    std::size_t bytes;
    std::uint64_t stream;
  };
  Entry remove(std::size_t random) {
    auto entry =
        blocks_.lower_bound(blocks_.begin()->first + random % (blocks_.rbegin()->first - blocks_.begin()->first + 1));
    const Entry removed{reinterpret_cast<void*>(entry->first), entry->second.bytes, entry->second.stream};
    live_ -= removed.bytes;
    blocks_.erase(entry);
    return removed;
  }

 private:
  struct Value {
    std::size_t bytes;
    std::uint64_t stream;
  };
  std::map<std::uintptr_t, Value> blocks_;
  std::size_t live_ = 0;
};

// Bytes of pages that hold at least one live byte.
std::size_t pinned_pages(CachingAllocator& pool) {
  const std::size_t granularity = pool.memory().granularity();
  std::set<std::uintptr_t> pages;
  for (const BlockSnapshot& block : pool.snapshot()) {
    if (block.state != BlockState::live) continue;
    for (auto at = block.address / granularity; at <= (block.address + block.size - 1) / granularity; ++at)
      pages.insert(at);
  }
  return pages.size() * granularity;
}

void run(const std::string& kind, const Shape& shape, std::uint64_t seed, int operations) {
  SCOPED_TRACE(kind + " " + shape.name + " seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto delayed = std::make_unique<DelayedMemory>(make_memory(kind, 512 * page, shape.granularity));
  DelayedMemory* device = delayed.get();
  CachingAllocator pool(std::move(delayed), {.budget = shape.budget});
  Shadow shadow;
  for (int step = 0; step < operations; ++step) {
    const auto choice = random() % 100;
    if (choice == 0) pool.trim(random() % (8 * page));
    if (choice == 1) device->finish_events();
    if (choice < 55 && shadow.size() < shape.live_blocks) {
      const std::size_t bytes = random() % (std::size_t{1} << random() % shape.largest_octave);
      const std::uint64_t stream = random() % shape.streams;
      const Category category = random() % 8 == 0 ? Category::parameter : Category::activation;
      const auto result =
          pool.try_allocate({.bytes = bytes, .alignment = 64, .stream = stream_of(pool, stream), .tag = {category, 0}});
      if (void* const* pointer = std::get_if<void*>(&result)) {
        shadow.add(*pointer, bytes, stream, shape.budget);
      } else {
        // Check a refusal: even after the release of every page without live bytes, the request does not fit.
        const std::size_t fresh = (bytes + shape.granularity - 1) / shape.granularity * shape.granularity;
        ASSERT_GT(pinned_pages(pool) + fresh, shape.budget) << std::get<std::string>(result);
      }
    } else if (!shadow.empty()) {
      const Shadow::Entry block = shadow.remove(random());
      const std::uint64_t stream = random() % 4 == 0 ? random() % shape.streams : block.stream;
      pool.deallocate(block.pointer, block.bytes, 64, stream_of(pool, stream));
    }
    ASSERT_EQ(pool.statistics().requested_bytes.current, shadow.live());
    expect_invariants(pool);
    if (::testing::Test::HasFatalFailure()) {
      FAIL() << "at step " << step;
    }
  }
  while (!shadow.empty()) {
    const Shadow::Entry block = shadow.remove(random());
    pool.deallocate(block.pointer, block.bytes, 64, stream_of(pool, block.stream));
  }
  device->finish_events();
  pool.trim();
  expect_invariants(pool);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, 0u);
  EXPECT_LE(pool.statistics().reserved_bytes.peak, shape.budget);
}

class PropertyTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, PropertyTest, devices, device_name);

TEST_P(PropertyTest, HoldsForManySmallBlocks) { run(GetParam(), {"small", 64 * page, 200, 14, 1}, 101, 25000); }

TEST_P(PropertyTest, HoldsForMixedSizesUnderPressure) { run(GetParam(), {"mixed", 16 * page, 60, 25, 1}, 102, 25000); }

TEST_P(PropertyTest, HoldsForSeveralStreams) { run(GetParam(), {"streams", 16 * page, 60, 23, 3}, 103, 25000); }

TEST_P(PropertyTest, HoldsForATinyBudget) { run(GetParam(), {"tiny", 2 * page, 20, 22, 2}, 104, 25000); }

TEST_P(PropertyTest, HoldsForSmallPages) {
  run(GetParam(), {"small pages", 4 * page, 100, 20, 2, 64 * KiB}, 105, 25000);
}

TEST_P(PropertyTest, PlacesBlocksAlikeOnEveryDevice) {
  // The same operations give the same layout: addresses differ only by the base of their window.
  const auto layout = [](const std::string& kind) {
    CachingAllocator pool(make_memory(kind, 256 * page), {.budget = 32 * page});
    std::mt19937_64 random(7);
    std::vector<std::pair<void*, std::size_t>> live;
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (int step = 0; step < 20000; ++step) {
      if (live.size() < 50 && random() % 2 == 0) {
        const std::size_t bytes = random() % (std::size_t{1} << random() % 24);
        live.emplace_back(allocate(pool, bytes), bytes);
        const std::uintptr_t base = pool.snapshot().front().address;
        hash = (hash ^ (reinterpret_cast<std::uintptr_t>(live.back().first) - base)) * 0x100000001b3u;
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        deallocate(pool, live.back().first, live.back().second);
        live.pop_back();
      }
    }
    return std::pair(hash, pool.sequence_hash());
  };
  const auto expected = layout("host");
  EXPECT_EQ(layout("sim"), expected);
  EXPECT_EQ(layout(GetParam()), expected);
}

}  // namespace
}  // namespace poolgrad::testing
