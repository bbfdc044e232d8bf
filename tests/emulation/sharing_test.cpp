// Memory of one device that another device of the machine, or another process, uses too.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/race_detector.h"
#include "tests/emulation/device.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

constexpr std::size_t page_size = emulation::Device::page;
constexpr std::size_t machine_memory = 64 * page_size;

/// Two devices that have one scheduler.
struct SharingDevices {
  std::shared_ptr<emulation::Schedule> schedule = std::make_shared<emulation::Schedule>(test_seed());
  emulation::Device first{0, machine_memory, schedule}, second{1, machine_memory, schedule};
};

Device on(int index) { return {DeviceType::cuda, static_cast<std::uint8_t>(index)}; }

void write_and_wait(emulation::Device& device, char* address, char value) {
  device.enqueue("write", 0, [=] { *address = value; });
  device.synchronize(0);
}
char read_and_wait(emulation::Device& device, const char* address) {
  char value = 0;
  device.enqueue("read", 0, [&] { value = *address; });
  device.synchronize(0);
  return value;
}

TEST(PeerMemory, IsOpenToThePeerForPresentAndLaterPages) {
  SharingDevices machine;
  CudaMemory memory(1, machine.second.driver());
  auto* const range = static_cast<char*>(memory.reserve(8 * page_size));
  ASSERT_TRUE(memory.commit(range, page_size));
  EXPECT_FALSE(machine.second.is_open_to(0, range));
  EXPECT_TRUE(memory.share_with(on(0)));
  EXPECT_TRUE(memory.share_with(on(0))) << "again";
  ASSERT_TRUE(memory.commit(range + page_size, 2 * page_size));
  ASSERT_TRUE(memory.move(range, range + 4 * page_size, page_size));
  for (char* address : {range + page_size, range + 4 * page_size}) {
    EXPECT_TRUE(machine.second.is_open_to(0, address));
    write_and_wait(machine.first, address, 42);
    EXPECT_EQ(read_and_wait(machine.second, address), 42);
  }
  EXPECT_FALSE(machine.second.is_open_to(0, range)) << "nothing is there any more";
  EXPECT_FALSE(memory.share_with(on(2))) << "there is no such device";
  EXPECT_FALSE(memory.share_with(cpu));
  memory.decommit(range + page_size, 2 * page_size);
  memory.decommit(range + 4 * page_size, page_size);
  memory.unreserve(range, 8 * page_size);
}

TEST(PeerMemory, EndsTheProgramWhenItWasNotShared) {
  SharingDevices machine;
  CudaMemory memory(1, machine.second.driver());
  auto* const range = static_cast<char*>(memory.reserve(page_size));
  ASSERT_TRUE(memory.commit(range, page_size));
  EXPECT_DEATH(write_and_wait(machine.first, range, 1), "\\[write\\] thread 0 of block 0 uses address 0x.* of cuda:1");
  memory.decommit(range, page_size);
  memory.unreserve(range, page_size);
}

/// Closes exported handles, as a sender does after it has sent them.
void close_all(const ExportedMemory& exported) {
  for (const ExportedMemory::Handle& handle : exported.handles) ::close(handle.descriptor);
}

// The two devices represent one GPU in two processes.
TEST(ExportedMemory, HasTheSameBytesInAnotherProcess) {
  emulation::Device here(0, machine_memory, test_seed()), there(0, machine_memory, test_seed() + 1);
  CachingAllocator pool(std::make_unique<RaceDetector>(std::make_unique<CudaMemory>(0, here.driver())));
  const std::size_t bytes = 10 * page_size;
  auto* const block = static_cast<char*>(pool.allocate(bytes, 64, {on(0), 0}));
  auto* const small = static_cast<char*>(pool.allocate(100, 64, {on(0), 0}));
  for (const auto& [address, size] : {std::pair(block, bytes), {small, std::size_t{100}}}) {
    const auto exported = pool.memory().export_range(address, size);
    ASSERT_TRUE(exported);
    auto imported = std::make_unique<ImportedMemory>(0, *exported, there.driver());
    close_all(*exported);
    auto* const seen = static_cast<char*>(imported->data());
    EXPECT_EQ(imported->bytes(), size);
    for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
      write_and_wait(here, address + at, static_cast<char>(at % 100 + 1));
      EXPECT_EQ(read_and_wait(there, seen + at), static_cast<char>(at % 100 + 1));
      write_and_wait(there, seen + at, 7);
      EXPECT_EQ(read_and_wait(here, address + at), 7);
    }
  }
  pool.deallocate(small, 100, 64, {on(0), 0});
  pool.deallocate(block, bytes, 64, {on(0), 0});
}

TEST(ExportedMemory, OutlivesItsSource) {
  emulation::Device here(0, machine_memory, test_seed()), there(0, machine_memory, test_seed() + 1);
  CudaMemory memory(0, here.driver());
  auto* const range = static_cast<char*>(memory.reserve(4 * page_size));
  ASSERT_TRUE(memory.commit(range, page_size));
  ASSERT_TRUE(memory.commit(range + page_size, 2 * page_size));
  write_and_wait(here, range + page_size, 11);
  const auto exported = memory.export_range(range + page_size / 2, page_size);  // of both handles
  ASSERT_TRUE(exported);
  EXPECT_EQ(exported->handles.size(), 2u);
  memory.decommit(range, 3 * page_size);
  {
    const ImportedMemory imported(0, *exported, there.driver());
    EXPECT_EQ(read_and_wait(there, static_cast<const char*>(imported.data()) + page_size / 2), 11);
    EXPECT_EQ(there.driver()->memory_info().free, machine_memory) << "it is the other's";
  }
  close_all(*exported);
  memory.unreserve(range, 4 * page_size);
}

std::string error_of_export(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ExportedMemory, RefusesBadHandlesWithoutALeak) {
  emulation::Device device(0, machine_memory, test_seed());
  CudaMemory memory(0, device.driver());
  auto* const range = static_cast<char*>(memory.reserve(2 * page_size));
  ASSERT_TRUE(memory.commit(range, page_size));
  EXPECT_NE(error_of_export([&] {
              memory.export_range(range, 2 * page_size);
            }).find("[export_range] part of the range is not mapped"),
            std::string::npos);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto import = [&](const ExportedMemory& exported) {
    return error_of_export([&] { ImportedMemory(0, exported, device.driver()); });
  };
  EXPECT_EQ(import({.handles = {{ends[0], page_size}}, .offset = 0, .bytes = 10}),
            "[cuMemImportFromShareableHandle] the descriptor holds no device memory of this size");
  EXPECT_EQ(import({.handles = {{ends[0], page_size}}, .offset = page_size, .bytes = 10}),
            "[import] the range is larger than its handles: 10 bytes in 1 handles, on cuda:0");
  ::close(ends[0]);
  ::close(ends[1]);
  const auto exported = memory.export_range(range + 5, 10);
  ASSERT_TRUE(exported);
  EXPECT_EQ(import(*exported), "no error");
  close_all(*exported);
  memory.decommit(range, page_size);
  memory.unreserve(range, 2 * page_size);
}

}  // namespace
}  // namespace poolgrad::testing
