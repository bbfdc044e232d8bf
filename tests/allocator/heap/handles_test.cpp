// Ranges of whole handles: how a pool knows the handles behind its pages, and how devices look them up before they
// release or move memory.
#include "allocator/heap/handles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "allocator/error.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr std::uintptr_t base = 0x7f0000000000;

TEST(HandleSizes, AreTheLargestAllowedExceptTheLast) {
  EXPECT_THAT(handle_sizes(3 * page, page), ElementsAre(page, page, page));
  EXPECT_THAT(handle_sizes(3 * page, 4 * page), ElementsAre(3 * page));
  EXPECT_THAT(handle_sizes(11 * page, 4 * page), ElementsAre(4 * page, 4 * page, 3 * page));
}

TEST(HandleMap, RoundsToTheBoundariesOfHandles) {
  HandleMap map(base, 64 * page, page, false);
  map.set(base + page, {page, 3 * page, 2 * page});
  EXPECT_EQ(map.start_of(base + 2 * page + 5), base + 2 * page);
  EXPECT_EQ(map.end_of(base + 2 * page), base + 5 * page);
  EXPECT_EQ(map.round_up(base + page), base + page);
  EXPECT_EQ(map.round_up(base + page + 1), base + 2 * page);
  EXPECT_EQ(map.round_up(base + 2 * page + 1), base + 5 * page);
  EXPECT_EQ(map.round_up(base + 4 * page), base + 5 * page);
  EXPECT_EQ(map.round_down(base + 7 * page), base + 7 * page);
  EXPECT_EQ(map.round_down(base + 7 * page - 1), base + 5 * page);
  EXPECT_EQ(map.round_down(base + 5 * page), base + 5 * page);
  EXPECT_EQ(map.round_down(base + 4 * page + 5), base + 2 * page);
}

TEST(HandleMap, KnowsHandlesOfAnySizeAtAnyPageUpToTheEndOfTheWindow) {
  // Bits are stored in words of 64 pages. A handle may end in the next word, or span several words.
  for (const std::size_t pages : {63u, 64u, 65u, 300u}) {
    for (std::size_t first = 0; first < 70; ++first) {
      for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{63}, std::size_t{64}, std::size_t{65},
                                     std::size_t{200}, pages - std::min(first, pages)}) {
        if (size == 0 || first + size > pages) continue;
        HandleMap map(base, pages * page, page, false);
        map.set(base + first * page, {size * page});
        for (std::size_t at = first; at < first + size; at += std::max<std::size_t>(1, size / 7)) {
          ASSERT_EQ(map.start_of(base + at * page), base + first * page) << pages << " " << first << " " << size;
          ASSERT_EQ(map.end_of(base + at * page), base + (first + size) * page) << pages << " " << first << " " << size;
        }
      }
    }
  }
}

TEST(HandleMap, HasAHandlePerPageWhereMemoryIsDivisible) {
  HandleMap map(base, 64 * page, page, true);
  map.set(base, {8 * page});
  EXPECT_EQ(map.start_of(base + 3 * page + 1), base + 3 * page);
  EXPECT_EQ(map.end_of(base + 3 * page), base + 4 * page);
  EXPECT_EQ(map.round_up(base + page + 1), base + 2 * page);
  EXPECT_EQ(map.round_down(base + 5 * page - 1), base + 4 * page);
}

TEST(HandleMap, RemembersHandlesThatMove) {
  HandleMap source(base, 64 * page, page, false);
  HandleMap target(base + 64 * page, 64 * page, page, false);
  source.set(base, {page, page, 2 * page, 4 * page});
  source.move(base + 2 * page, target, base + 67 * page, 6 * page);
  EXPECT_EQ(target.start_of(base + 68 * page), base + 67 * page);
  EXPECT_EQ(target.end_of(base + 68 * page), base + 69 * page);
  EXPECT_EQ(target.start_of(base + 72 * page), base + 69 * page);
  EXPECT_EQ(target.end_of(base + 72 * page), base + 73 * page);
}

TEST(HandleMap, AgreesWithAListOfPagesAfterAnyMoves) {
  constexpr unsigned seed = 23;
  constexpr std::size_t pages = 300;
  std::mt19937 random(seed);
  HandleMap map(base, pages * page, page, false);
  std::vector<bool> starts(pages + 1, true);
  const auto begin_of = [&](std::size_t at) {
    while (!starts[at]) --at;
    return at;
  };
  const auto end_of = [&](std::size_t at) {
    while (!starts[++at]) {
    }
    return at;
  };
  for (int round = 0; round < 100; ++round) {
    std::size_t first = begin_of(random() % pages);
    std::size_t end = end_of(first + random() % (pages - first));
    if (random() % 2 == 0) {
      map.clear(base + first * page, (end - first) * page);
      std::fill(starts.begin() + static_cast<std::ptrdiff_t>(first), starts.begin() + static_cast<std::ptrdiff_t>(end),
                true);
      map.set(base + first * page, {(end - first) * page});
      for (std::size_t i = first + 1; i < end; ++i) starts[i] = false;
    } else if (const std::size_t to = random() % pages; to >= end && to + (end - first) <= pages) {
      const std::size_t behind = begin_of(to), last = end_of(to + (end - first) - 1);
      map.clear(base + behind * page, (last - behind) * page);
      for (std::size_t i = behind; i < last; ++i) starts[i] = true;
      if (behind < end) continue;
      map.move(base + first * page, map, base + to * page, (end - first) * page);
      for (std::size_t i = first; i < end; ++i) starts[to + (i - first)] = starts[i];
    }
    for (std::size_t at = 0; at < pages; ++at) {
      ASSERT_EQ(map.start_of(base + at * page), base + begin_of(at) * page) << "seed " << seed << " round " << round;
      ASSERT_EQ(map.end_of(base + at * page), base + end_of(at) * page) << "seed " << seed << " round " << round;
      ASSERT_EQ(map.round_up(base + at * page + 7), base + end_of(at) * page) << "seed " << seed;
      ASSERT_EQ(map.round_down(base + at * page), base + begin_of(at) * page) << "seed " << seed;
    }
  }
}

TEST(HandleMap, ForgetsReleasedHandles) {
  HandleMap map(base, 64 * page, page, false);
  map.set(base, {8 * page});
  map.clear(base, 8 * page);
  map.set(base + 3 * page, {2 * page});
  EXPECT_EQ(map.start_of(base + 4 * page), base + 3 * page);
  EXPECT_EQ(map.end_of(base + 3 * page), base + 5 * page);
}

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

TEST_F(MappedHandlesTest, FindsTheHandlesOfARange) {
  EXPECT_THAT(ids(100, 10), ElementsAre(1));
  EXPECT_THAT(ids(100, 30), ElementsAre(1, 2));
  EXPECT_THAT(ids(140, 10), ElementsAre(3));
}

TEST_F(MappedHandlesTest, RefusesRangesThatBeginOrEndInsideAHandle) {
  EXPECT_THAT(refusal(105, 5), HasSubstr("[decommit] the range does not start at a handle"));
  EXPECT_THAT(refusal(100, 15), HasSubstr("the range ends inside a handle of 20 bytes: 15 bytes at 100"));
  EXPECT_THAT(refusal(100, 25), HasSubstr("the range ends inside a handle of 20 bytes: 25 bytes at 100"));
  EXPECT_THAT(refusal(100, 5), HasSubstr("inside a handle of 10 bytes"));
}

TEST_F(MappedHandlesTest, RefusesRangesWithAGap) {
  EXPECT_THAT(refusal(110, 40), HasSubstr("part of it is not mapped"));
  EXPECT_THAT(refusal(140, 20), HasSubstr("part of it is not mapped"));
  EXPECT_THAT(refusal(130, 10), HasSubstr("does not start at a handle"));
}

TEST_F(MappedHandlesTest, RefusesToMapARangeTwice) {
  for (const std::uintptr_t address : {95u, 100u, 105u, 109u, 125u, 131u, 149u}) {
    EXPECT_THROW(handles_.add({.address = address, .bytes = 10, .id = 9}, "commit"), DeviceError) << address;
  }
  EXPECT_NO_THROW(handles_.add({.address = 130, .bytes = 10, .id = 9}, "commit"));
  EXPECT_NO_THROW(handles_.add({.address = 90, .bytes = 10, .id = 10}, "commit"));
  EXPECT_EQ(handles_.count(), 5u);
}

TEST_F(MappedHandlesTest, ForgetsRemovedHandles) {
  handles_.take(100, 30, "decommit");
  EXPECT_EQ(handles_.count(), 1u);
  EXPECT_NO_THROW(handles_.check_free(0, 140, "commit"));
  handles_.take(140, 10, "decommit");
  EXPECT_EQ(handles_.count(), 0u);
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
