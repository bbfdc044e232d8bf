#include "allocator/heap/first_fit_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace poolgrad {
namespace {

TEST(FirstFitIndex, VisitsLargeEnoughBlocksByAddress) {
  std::mt19937 random(7);
  std::vector<Block> blocks(400);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].address = i << 20;
    blocks[i].size = 64 * (1 + random() % 50);
  }
  std::vector<Block*> held;
  for (Block& block : blocks) held.push_back(&block);
  std::ranges::shuffle(held, random);
  FirstFitIndex index(64);
  for (Block* block : held) index.insert(block);
  for (; held.size() > 100; held.pop_back()) index.remove(held.back());
  std::ranges::sort(held);

  for (const std::size_t size : {64u, 1000u, 64u * 45, 64u * 51}) {
    std::vector<Block*> fits, visited;
    std::ranges::copy_if(held, std::back_inserter(fits), [&](const Block* block) { return block->size >= size; });
    index.for_each_fit(size, [&](Block* block) {
      visited.push_back(block);
      return true;
    });
    EXPECT_EQ(visited, fits) << size;
    EXPECT_EQ(index.find(size), fits.empty() ? nullptr : fits.front()) << size;
  }
}

TEST(FirstFitIndex, StopsWhereTheVisitorDoes) {
  std::vector<Block> blocks(10);
  FirstFitIndex index(64);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].address = i << 20;
    blocks[i].size = 64;
    index.insert(&blocks[i]);
  }
  std::size_t visited = 0;
  index.for_each_fit(64, [&](const Block* block) {
    ++visited;
    return block != &blocks[3];
  });
  EXPECT_EQ(visited, 4u);
}

}  // namespace
}  // namespace poolgrad
