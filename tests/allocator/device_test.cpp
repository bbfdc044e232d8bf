#include "allocator/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <unordered_set>

#include "allocator/error.h"
#include "allocator/stream.h"

namespace poolgrad {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Device, RoundTripsThroughText) {
  for (const char* text : {"cpu", "cuda:0", "cuda:7", "sim:0", "sim:255"}) {
    EXPECT_EQ(to_string(Device::parse(text)), text);
  }
}

TEST(Device, HasIndexZeroWhenNoneIsGiven) {
  EXPECT_EQ(Device::parse("cuda"), (Device{DeviceType::cuda, 0}));
  EXPECT_EQ(Device::parse("sim"), (Device{DeviceType::sim, 0}));
}

TEST(Device, RefusesAnythingElseAndShowsIt) {
  for (const char* text :
       {"", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:256", "sim: 1", "sim:8GiB", "CPU"}) {
    EXPECT_THAT([&] { Device::parse(text); }, ThrowsMessage<ValueError>(HasSubstr("got '" + std::string(text) + "'")));
  }
}

TEST(Device, HashesDistinctly) {
  std::unordered_set<std::size_t> hashes;
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda, DeviceType::sim}) {
    for (int i = 0; i < 256; ++i) hashes.insert(std::hash<Device>{}(Device{type, static_cast<std::uint8_t>(i)}));
  }
  EXPECT_EQ(hashes.size(), 3u * 256u);
}

TEST(Stream, IsTheDefaultStreamUntilAGuardSetsAnother) {
  const Device gpu = Device::parse("sim:0");
  EXPECT_EQ(current_stream(gpu), (Stream{gpu, 0}));
  {
    const StreamGuard outer(Stream{gpu, 3});
    EXPECT_EQ(current_stream(gpu).id, 3u);
    {
      const StreamGuard inner(Stream{gpu, 5});
      EXPECT_EQ(current_stream(gpu).id, 5u);
    }
    EXPECT_EQ(current_stream(gpu).id, 3u);
  }
  EXPECT_EQ(current_stream(gpu).id, 0u);
}

TEST(Stream, IsCurrentPerDeviceAndPerThread) {
  const Device first = Device::parse("sim:0");
  const Device second = Device::parse("sim:1");
  const StreamGuard guard(Stream{first, 3});
  EXPECT_EQ(current_stream(second).id, 0u);
  std::uint64_t seen = 99;
  std::thread([&] { seen = current_stream(first).id; }).join();
  EXPECT_EQ(seen, 0u);
}

}  // namespace
}  // namespace poolgrad
