// Every device memory that needs no GPU keeps the contract, directly and through every adaptor.
#include "allocator/memory/device_memory.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/race_detector.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/memory/traced_memory.h"
#include "tests/allocator/memory/device_memory_contract.h"
#include "tests/allocator/memory/pages.h"
#include "tests/allocator/memory/test_memories.h"

namespace poolgrad::testing {
namespace {

constexpr std::size_t small_page = std::size_t{64} << 10;

std::unique_ptr<DeviceMemory> host(std::size_t total = capacity) {
  return std::make_unique<HostMemory>(total, small_page);
}
std::unique_ptr<DeviceMemory> simulated(SimulationOptions options = {}) {
  return std::make_unique<SimulatedMemory>(0, capacity, options);
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceMemoryContract,
    ::testing::Values(
        MemoryKind{"host", [] { return host(); }, read_host},
        MemoryKind{"host_large_pages", [] { return std::make_unique<HostMemory>(capacity, page); }, read_host},
        MemoryKind{"sim", [] { return simulated(); }, nullptr},
        MemoryKind{"sim_divisible", [] { return simulated({.divisible = true}); }, nullptr},
        MemoryKind{"sim_with_latency", [] { return simulated({.latency = LatencyTable::named("h200")}); }, nullptr},
        MemoryKind{"sim_backed", [] { return simulated({.backed = true}); }, read_host},
        MemoryKind{"failing_sim", [] { return std::make_unique<FailingMemory>(simulated()); }, nullptr},
        MemoryKind{"delayed_host", [] { return std::make_unique<DelayedMemory>(host()); }, read_host},
        MemoryKind{"limited_host", [] { return std::make_unique<LimitedMemory>(host(4 * capacity), capacity); },
                   read_host},
        MemoryKind{"traced_sim_backed", [] { return std::make_unique<TracedMemory>(simulated({.backed = true})); },
                   read_host},
        MemoryKind{"race_detector_over_host", [] { return std::make_unique<RaceDetector>(host()); }, read_host}),
    memory_kind_name);

TEST(HostMemory, GivesZeroedMemoryAtEachCommit) {
  HostMemory memory;
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  ASSERT_TRUE(memory.commit(range + page, page));
  std::memset(range + page, 7, page);
  memory.decommit(range + page, page);
  ASSERT_TRUE(memory.commit(range, 3 * page));
  for (std::size_t i = 0; i < 3 * page; i += 4096) ASSERT_EQ(range[i], 0);
  memory.fill(range, 100, 0xAB, Stream{});
  EXPECT_EQ(static_cast<unsigned char>(range[99]), 0xAB);
  EXPECT_EQ(range[100], 0);
  memory.decommit(range, 3 * page);
  memory.unreserve(range, 4 * page);
}

TEST(HostMemory, KeepsTheOldAddressesOfMovedMemory) {
  HostMemory memory;
  auto* range = static_cast<char*>(memory.reserve(4 * page));
  ASSERT_TRUE(memory.commit(range, page));
  std::memset(range, 7, page);
  ASSERT_TRUE(memory.move(range, range + 2 * page, page));
  ASSERT_TRUE(memory.commit(range, page));
  for (std::size_t i = 0; i < page; i += 4096) ASSERT_EQ(range[i], 0);
  memory.decommit(range, page);
  memory.decommit(range + 2 * page, page);
  memory.unreserve(range, 4 * page);
}

// Moved pages have mappings of their own. A range of such pages still moves in one call.
TEST(HostMemory, MovesARangeMadeOfManyMoves) {
  HostMemory memory(0, small_page);
  constexpr std::size_t pieces = 64;
  auto* range = static_cast<unsigned char*>(memory.reserve(4 * pieces * small_page));
  for (std::size_t i = 0; i < pieces; ++i) {  // in reverse order, each from elsewhere
    unsigned char* from = range + (3 * pieces - 1 - i) * small_page;
    ASSERT_TRUE(memory.commit(from, small_page));
    std::fill_n(from, small_page, static_cast<unsigned char>(i));
    ASSERT_TRUE(memory.move(from, range + i * small_page, small_page));
  }
  ASSERT_TRUE(memory.move(range, range + 2 * pieces * small_page, pieces * small_page));
  for (std::size_t i = 0; i < pieces; ++i) ASSERT_EQ(range[(2 * pieces + i) * small_page + 5], i);
  memory.decommit(range + 2 * pieces * small_page, pieces * small_page);
  memory.unreserve(range, 4 * pieces * small_page);
}

TEST(HostMemory, IsUnchangedByAnImpossibleMove) {
  HostMemory memory(0, small_page);
  auto* range = static_cast<unsigned char*>(memory.reserve(4 * small_page));
  ASSERT_TRUE(memory.commit(range, small_page));
  range[0] = 42;
  // The kernel does not move a range onto itself.
  EXPECT_FALSE(memory.move(range, range, small_page));
  EXPECT_EQ(range[0], 42);
  memory.decommit(range, small_page);
  memory.unreserve(range, 4 * small_page);
}

TEST(HostMemoryDeathTest, FaultsOnReservedMemoryThatIsNotCommitted) {
  HostMemory memory;
  auto* range = static_cast<volatile char*>(memory.reserve(4 * page));
  const auto at = [&](std::size_t index) { return const_cast<char*>(range) + index * page; };
  EXPECT_DEATH(range[0] = 1, "");
  ASSERT_TRUE(memory.commit(at(0), page));
  ASSERT_TRUE(memory.move(at(0), at(1), page));
  EXPECT_DEATH(range[0] = 1, "");
  ASSERT_TRUE(memory.commit(at(2), 2 * page));
  memory.decommit(at(2), page);  // between two others
  EXPECT_DEATH(range[2 * page] = 1, "");
  range[page] = 1;
  range[3 * page] = 1;
  memory.decommit(at(3), page);
  EXPECT_DEATH(range[3 * page] = 1, "");
  memory.decommit(at(1), page);
  memory.unreserve(at(0), 4 * page);
}

// The kernel limits a process to 65,530 mappings, and threads, libraries and other allocators need some of them.
std::ptrdiff_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

TEST(HostMemory, LimitsItsMappingsUnderManyMoves) {
  HostMemory memory(0, small_page);
  constexpr std::size_t pieces = 30'000;
  auto* range = static_cast<char*>(memory.reserve(3 * pieces * small_page));
  char* const target = range + 2 * pieces * small_page;
  ASSERT_TRUE(memory.commit(range, 2 * pieces * small_page));
  const auto before = mappings();
  range[0] = 7;
  std::size_t moved = 0;
  const auto from = [&] { return range + 2 * moved * small_page; };
  while (moved < pieces && memory.move(from(), target + moved * small_page, small_page)) ++moved;
  EXPECT_GT(moved, 10'000u);
  EXPECT_LT(moved, pieces) << "the rest stays where it is";
  EXPECT_LT(mappings(), before + 40'000);
  EXPECT_EQ(target[0], 7);
  *from() = 1;
  memory.unreserve(range, 3 * pieces * small_page);
}

TEST(HostMemory, LimitsItsMappingsUnderScatteredReleases) {
  HostMemory memory(0, small_page);
  constexpr std::size_t pages = 80'000;
  auto* range = static_cast<char*>(memory.reserve(pages * small_page));
  ASSERT_TRUE(memory.commit(range, pages * small_page));
  const std::size_t free = memory.info().free;
  const auto before = mappings();
  range[0] = 7;
  for (std::size_t i = 0; i < pages; i += 2) memory.decommit(range + i * small_page, small_page);
  EXPECT_LT(mappings(), before + 10'000);
  EXPECT_EQ(memory.info().free, free + pages / 2 * small_page);
  ASSERT_TRUE(memory.commit(range, small_page));
  EXPECT_EQ(range[0], 0);
  for (std::size_t i = 2; i < pages; i += 2) ASSERT_TRUE(memory.commit(range + i * small_page, small_page));
  EXPECT_LT(mappings(), before + 10) << "what is whole again is one mapping";
  memory.decommit(range, pages * small_page);
  memory.unreserve(range, pages * small_page);
}

// Returns the text of a system file, or "" if there is no such file.
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(HostMemory, HasThePhysicalMemoryOfTheMachine) {
  std::istringstream lines(text_of("/proc/meminfo"));
  std::string name;
  std::size_t kibibytes = 0;
  ASSERT_TRUE(lines >> name >> kibibytes);
  ASSERT_EQ(name, "MemTotal:");
  const std::size_t groups = memory_limit_of_groups(text_of("/proc/self/cgroup"));
  EXPECT_EQ(HostMemory().info().total, std::min(kibibytes * 1024, groups));
}

TEST(HostMemory, HasNoMoreThanItsControlGroupsAllow) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "poolgrad_groups";
  std::filesystem::remove_all(root);
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  const std::string mounted = root.string();
  EXPECT_EQ(memory_limit_of_groups("0::/job/7\n", mounted), SIZE_MAX);
  // Version 2: the smallest limit of a group and its parents.
  write("job/7/memory.max", "max\n");
  EXPECT_EQ(memory_limit_of_groups("0::/job/7\n", mounted), SIZE_MAX);
  write("job/memory.max", "1048576\n");
  EXPECT_EQ(memory_limit_of_groups("0::/job/7\n", mounted), 1048576u);
  write("job/7/memory.max", "65536\n");
  EXPECT_EQ(memory_limit_of_groups("0::/job/7\n", mounted), 65536u);
  EXPECT_EQ(memory_limit_of_groups("0::/job\n", mounted), 1048576u);
  // The machine's path outside a container does not exist inside.
  write("memory.max", "4096\n");
  EXPECT_EQ(memory_limit_of_groups("0::/elsewhere/9\n", mounted), 4096u);
  // Version 1, which reports a huge number for no limit, and both versions side by side.
  write("memory/job/memory.limit_in_bytes", "2048\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limit_of_groups("3:cpu,memory:/job\n1:pids:/\n", mounted), 2048u);
  EXPECT_EQ(memory_limit_of_groups("3:memory:/\n", mounted), 9223372036854771712u);
  EXPECT_EQ(memory_limit_of_groups("3:memory:/job\n0::/\n", mounted), 2048u);
  EXPECT_EQ(memory_limit_of_groups("nonsense\n3:pids:/job\n", mounted), SIZE_MAX);
  // The requested memory, or the available memory where that is less.
  write("of_process", "0::/job/7\n");
  const ControlGroups groups{(root / "of_process").string(), mounted};
  EXPECT_EQ(HostMemory(0, 4096, groups).info().total, 4096u);
  write("memory.max", "max\n");
  EXPECT_EQ(HostMemory(0, 4096, groups).info().total, 65536u);
  HostMemory memory(0, 4096, groups);
  void* range = memory.reserve(std::size_t{1} << 20);
  EXPECT_TRUE(memory.commit(range, 65536));
  EXPECT_FALSE(memory.commit(static_cast<char*>(range) + 65536, 4096)) << "all that the group leaves is in use";
  memory.decommit(range, 65536);
  memory.unreserve(range, std::size_t{1} << 20);
  EXPECT_EQ(HostMemory(131072, 4096, groups).info().total, 131072u) << "whoever says how much knows";
  write("job/memory.max", "max\n");
  write("job/7/memory.max", std::to_string(std::size_t{1} << 62) + "\n");
  EXPECT_EQ(HostMemory(0, 4096, groups).info().total, HostMemory(0, 4096, {"", mounted}).info().total)
      << "there is less than the group may have";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace poolgrad::testing
