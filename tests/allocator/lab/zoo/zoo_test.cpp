#include "allocator/lab/zoo/zoo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/error.h"

namespace poolgrad {
namespace {

class ZooTest : public ::testing::TestWithParam<std::string> {
 protected:
  const Workload workload_ = zoo_workload(GetParam());
};

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const ZooEntry& entry : trace_zoo()) result.emplace_back(entry.name);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooTest, ::testing::ValuesIn(names()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST_P(ZooTest, AllocatesEachBlockOnceBeforeItIsUsedAndFreed) {
  std::vector<std::uint64_t> live(workload_.blocks, UINT64_MAX);
  std::uint32_t next = 0;
  for (const Operation& operation : workload_.operations) {
    ASSERT_LT(operation.stream, workload_.streams);
    switch (operation.kind) {
      case OperationKind::allocate:
        ASSERT_EQ(operation.block, next++);
        ASSERT_GT(operation.bytes, 0u);
        live[operation.block] = operation.bytes;
        break;
      case OperationKind::use:
      case OperationKind::free:
        ASSERT_LT(operation.block, next);
        ASSERT_EQ(live[operation.block], operation.bytes);
        if (operation.kind == OperationKind::free) live[operation.block] = UINT64_MAX;
        break;
      case OperationKind::order: ASSERT_LT(operation.block, workload_.streams); break;
      case OperationKind::step: break;
    }
  }
  EXPECT_EQ(next, workload_.blocks);
}

TEST_P(ZooTest, IsOfRealisticSize) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_GE(workload_.peak_requested(), 256 * mib);
  EXPECT_LE(workload_.peak_requested(), 65536 * mib);
  EXPECT_GE(workload_.operations.size(), 5000u);
  EXPECT_LE(workload_.operations.size(), 100000u);
}

TEST_P(ZooTest, IsTheSameEveryTime) { EXPECT_EQ(zoo_workload(GetParam()).operations, workload_.operations); }

TEST(Zoo, HasAtLeastTwelveKindsAndTwoStreamsInSome) {
  EXPECT_GE(trace_zoo().size(), 12u);
  EXPECT_EQ(zoo_workload("two-streams").streams, 2u);
  EXPECT_EQ(zoo_workload("ring-attention").streams, 2u);
}

TEST(Zoo, RefusesAnUnknownNameAndListsTheKnown) {
  try {
    zoo_workload("elephant");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("unknown workload 'elephant'; known workloads: transformer, "));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("checkerboard"));
  }
}

}  // namespace
}  // namespace poolgrad
