// The heaps of the models, against a deliberately simple map.
#include "allocator/lab/policies/chunk_heap.h"
#include "tests/test_seed.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <string>

namespace poolgrad::testing {
namespace {

constexpr std::size_t granule = 512;
constexpr std::size_t segment = 1000 * granule;

struct Interval {
  std::size_t size;
  std::uint64_t list;
  bool free;
};

template <class Heap>
class ChunkHeapTest : public ::testing::Test {};
using Heaps = ::testing::Types<ChunkHeap, FirstFitHeap>;
TYPED_TEST_SUITE(ChunkHeapTest, Heaps);

// Returns the expected address of take_fit()'s block; 0 if there is none.
std::uintptr_t expected_fit(const std::map<std::uintptr_t, Interval>& blocks, std::uint64_t list, std::size_t size,
                            bool best) {
  std::uintptr_t found = 0;
  for (const auto& [address, block] : blocks) {
    if (!block.free || block.list != list || block.size < size) continue;
    if (found == 0 || (best && block.size < blocks.at(found).size)) found = address;
  }
  return found;
}

TYPED_TEST(ChunkHeapTest, PlacesAndMergesAsTheSimplestHeapWould) {
  SCOPED_TRACE("seed " + std::to_string(seed_or(30)));
  std::mt19937_64 random(seed_or(30));
  TypeParam heap(granule);
  std::map<std::uintptr_t, Interval> shadow;
  std::vector<Block*> live;
  const auto merge = [&](std::uintptr_t address) {
    auto block = shadow.find(address);
    const auto joins = [](auto lower, auto higher) {
      return lower->second.free && higher->second.free && lower->second.list == higher->second.list &&
             lower->first + lower->second.size == higher->first;
    };
    if (auto next = std::next(block); next != shadow.end() && joins(block, next)) {
      block->second.size += next->second.size;
      shadow.erase(next);
    }
    if (block != shadow.begin() && joins(std::prev(block), block)) {
      std::prev(block)->second.size += block->second.size;
      shadow.erase(block);
    }
  };
  for (std::uintptr_t i = 1; i <= 4; ++i) {  // segments with gaps between them
    const std::uintptr_t address = i * 2 * segment;
    heap.put(heap.add(address, segment, i % 2));
    shadow[address] = {segment, i % 2, true};
  }
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t list = random() % 2;
    if (random() % 100 < 52) {
      const std::size_t size = granule * (1 + random() % (std::size_t{1} << random() % 9));
      const std::uintptr_t at = expected_fit(shadow, list, size, std::is_same_v<TypeParam, ChunkHeap>);
      Block* block = heap.take_fit(list, size);
      ASSERT_EQ(block == nullptr ? 0 : block->address, at) << "at step " << step;
      if (block == nullptr) continue;
      heap.trim(block, size);
      ASSERT_EQ(block->size, size);
      const std::size_t whole = shadow[at].size;
      shadow[at] = {size, list, false};
      if (whole != size) shadow[at + size] = {whole - size, list, true};
      live.push_back(block);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      Block* block = live.back();
      live.pop_back();
      if (random() % 4 == 0) block->stream = list;  // freed into another list
      shadow[block->address] = {block->size, block->stream, true};
      merge(block->address);
      heap.put(block);
    }
  }
  for (std::uint64_t list = 0; list < 2; ++list) {
    auto expected = shadow.begin();
    for (const Block* block : heap.blocks(list)) {
      while (!expected->second.free || expected->second.list != list) ++expected;
      EXPECT_EQ(block->address, expected->first);
      EXPECT_EQ(block->size, expected->second.size);
      ++expected;
    }
  }
}

TYPED_TEST(ChunkHeapTest, FindsNothingInAMissingList) {
  TypeParam heap(granule);
  EXPECT_EQ(heap.find(7, granule), nullptr);
  EXPECT_TRUE(heap.blocks(7).empty());
}

TYPED_TEST(ChunkHeapTest, KeepsGroupsOfOneListApart) {
  TypeParam heap(granule);
  Block* block = heap.add(segment, segment, 0);
  Block* rest = heap.split(block, 10 * granule);
  rest->number = 1;
  heap.put(block);
  heap.put(rest);
  EXPECT_EQ(heap.blocks(0).size(), 2u);
}

TYPED_TEST(ChunkHeapTest, MovedBlocksMergeInTheirNewList) {
  TypeParam heap(granule);
  Block* block = heap.add(segment, segment, 0);
  Block* rest = heap.split(block, 10 * granule);
  rest->stream = 1;
  heap.put(block);
  heap.put(rest);
  EXPECT_EQ(heap.whole_segments(0).size(), 0u);
  heap.move(rest, 0, 0);
  ASSERT_EQ(heap.whole_segments(0).size(), 1u);
  EXPECT_EQ(heap.whole_segments(0)[0]->size, segment);
}

TYPED_TEST(ChunkHeapTest, RemovesSegmentsWithoutALiveByte) {
  TypeParam heap(granule);
  Block* whole = heap.add(segment, segment, 0);
  Block* partly = heap.add(4 * segment, segment, 1);
  heap.trim(partly, granule);
  heap.put(whole);
  EXPECT_TRUE(heap.whole_segments(1).empty());
  ASSERT_EQ(heap.whole_segments(0), std::vector<Block*>{whole});
  heap.remove(whole);
  EXPECT_EQ(heap.find(0, granule), nullptr);
  EXPECT_NE(heap.find(1, granule), nullptr);
}

}  // namespace
}  // namespace poolgrad::testing
