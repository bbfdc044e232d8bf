// The choice of free blocks by an arena, on addresses without memory.
#include "allocator/heap/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace poolgrad {
namespace {

constexpr std::size_t page = std::size_t{2} << 20;
constexpr std::uint64_t wall = 99;  // the stream of blocks that stay busy

struct Piece {
  std::size_t bytes;
  std::uint64_t stream = wall;
  std::uint64_t epoch = 0;
};

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() { arena_.add_window(base, 64 * page); }

  /// Places blocks side by side from the start of the window.
  void lay(const std::vector<Piece>& pieces) {
    std::size_t bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.bytes;
    ASSERT_EQ(bytes % page, 0u);
    Block* rest = arena_.begin_growth(arena_.plan_growth(bytes, 64, 0, page), 0);
    ASSERT_EQ(rest->address, base);
    std::vector<Block*> blocks;
    for (const Piece& piece : pieces) {
      Block* block = rest;
      if (piece.bytes < block->size) rest = arena_.split(block, piece.bytes);
      block->stream = piece.stream;
      block->epoch = piece.epoch;
      blocks.push_back(block);
    }
    for (Block* block : blocks) {
      arena_.expect(block->stream);
      if (block->stream != wall) arena_.put(block);
    }
  }

  static constexpr std::uintptr_t base = std::uintptr_t{1} << 40;
  BlockStore store_;
  Arena arena_{store_, 64, page, true};
};

TEST_F(ArenaTest, TakesTheSmallestRunOfNeighboursThatHoldsTheRequest) {
  lay({{page, 1},
       {page, 2},
       {page, 1},
       {page},
       {page, 1},
       {page / 2, 2},
       {page / 2},
       {page, 1},
       {page, 2},
       {page},
       {page, 1},
       {page, 2},
       {page / 2, 1},
       {page / 2}});
  const std::vector<Block*> run = arena_.take_across_streams(2 * page, 64);
  ASSERT_EQ(run.size(), 2u);
  EXPECT_EQ(run[0]->address, base + 6 * page);
  EXPECT_TRUE(arena_.take_across_streams(4 * page, 64).empty());
}

TEST_F(ArenaTest, TakesTheMixedRunWithTheOldestYoungestBlock) {
  lay({{page / 2, 1, 9}, {page / 2, 2, 1}, {page}, {page / 2, 1, 5}, {page / 2, 2, 6}, {page}});
  const std::vector<Block*> run = arena_.take_mixed_handles();
  ASSERT_EQ(run.size(), 2u);
  EXPECT_EQ(run[0]->address, base + 2 * page);
}

TEST_F(ArenaTest, CutsAnAlignedBlockFromABlockLargeEnoughAtAnyStart) {
  constexpr std::size_t size = 4096;
  // The best fit starts 64 bytes behind a multiple of 4096. So does the next block, which just fits.
  lay({{64}, {size, 1}, {4096}, {2 * size - 64, 1}, {page - 64 - 4 * size + 64}});
  Block* block = arena_.take(size, size, 1);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->address, base + 3 * size);
  EXPECT_EQ(block->size, size);
  EXPECT_EQ(arena_.free_bytes(1), size + size - 64) << "the best fit, and what lies before the block";
}

TEST_F(ArenaTest, SearchesAlignedStartsOnlyWithoutALargeEnoughBlock) {
  constexpr std::size_t size = 4096;
  lay({{64}, {size, 1}, {size - 64}, {size + 64, 1}, {size - 64}, {2 * size, 1}, {page - 6 * size}});
  EXPECT_EQ(arena_.take(size, size, 1)->address, base + 4 * size);
  EXPECT_EQ(arena_.take(size, size, 1)->address, base + 5 * size);
  EXPECT_EQ(arena_.take(size, size, 1)->address, base + 2 * size);
}

TEST_F(ArenaTest, FindsATightBlockWithAnAlignedStart) {
  constexpr std::size_t size = 4096;
  lay({{64}, {size, 1}, {size - 64}, {size + 128, 1}, {size - 128}, {size + 64, 1}, {page - 5 * size - 64}});
  Block* block = arena_.take(size, size, 1);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->address, base + 4 * size) << "the smaller of two";
  block = arena_.take(size, size, 1);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->address, base + 2 * size);
  EXPECT_EQ(arena_.take(size, size, 1), nullptr) << "what is left starts at no multiple of 4096";
}

TEST_F(ArenaTest, StartsAWholePageBlockAtAPageWhereOneHasRoom) {
  lay({{64}, {2 * page, 1}, {page - 64}, {3 * page, 1}, {page}});
  EXPECT_EQ(arena_.take(2 * page, 64, 1)->address, base + 3 * page);
  EXPECT_EQ(arena_.take(2 * page, 64, 1)->address, base + 64);
}

}  // namespace
}  // namespace poolgrad
