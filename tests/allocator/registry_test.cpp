
#include "allocator/memory/simulated_memory.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Freed after main() has returned, when other static objects may be destroyed: the pools must still exist.
struct FreedAtExit {
  void* block = allocator_for(cpu).allocate(1000, 64, Stream{});
  ~FreedAtExit() { allocator_for(cpu).deallocate(block, 1000, 64, Stream{}); }
};
const FreedAtExit freed_at_exit;

TEST(Registry, HasOnePoolPerDevice) {
  EXPECT_EQ(&allocator_for(cpu), &allocator_for(cpu));
  EXPECT_EQ(allocator_for(cpu).device(), cpu);
  const Device sim = Device::parse("sim:7");
  EXPECT_EQ(allocator_for(sim).device(), sim);
  EXPECT_NE(&allocator_for(sim), &allocator_for(Device::parse("sim:8")));
}

TEST(Registry, GivesSimulatedDevicesEightGibibytes) {
  EXPECT_EQ(allocator_for(Device::parse("sim:9")).budget(), std::size_t{8} << 30);
}

TEST(Registry, SaysWhyACudaDeviceCannotBeUsed) {  // no machine has this one
  EXPECT_THAT([] { allocator_for(Device::parse("cuda:255")); },
              ThrowsMessage<DeviceError>(HasSubstr("[allocator] cuda:255 cannot be used: ")));
}

TEST(Registry, RefusesASecondCpu) { EXPECT_THROW(allocator_for(Device{DeviceType::cpu, 1}), DeviceError); }

TEST(Registry, ReconfiguresASimulatedDevice) {
  const Device sim = Device::parse("sim:11");
  configure_simulated_device(11, 4 * page);
  CachingAllocator& pool = allocator_for(sim);
  void* block = allocate(pool, 3 * page);
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  EXPECT_THAT([] { configure_simulated_device(11, 8 * page); },
              ThrowsMessage<ValueError>(HasSubstr("sim:11 has live memory")));
  deallocate(pool, block, 3 * page);
  configure_simulated_device(11, 8 * page);
  EXPECT_EQ(pool.budget(), 8 * page);
  EXPECT_EQ(pool.statistics().requests, 0u);
  EXPECT_EQ(pool.statistics().reserved_bytes.peak, 0u);
  void* larger = allocate(pool, 8 * page);
  deallocate(pool, larger, 8 * page);
  configure_simulated_device(11, 2 * page);
  EXPECT_THROW(allocate(pool, 3 * page), OutOfMemoryError);
}

TEST(Registry, ASimulatedDeviceMayBeLikeTheCpu) {
  configure_simulated_device(13, 40 * page, "cpu");
  DeviceMemory &like = allocator_for(Device::parse("sim:13")).memory(), &host = allocator_for(cpu).memory();
  EXPECT_EQ(like.granularity(), host.granularity());
  EXPECT_EQ(like.large_page(), host.large_page());
  EXPECT_EQ(like.divisible(), host.divisible());
  EXPECT_EQ(like.info().total, 40 * page);
  configure_simulated_device(13, 50 * page, "cpu");
  EXPECT_EQ(like.info().total, 50 * page);
  EXPECT_THAT([] { configure_simulated_device(13, 60 * page); },
              ThrowsMessage<ValueError>("[configure_simulated_device] sim:13 has pages of 64.00 KiB, "
                                        "and cannot change them to pages of 2.00 MiB"));
  EXPECT_THAT([] { configure_simulated_device(14, 60 * page, "tpu"); },
              ThrowsMessage<ValueError>("[simulation] unknown device to simulate: tpu; known: cpu"));
  EXPECT_EQ(like.info().total, 50 * page);
}

TEST(Registry, RefusesAnImpossibleSimulatedDevice) {
  EXPECT_THROW(configure_simulated_device(-1, page), ValueError);
  EXPECT_THROW(configure_simulated_device(256, page), ValueError);
}

TEST(Clock, AdvancesOnlyOnRequest) {
  const Device sim = Device::parse("sim:12");
  const std::uint64_t start = device_clock(sim);
  advance_clock(sim, 1234);
  EXPECT_EQ(device_clock(sim), start + 1234);
  EXPECT_THAT([] { advance_clock(cpu, 1); },
              ThrowsMessage<DeviceError>(HasSubstr("[advance_clock] only simulated devices")));
  EXPECT_THROW(device_clock(Device::parse("cuda")), DeviceError);
}

TEST(SequenceHash, DependsOnRequestsAndNotOnTheDevice) {
  const auto run = [](const std::string& kind, std::size_t bytes, Category category, bool swapped) {
    CachingAllocator pool(make_memory(kind, 64 * MiB));
    void* first = allocate(pool, bytes, category);
    void* second = allocate(pool, bytes, category);
    deallocate(pool, swapped ? second : first, bytes);
    deallocate(pool, swapped ? first : second, bytes);
    return pool.sequence_hash();
  };
  const std::uint64_t expected = run("host", 1000, Category::activation, false);
  EXPECT_EQ(run("sim", 1000, Category::activation, false), expected);
  EXPECT_NE(run("host", 1001, Category::activation, false), expected);
  EXPECT_NE(run("host", 1000, Category::gradient, false), expected);
  EXPECT_NE(run("host", 1000, Category::activation, true), expected);
}

TEST(SequenceHash, OmitsWorkspaces) {
  const auto run = [](std::size_t scratch) {
    CachingAllocator pool(make_memory("host", 64 * MiB));
    void* tensor = allocate(pool, 1000);
    for (std::size_t i = 0; i < scratch; ++i) {
      void* workspace = allocate(pool, 500 + i, Category::workspace);
      deallocate(pool, workspace, 500 + i);
    }
    void* other = allocate(pool, 2000);
    deallocate(pool, tensor, 1000);
    deallocate(pool, other, 2000);
    return pool.sequence_hash();
  };
  EXPECT_EQ(run(0), run(3));
}

TEST(SequenceHash, StartsOverWhenReset) {
  CachingAllocator pool(make_memory("host", 64 * MiB));
  const std::uint64_t start = pool.sequence_hash();
  deallocate(pool, allocate(pool, 10), 10);
  const std::uint64_t once = pool.sequence_hash();
  EXPECT_NE(once, start);
  pool.reset_sequence_hash();
  EXPECT_EQ(pool.sequence_hash(), start);
  deallocate(pool, allocate(pool, 10), 10);
  EXPECT_EQ(pool.sequence_hash(), once);
}

}  // namespace
}  // namespace poolgrad::testing
