// Whole handles and nothing else: what devices look up before they give memory back or move it.
#include "allocator/heap/mapped_handles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/error.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

class MappedHandlesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    handles_.add({.address = 100, .bytes = 10, .id = 1}, "commit");
    handles_.add({.address = 110, .bytes = 20, .id = 2}, "commit");
    handles_.add({.address = 140, .bytes = 10, .id = 3}, "commit");
  }
  std::string refusal(std::uintptr_t address, std::size_t bytes) {
    try {
      handles_.whole(address, bytes, "decommit");
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }
  std::vector<std::uint64_t> ids(std::uintptr_t address, std::size_t bytes) {
    std::vector<std::uint64_t> result;
    for (const auto& handle : handles_.whole(address, bytes, "decommit")) result.push_back(handle.id);
    return result;
  }

  MappedHandles handles_;
};

TEST_F(MappedHandlesTest, FindsTheHandlesThatTileARange) {
  EXPECT_THAT(ids(100, 10), ElementsAre(1));
  EXPECT_THAT(ids(100, 30), ElementsAre(1, 2));
  EXPECT_THAT(ids(140, 10), ElementsAre(3));
}

TEST_F(MappedHandlesTest, RefusesRangesThatBeginOrEndInsideAHandle) {
  EXPECT_THAT(refusal(105, 5), HasSubstr("[decommit] no handle starts where the range does"));
  EXPECT_THAT(refusal(100, 15), HasSubstr("the range ends inside a handle of 20 bytes: 15 bytes at 100"));
  EXPECT_THAT(refusal(100, 25), HasSubstr("the range ends inside a handle of 20 bytes: 25 bytes at 100"));
  EXPECT_THAT(refusal(100, 5), HasSubstr("inside a handle of 10 bytes"));
}

TEST_F(MappedHandlesTest, RefusesRangesWithAGap) {
  EXPECT_THAT(refusal(110, 40), HasSubstr("memory is missing"));
  EXPECT_THAT(refusal(140, 20), HasSubstr("memory is missing"));
  EXPECT_THAT(refusal(130, 10), HasSubstr("no handle starts"));
}

TEST_F(MappedHandlesTest, RefusesMemoryBehindMemory) {
  for (const std::uintptr_t address : {95u, 100u, 105u, 109u, 125u, 131u, 149u}) {
    EXPECT_THROW(handles_.add({.address = address, .bytes = 10, .id = 9}, "commit"), DeviceError) << address;
  }
  EXPECT_NO_THROW(handles_.add({.address = 130, .bytes = 10, .id = 9}, "commit"));
  EXPECT_NO_THROW(handles_.add({.address = 90, .bytes = 10, .id = 10}, "commit"));
  EXPECT_EQ(handles_.count(), 5u);
}

TEST_F(MappedHandlesTest, ForgetsWhatIsRemoved) {
  handles_.take(100, 30, "decommit");
  EXPECT_EQ(handles_.count(), 1u);
  EXPECT_NO_THROW(handles_.check_free(0, 140, "commit"));
  handles_.take(140, 10, "decommit");
  EXPECT_TRUE(handles_.empty());
}

TEST_F(MappedHandlesTest, SplitsHandlesOfDivisibleMemory) {
  handles_.split(115);
  handles_.split(115);
  handles_.split(100);
  handles_.split(135);
  EXPECT_EQ(handles_.count(), 4u);
  EXPECT_THAT(ids(100, 15), ElementsAre(1, 2));
  EXPECT_THAT(ids(115, 15), ElementsAre(2));
}

}  // namespace
}  // namespace poolgrad::testing
