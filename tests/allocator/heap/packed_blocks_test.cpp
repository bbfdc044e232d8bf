// What is noted about packed blocks is what was noted before, in fewer bytes.
#include "allocator/heap/packed_blocks.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

constexpr std::uintptr_t region = std::uintptr_t{1} << 40;
constexpr unsigned granule_bits = 6;

// Blocks next to each other from the start of the region, and the block that stands for all of them.
struct Row {
  std::vector<LiveBlock> blocks;
  Block node;

  void add(std::size_t granules, std::size_t slack, std::uint64_t number, Tag tag) {
    const std::uintptr_t address = blocks.empty() ? region : blocks.back().end();
    const std::size_t size = granules << granule_bits;
    blocks.push_back({address, size, size - slack, number, tag});
    node.address = region;
    node.size = blocks.back().end() - region;
  }
};

void expect_equal(const LiveBlock& one, const LiveBlock& other) {
  ASSERT_EQ(one.address, other.address);
  ASSERT_EQ(one.size, other.size);
  ASSERT_EQ(one.requested, other.requested);
  ASSERT_EQ(one.number, other.number);
  ASSERT_EQ(one.tag.category, other.tag.category);
  ASSERT_EQ(one.tag.scope, other.tag.scope);
}

TEST(PackedBlocks, GiveBackWhatWentInWhateverIsErased) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()) + ", round " + std::to_string(round));
    Row row;
    const std::uint64_t spread = random() % 64;
    for (std::size_t left = 1024; left > 0;) {
      const std::size_t granules = std::min<std::size_t>(left, 1 + random() % 40);
      left -= granules;
      const auto any = [&](std::uint64_t bits) {
        return random() & ((std::uint64_t{1} << std::min(bits, spread)) - 1);
      };
      row.add(granules, any(6), any(63), {static_cast<Category>(any(4)), static_cast<std::uint32_t>(any(32))});
    }
    row.blocks.back().size += std::size_t{5} << 20;  // the last one may end far outside
    row.node.size += std::size_t{5} << 20;
    const PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
    for (std::size_t erasures = round % 20 == 0 ? row.blocks.size() : 2; erasures > 0 && !row.blocks.empty();
         --erasures) {
      ASSERT_EQ(packed->size(), row.blocks.size());
      const std::size_t gone = random() % row.blocks.size();
      // In the pool, what is before an erased block ends with the block that stands for it.
      for (std::size_t i = 0; i < row.blocks.size(); ++i) {
        ASSERT_EQ(packed->address(i), row.blocks[i].address);
        ASSERT_EQ(packed->lower_bound(row.blocks[i].address), i);
        ASSERT_EQ(packed->lower_bound(row.blocks[i].address + 1), i + 1);
        Block node = row.node;
        node.size = row.blocks[i].end() - node.address;
        expect_equal(packed->at(i, &node), row.blocks[i]);
      }
      packed->erase(gone);
      row.blocks.erase(row.blocks.begin() + static_cast<std::ptrdiff_t>(gone));
    }
  }
}

TEST(PackedBlocks, TakeTwoBytesEachWhereAllAreAlike) {
  Row row;
  for (std::uint64_t i = 0; i < 100; ++i) row.add(8, 0, 7, {Category::parameter, 3});
  const PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
  EXPECT_EQ(packed->bytes(), sizeof(PackedBlocks) + 200);
}

}  // namespace
}  // namespace poolgrad::testing
