// The index orders blocks by the bytes that a call about their handles moves, after any inserts and removals.
#include "allocator/heap/handle_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "tests/allocator/pool_testing.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

struct Handles {
  std::size_t bytes;
  std::uint32_t count;
};

TEST(HandleIndex, OrdersBlocksByBytesPerCallThenByAge) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE("seed " + std::to_string(test_seed()));
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Handles> handles;  // of each block, computed when they are counted
  HandleIndex index;
  std::uintptr_t address = std::uintptr_t{1} << 40;
  for (int round = 0; round < 500; ++round) {
    for (std::size_t added = random() % 8; added > 0; --added) {
      auto block = std::make_unique<Block>();
      block->address = address += 64 * page;
      block->size = (1 + random() % 4) * page;
      block->epoch = random() % 3;
      index.insert(block.get());
      blocks.push_back(std::move(block));
      const auto count = static_cast<std::uint32_t>(random() % 4);
      handles.push_back({count * (1 + random() % 2) * page, count});
    }
    for (std::size_t gone = random() % 7; gone > 0 && !blocks.empty(); --gone) {
      const auto at = static_cast<std::ptrdiff_t>(random() % blocks.size());
      index.remove(blocks[static_cast<std::size_t>(at)].get());
      blocks.erase(blocks.begin() + at);
      handles.erase(handles.begin() + at);
    }
    if (random() % 3 == 0) continue;  // new blocks stay new
    index.update([&](Block* block) {
      const auto known = std::ranges::find(blocks, block, &std::unique_ptr<Block>::get);
      const Handles& its = handles[static_cast<std::size_t>(known - blocks.begin())];
      block->whole_bytes = its.bytes;
      block->whole_handles = {its.count, 1};
    });
    std::vector<const Block*> expected;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (handles[i].count != 0) expected.push_back(blocks[i].get());
    }
    std::ranges::sort(expected, {}, [](const Block* block) {
      const std::size_t bytes_of_a_call = block->whole_bytes / block->whole_handles.count;
      return std::tuple(-bytes_of_a_call, block->epoch, block->size, block->address);
    });
    std::vector<const Block*> found;
    index.for_each_best_first([&](const Block* block) {
      found.push_back(block);
      return true;
    });
    ASSERT_EQ(found, expected) << "round " << round;
  }
}

TEST(HandleIndex, StopsWhereTheVisitorDoes) {
  HandleIndex index;
  Block one, other;
  index.insert(&one);
  index.insert(&other);
  index.update([&](Block* block) {
    block->whole_bytes = block == &one ? page : 2 * page;
    block->whole_handles = {1, 2};
  });
  std::vector<const Block*> found;
  index.for_each_best_first([&](const Block* block) {
    found.push_back(block);
    return false;
  });
  EXPECT_EQ(found, std::vector<const Block*>{&other});
}

}  // namespace
}  // namespace poolgrad::testing
