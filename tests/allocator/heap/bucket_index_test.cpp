#include "allocator/heap/bucket_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace poolgrad {
namespace {

Block block(std::uintptr_t address, std::size_t size) {
  Block result;
  result.address = address;
  result.size = size;
  return result;
}

TEST(BucketIndex, IsEmptyAtFirst) {
  const BucketIndex index(64);
  EXPECT_EQ(index.find(0), nullptr);
  EXPECT_EQ(index.find(64), nullptr);
  EXPECT_EQ(index.bytes(), 0u);
}

TEST(BucketIndex, NeverReturnsABlockThatIsTooSmall) {
  BucketIndex index(64);
  // All three sizes share one bucket.
  Block small = block(0, 64 * 1024);
  Block middle = block(1 << 20, 64 * 1025);
  Block large = block(2 << 20, 64 * 1026);
  for (Block* b : {&large, &small, &middle}) index.insert(b);
  EXPECT_EQ(index.find(64 * 1024), &small);
  EXPECT_EQ(index.find(64 * 1025), &middle);
  EXPECT_EQ(index.find(64 * 1026), &large);
  EXPECT_EQ(index.find(64 * 1027), nullptr);
}

TEST(BucketIndex, PrefersTheLowestAddressAmongEqualSizes) {
  BucketIndex index(64);
  std::vector<Block> blocks;
  for (const std::uintptr_t address : {5u, 2u, 9u, 1u, 7u}) blocks.push_back(block(address << 20, 4096));
  for (Block& b : blocks) index.insert(&b);
  for (const std::uintptr_t address : {1u, 2u, 5u, 7u, 9u}) {
    Block* lowest = index.find(4096);
    ASSERT_NE(lowest, nullptr);
    EXPECT_EQ(lowest->address, address << 20);
    index.remove(lowest);
  }
  EXPECT_EQ(index.find(64), nullptr);
}

TEST(BucketIndex, AgreesWithALinearSearch) {
  const std::uint64_t seed = 20240607;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  BucketIndex index(64);
  std::vector<Block> blocks;
  blocks.reserve(400);
  std::vector<Block*> inside;
  std::vector<Block*> outside;
  for (std::size_t i = 0; i < 400; ++i) {
    const auto octave = random() % 24;
    blocks.push_back(block(i << 40, 64 * (1 + random() % (std::size_t{1} << octave))));
  }
  for (Block& b : blocks) outside.push_back(&b);
  for (int step = 0; step < 100000; ++step) {
    auto& from = (random() & 1) != 0 ? inside : outside;
    if (!from.empty()) {
      std::swap(from[random() % from.size()], from.back());
      Block* chosen = from.back();
      from.pop_back();
      if (&from == &inside) {
        index.remove(chosen);
        outside.push_back(chosen);
      } else {
        index.insert(chosen);
        inside.push_back(chosen);
      }
    }
    const std::size_t size = 64 * (1 + random() % (std::size_t{1} << random() % 25));
    Block* expected = nullptr;
    std::size_t bytes = 0;
    for (Block* b : inside) {
      bytes += b->size;
      if (b->size < size) continue;
      if (expected == nullptr || std::pair(b->size, b->address) < std::pair(expected->size, expected->address)) {
        expected = b;
      }
    }
    ASSERT_EQ(index.find(size), expected) << "step " << step << ", size " << size;
    ASSERT_EQ(index.bytes(), bytes);
  }
}

TEST(BucketIndex, VisitsTheLargestBlocksFirst) {
  BucketIndex index(64);
  std::vector<Block> blocks;
  for (std::uintptr_t i = 0; i < 200; ++i) blocks.push_back(block(i << 20, 64 * (1 + i * i % 997)));
  for (Block& b : blocks) index.insert(&b);
  std::vector<std::size_t> sizes;
  for (const Block& b : blocks) sizes.push_back(b.size);
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.resize(150);
  std::vector<std::size_t> visited;
  index.for_each_largest_first([&](const Block* b) {
    visited.push_back(b->size);
    return visited.size() < 150;
  });
  EXPECT_EQ(visited, sizes);
}

TEST(BucketIndex, VisitsEveryBlockThatIsLargeEnough) {
  BucketIndex index(64);
  std::vector<Block> blocks;
  blocks.reserve(1000);
  for (std::size_t i = 1; i <= 1000; ++i) blocks.push_back(block(i << 30, 64 * i));
  for (Block& b : blocks) index.insert(&b);
  std::size_t large = 0;
  index.for_each_from(64 * 500, [&](const Block* b) { large += b->size >= 64 * 500 ? 1 : 0; });
  EXPECT_EQ(large, 501u);
}

}  // namespace
}  // namespace poolgrad
