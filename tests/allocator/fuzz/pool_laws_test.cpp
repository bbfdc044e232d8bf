// Laws for every size and order: sizes are monotonic, waste is bounded, an emptied pool is empty again, and one program
// gives the same addresses everywhere.
#include <algorithm>
#include <numeric>

#include "tests/allocator/fuzz/episode.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad::testing {
namespace {

class PoolLaws : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, PoolLaws, devices, device_name);

std::vector<std::size_t> sizes_up_to(std::size_t largest) {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 0; bytes < 5000; ++bytes) sizes.push_back(bytes);
  for (std::size_t power = 4096; power <= largest; power *= 2) {
    for (std::size_t sixteenth = 16; sixteenth < 32; ++sixteenth) {
      for (const std::size_t around : {power / 16 * sixteenth - 1, power / 16 * sixteenth, power / 16 * sixteenth + 1})
        sizes.push_back(around);
    }
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

TEST_P(PoolLaws, UsableSizeGrowsWithTheRequestAndWastesLittle) {
  CachingAllocator pool(memory());
  std::size_t previous = 0;
  for (const std::size_t bytes : sizes_up_to(8 * page)) {
    void* block = allocate(pool, bytes);
    const std::size_t usable = pool.usable_size(block);
    ASSERT_GE(usable, std::max<std::size_t>(bytes, 1));
    ASSERT_GE(usable, previous) << bytes;
    ASSERT_LE(usable - bytes, bytes == 0 ? 512u : 511u) << bytes;
    previous = usable;
    deallocate(pool, block, bytes);
  }
}

TEST_P(PoolLaws, UsableSizeDoesNotDependOnTheCache) {
  // Blocks of all sizes are cached. A request never gets a much larger one whole.
  CachingAllocator pool(memory());
  std::vector<std::pair<void*, std::size_t>> cached;
  for (const std::size_t bytes : sizes_up_to(256 * KiB)) cached.emplace_back(allocate(pool, bytes), bytes);
  for (const auto& [block, bytes] : cached) deallocate(pool, block, bytes);
  for (const std::size_t bytes : sizes_up_to(256 * KiB)) {
    void* block = allocate(pool, bytes);
    ASSERT_LE(pool.usable_size(block) - bytes, 512u) << bytes;
    deallocate(pool, block, bytes);
  }
}

TEST_P(PoolLaws, TheFirstAddressIsReusedAfterAllFrees) {
  for (std::uint64_t order = 0; order < 12; ++order) {
    CachingAllocator pool(memory());
    Random random(test_seed() + order);
    std::vector<std::pair<void*, std::size_t>> blocks;
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = random.any_size(20);
      blocks.emplace_back(allocate(pool, bytes), bytes);
    }
    const auto lowest = std::min_element(blocks.begin(), blocks.end())->first;
    const auto highest = std::max_element(blocks.begin(), blocks.end())->first;
    if (order % 3 == 1) std::reverse(blocks.begin(), blocks.end());
    if (order % 3 == 2) {
      for (std::size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
    }
    for (const auto& [block, bytes] : blocks) deallocate(pool, block, bytes);
    // The cache is one range again: a block of its full size starts at the first address and commits no page.
    const Statistics before = pool.statistics();
    void* whole = allocate(pool, before.reserved_bytes.current);
    EXPECT_LE(whole, lowest);
    EXPECT_GE(static_cast<char*>(whole) + before.reserved_bytes.current, highest);
    EXPECT_EQ(pool.statistics().num_device_alloc, before.num_device_alloc);
    deallocate(pool, whole, before.reserved_bytes.current);
    EXPECT_EQ(allocate(pool, before.reserved_bytes.current), whole);
    deallocate(pool, whole, before.reserved_bytes.current);
    expect_invariants(pool);
  }
}

TEST_P(PoolLaws, TheSameSizeGetsTheSameAddressAgain) {
  CachingAllocator pool(memory(), {.magazines = false});
  for (const std::size_t bytes : sizes_up_to(4 * page)) {
    void* first = allocate(pool, bytes);
    deallocate(pool, first, bytes);
    void* second = allocate(pool, bytes);
    ASSERT_EQ(second, first) << bytes;
    deallocate(pool, second, bytes);
  }
}

TEST_P(PoolLaws, ExpandingRoundsLikeAllocating) {
  CachingAllocator pool(memory());
  for (const std::size_t bytes : sizes_up_to(page)) {
    void* fresh = allocate(pool, bytes);
    const std::size_t usable = pool.usable_size(fresh);
    deallocate(pool, fresh, bytes);
    void* grown = allocate(pool, bytes / 2);
    if (pool.expand_in_place(grown, bytes / 2, bytes, stream_of(pool))) {
      ASSERT_GE(pool.usable_size(grown), bytes);
      ASSERT_LE(pool.usable_size(grown), std::max(usable, bytes + 511)) << bytes;
      ASSERT_TRUE(pool.expand_in_place(grown, bytes, bytes / 3, stream_of(pool)));
      ASSERT_LE(pool.usable_size(grown) - bytes / 3, 512u);
      deallocate(pool, grown, bytes / 3);
    } else {
      deallocate(pool, grown, bytes / 2);
    }
  }
  expect_invariants(pool);
}

// A script's addresses relative to their windows, and the hash of its sequence.
struct Layout {
  std::vector<std::uintptr_t> places;
  std::uint64_t hash = 0;
  friend bool operator==(const Layout&, const Layout&) = default;
};

Layout layout_of(std::unique_ptr<DeviceMemory> memory, const Script& script, AllocatorConfig config) {
  using Kind = Operation::Kind;
  auto watching = std::make_unique<WatchingMemory>(std::move(memory));
  WatchingMemory* watch = watching.get();
  CachingAllocator pool(std::move(watching), config);
  std::map<std::uint32_t, std::pair<void*, Operation>> live;
  Layout layout;
  const auto place = [&](const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::uintptr_t number = 0;
    for (const auto& [start, end] : watch->windows()) {
      if (start <= address && address < end) return number << 48 | (address - start);
      ++number;
    }
    return std::uintptr_t{0};
  };
  const auto stream = [&](std::uint32_t id) {
    watch->clocks().line_of(id);
    return stream_of(pool, id);
  };
  for (const Operation& operation : script) {
    const auto entry = live.find(operation.slot);
    if (operation.kind == Kind::allocate && entry == live.end()) {
      const auto result = pool.try_allocate({.bytes = operation.bytes,
                                             .alignment = operation.alignment,
                                             .stream = stream(operation.stream),
                                             .tag = {operation.category, 0}});
      void* const* pointer = std::get_if<void*>(&result);
      layout.places.push_back(pointer == nullptr ? 0 : place(*pointer));
      if (pointer != nullptr) live[operation.slot] = {*pointer, operation};
    } else if (operation.kind == Kind::free && entry != live.end()) {
      const Operation& made = entry->second.second;
      const std::uint32_t id = operation.stream == Operation::own_stream ? made.stream : operation.stream;
      pool.deallocate(entry->second.first, made.bytes, made.alignment, stream(id));
      live.erase(entry);
    } else if (operation.kind == Kind::use && entry != live.end()) {
      pool.use(entry->second.first, stream(operation.stream));
    } else if (operation.kind == Kind::order && operation.stream != operation.slot) {
      pool.order(stream(operation.stream), stream(operation.slot));
    } else if (operation.kind == Kind::trim) {
      pool.trim(operation.bytes);
    }
  }
  layout.hash = pool.sequence_hash();
  return layout;
}

Script several_streams(std::size_t operations) {
  Random random(7);
  PoolSetup setup;
  return random_script(random, setup, {.slots = 40, .octaves = 23, .streams = 3}, operations);
}

// Windows are numbered by address, and the machine chooses addresses: the order of two arenas' windows may differ.
std::unique_ptr<DeviceMemory> in_handles(std::unique_ptr<DeviceMemory> memory) {
  return std::make_unique<HandleMemory>(std::move(memory));
}

TEST(Determinism, TheSameProgramGivesTheSameAddressesAHundredTimes) {
  const Script script = several_streams(1000);
  const AllocatorConfig config{.budget = 24 * page, .deterministic = true};
  const Layout expected = layout_of(make_memory("sim", 256 * page), script, config);
  EXPECT_GT(std::count_if(expected.places.begin(), expected.places.end(), [](auto place) { return place != 0; }), 200);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(layout_of(make_memory("sim", 256 * page), script, config), expected);
}

TEST(Determinism, TheSameProgramGivesTheSameAddressesOnEveryDevice) {
  const Script script = several_streams(3000);
  const AllocatorConfig config{.budget = 24 * page, .deterministic = true};
  const auto sorted_by_window = [](Layout layout) {
    for (std::uintptr_t& place : layout.places) place &= (std::uintptr_t{1} << 48) - 1;
    return layout;
  };
  const Layout sim = sorted_by_window(layout_of(in_handles(make_memory("sim", 256 * page)), script, config));
  const Layout host = sorted_by_window(layout_of(in_handles(make_memory("host", 256 * page)), script, config));
  EXPECT_EQ(host, sim);
}

TEST(Determinism, LateEventsChangeNothingWhenDeterministic) {
  // The same program with events that finish at once and with events that never finish.
  const Script script = several_streams(3000);
  const AllocatorConfig config{.budget = 24 * page, .deterministic = true};
  const Layout prompt = layout_of(make_memory("sim", 256 * page), script, config);
  const Layout late = layout_of(std::make_unique<DelayedMemory>(make_memory("sim", 256 * page)), script, config);
  EXPECT_EQ(late, prompt);
}

TEST(Determinism, TracingChangesNothing) {
  const Script script = several_streams(3000);
  const Layout plain = layout_of(make_memory("sim", 256 * page), script, {.budget = 24 * page, .deterministic = true});
  const Layout traced =
      layout_of(make_memory("sim", 256 * page), script, {.budget = 24 * page, .deterministic = true, .trace = 1000});
  EXPECT_EQ(traced, plain);
}

}  // namespace
}  // namespace poolgrad::testing
