// Packed blocks keep the same data in fewer bytes.
#include "allocator/heap/packed_blocks.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>

#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

constexpr std::uintptr_t region = std::uintptr_t{1} << 40;
constexpr unsigned granule_bits = 6;

// Adjacent blocks from the start of the region, and the block that represents them.
struct Row {
  std::vector<LiveBlock> blocks;
  Block node;

  void add(std::size_t granules, std::size_t slack, std::uint64_t number, Tag tag, std::uint64_t stream = 0) {
    const std::uintptr_t address = blocks.empty() ? region : blocks.back().end();
    const std::size_t size = granules << granule_bits;
    blocks.push_back({address, size, size - slack, number, tag, stream});
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
  ASSERT_EQ(one.stream, other.stream);
}

TEST(PackedBlocks, GiveBackWhatWentIn) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()) + ", round " + std::to_string(round));
    Row row;
    const std::uint64_t spread = random() % 64;
    const std::uint64_t off_percent = random() % 2 * (random() % 60);  // percent of blocks with random numbers
    const std::uint64_t step = random() % 3 * (random() % (std::uint64_t{1} << spread));
    std::vector<std::uint64_t> streams(1 + random() % 2 * (random() % 20));  // handles of any value
    for (std::uint64_t& stream : streams) stream = random();
    for (std::size_t left = 1024; left > 0;) {
      const std::size_t granules = std::min<std::size_t>(left, 1 + random() % 40);
      left -= granules;
      const auto any = [&](std::uint64_t bits) {
        return random() & ((std::uint64_t{1} << std::min(bits, spread)) - 1);
      };
      // Numbers that rise or fall from block to block, or do neither.
      const std::uint64_t way = round % 2 == 0 ? row.blocks.size() : left;
      const std::uint64_t off = random() % 100 < off_percent ? random() % (std::uint64_t{1} << 40) : any(63);
      const std::uint64_t number = (off + way * step) & ((std::uint64_t{1} << 63) - 1);
      row.add(granules, any(6), number, {static_cast<Category>(any(4)), static_cast<std::uint32_t>(any(32))},
              streams[random() % streams.size()]);
    }
    row.blocks.back().size += std::size_t{5} << 20;  // the last one may end far outside
    row.node.size += std::size_t{5} << 20;
    const PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
    ASSERT_EQ(packed->size(), row.blocks.size());
    for (std::size_t i = 0; i < row.blocks.size(); ++i) {
      ASSERT_EQ(packed->address(i), row.blocks[i].address);
      ASSERT_EQ(packed->lower_bound(row.blocks[i].address), i);
      ASSERT_EQ(packed->lower_bound(row.blocks[i].address + 1), i + 1);
      expect_equal(packed->at(i, &row.node), row.blocks[i]);
      // The range before a removed block ends with the block that represents it.
      Block node = row.node;
      node.size = row.blocks[i].end() - node.address;
      expect_equal(packed->at(i, &node), row.blocks[i]);
    }
  }
}

TEST(PackedBlocks, KnowWhichAreGone) {
  Row row;
  for (std::uint64_t i = 0; i < 3; ++i) row.add(8, 0, i, {});
  const PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
  Block first, last;
  for (const auto& [node, block] : {std::pair(&first, row.blocks[0]), std::pair(&last, row.blocks[2])}) {
    node->address = block.address;
    node->size = block.size;
    packed->add_node(node);
  }
  EXPECT_TRUE(packed->forget_one());
  EXPECT_EQ(packed->node_of(row.blocks[0].address), &first);
  EXPECT_EQ(packed->node_of(row.blocks[1].address), nullptr) << "gone";
  EXPECT_EQ(packed->node_of(row.blocks[2].address), &last);
  EXPECT_TRUE(packed->forget_one());
  EXPECT_FALSE(packed->forget_one()) << "the last one";
}

TEST(PackedBlocks, TakeOthersInThePlaceOfThoseThatAreGone) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE("seed " + std::to_string(test_seed()) + ", round " + std::to_string(round));
    Row row;
    std::uint64_t number = 100000;
    const Tag tag{Category::parameter, 7};
    const std::uint64_t slacks = round % 2 == 0 ? 1 : 64;
    for (std::uint64_t i = 0; i < 500; ++i) {
      const std::uint64_t slack = i < 2 ? i * (slacks - 1) : random() % slacks;  // includes the least and the most
      row.add(1 + random() % 3, slack, number += 1 + random() % 2, tag);
    }
    PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
    int grown = 0;
    for (int i = 0; i < 1000; ++i) {
      const std::size_t index = random() % row.blocks.size();
      LiveBlock& block = row.blocks[index];
      block.requested = block.size - random() % slacks;
      block.number = i % 50 == 0 ? number - random() % 1000 : number += 1 + random() % 100;
      ASSERT_TRUE(packed->forget_one());
      if (!packed->put(index, block)) {
        PackedBlocks::Owner larger = packed->with_room_for(index, block);
        ASSERT_NE(larger, nullptr);
        ASSERT_TRUE(larger->put(index, block));
        packed = std::move(larger);
        ++grown;
      }
      for (const std::size_t j : {index, random() % row.blocks.size(), row.blocks.size() - 1})
        expect_equal(packed->at(j, &row.node), row.blocks[j]);
    }
    for (std::size_t j = 0; j < row.blocks.size(); ++j) expect_equal(packed->at(j, &row.node), row.blocks[j]);
    EXPECT_LT(grown, 100) << "there is room for more than one";
    EXPECT_LT(packed->bytes(), 3000u) << "five bytes each, and what is around them";
    for (std::size_t left = row.blocks.size(); left > 0; --left) ASSERT_EQ(packed->forget_one(), left > 1);
  }
}

TEST(PackedBlocks, KnowWhoHasAPlaceAmongThem) {
  Row row;
  for (std::uint64_t i = 0; i < 3; ++i) row.add(2, 0, i, {Category::parameter, 7});
  const PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
  const auto has_place = [&](std::uintptr_t address, std::size_t size) {
    Block block;
    block.address = address;
    block.size = size;
    return packed->has_place_for(block, packed->lower_bound(address));
  };
  const std::uintptr_t middle = row.blocks[1].address, last = row.blocks[2].address;
  EXPECT_TRUE(has_place(middle, 128));
  EXPECT_FALSE(has_place(middle, 64)) << "too short";
  EXPECT_FALSE(has_place(middle, 256)) << "too long";
  EXPECT_FALSE(has_place(middle + 64, 64)) << "beside it";
  EXPECT_TRUE(has_place(last, 4096)) << "nothing follows";
  EXPECT_FALSE(has_place(last + 128, 64)) << "beyond";
  LiveBlock other = row.blocks[1];
  other.tag.scope = 8;
  EXPECT_FALSE(packed->put(1, other)) << "all others have scope 7: there are no bits for it";
  EXPECT_EQ(packed->with_room_for(1, other), nullptr);
  LiveBlock elsewhere = row.blocks[1];
  elsewhere.stream = 9;
  EXPECT_FALSE(packed->put(1, elsewhere)) << "all others are of stream 0";
  EXPECT_EQ(packed->with_room_for(1, elsewhere), nullptr);
}

TEST(PackedBlocks, KnowTheirStreamsByTheirPresentNames) {
  Row row;
  for (std::uint64_t i = 0; i < 90; ++i) row.add(2, 0, i, {}, 1000 + i % 3);
  PackedBlocks::Owner packed = PackedBlocks::make(row.blocks, region, granule_bits);
  EXPECT_FALSE(packed->only_stream());
  LiveBlock stranger = row.blocks[4];
  stranger.stream = 77;
  EXPECT_FALSE(packed->put(4, stranger)) << "a fourth one would fit into two bits, but has no name there";
  EXPECT_EQ(packed->with_room_for(4, stranger), nullptr);
  const auto rename = [&](std::uint64_t from, std::uint64_t to) {
    packed->rename_stream(from, to);
    for (LiveBlock& block : row.blocks) {
      if (block.stream == from) block.stream = to;
    }
    for (std::size_t i = 0; i < row.blocks.size(); ++i) expect_equal(packed->at(i, &row.node), row.blocks[i]);
  };
  rename(1001, std::uint64_t{1} << 63);
  rename(1002, std::uint64_t{1} << 63);
  rename(7, 8);  // no block has this stream
  // New blocks replace the removed ones.
  for (std::size_t i = 0; i < 90; i += 7) {
    row.blocks[i].stream = i % 2 == 0 ? 1000 : std::uint64_t{1} << 63;
    row.blocks[i].number = 1000000 + i;
    ASSERT_TRUE(packed->forget_one());
    if (packed->put(i, row.blocks[i])) continue;
    packed = packed->with_room_for(i, row.blocks[i]);
    ASSERT_TRUE(packed->put(i, row.blocks[i]));
  }
  rename(1000, 5);
  Row alone;
  for (std::uint64_t i = 0; i < 3; ++i) alone.add(2, 0, i, {}, 4);
  EXPECT_EQ(PackedBlocks::make(alone.blocks, region, granule_bits)->only_stream(), 4u);
}

// Returns the bytes that blocks take beyond the bytes of a single one.
std::size_t bytes_of(std::size_t blocks, const std::function<LiveBlock(std::size_t)>& block) {
  const auto bytes = [&](std::size_t count) {
    Row row;
    for (std::size_t i = 0; i < count; ++i) {
      const LiveBlock one = block(i);
      row.add(one.size, one.size - one.requested, one.number, one.tag, one.stream);
    }
    return PackedBlocks::make(row.blocks, region, granule_bits)->bytes();
  };
  return bytes(blocks) - bytes(1);
}

TEST(PackedBlocks, TakeNothingWhereAllAreAlikeAndBitsWhereTheyAreNot) {
  const Tag tag{Category::parameter, 3};
  const auto alike = [&](std::size_t i) { return LiveBlock{0, 1, 1, 7 + 3 * i, tag}; };
  EXPECT_EQ(bytes_of(800, alike), 0u) << "numbers rise steadily";
  const auto backwards = [&](std::size_t i) { return LiveBlock{0, 1, 1, 90000 - 5 * i, tag}; };
  EXPECT_EQ(bytes_of(800, backwards), 0u) << "or fall";
  const auto two_categories = [&](std::size_t i) {
    return LiveBlock{0, 1, 1, i, {i % 2 == 0 ? Category::query : Category::key, 3}};
  };
  EXPECT_EQ(bytes_of(800, two_categories), 100u);
  const auto slack = [&](std::size_t i) { return LiveBlock{0, 1, 1 - i % 64, i, tag}; };
  EXPECT_EQ(bytes_of(800, slack), 600u);
  const auto two_streams = [&](std::size_t i) { return LiveBlock{0, 1, 1, i, tag, (i % 2) << 40}; };
  EXPECT_EQ(bytes_of(800, two_streams), 100u + sizeof(std::uint64_t)) << "a bit each, and their name";
}

TEST(PackedBlocks, TakeABitMoreEachWhereSomeHaveReplacedOthers) {
  std::mt19937_64 random(test_seed());
  std::vector<std::uint64_t> numbers(800);
  for (std::size_t i = 0; i < 800; ++i) numbers[i] = i;
  for (std::size_t i = 0; i < 800; i += 10) numbers[i] = 1000000 + random() % 100000;
  const auto replaced = [&](std::size_t i) { return LiveBlock{0, 1, 1, numbers[i], {}}; };
  EXPECT_LE(bytes_of(800, replaced), 800 / 8 + 80 * 17 / 8 + 1) << "a bit for each, 17 bits for one in ten";
}

}  // namespace
}  // namespace poolgrad::testing
