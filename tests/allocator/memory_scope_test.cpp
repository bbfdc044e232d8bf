#include "allocator/memory_scope.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace poolgrad {
namespace {

TEST(MemoryScope, TagsNothingByDefault) {
  EXPECT_EQ(current_tag().category, Category::unknown);
  EXPECT_EQ(scope_name(current_tag().scope), "");
}

TEST(MemoryScope, JoinsNamesAndLetsTheInnerCategoryWin) {
  const MemoryScope block("block3", Category::activation);
  {
    const MemoryScope attention("attention", Category::workspace);
    EXPECT_EQ(scope_name(current_tag().scope), "block3.attention");
    EXPECT_EQ(current_tag().category, Category::workspace);
    const MemoryScope name_only("softmax");
    EXPECT_EQ(scope_name(current_tag().scope), "block3.attention.softmax");
    EXPECT_EQ(current_tag().category, Category::workspace);
    const MemoryScope category_only(Category::mask);
    EXPECT_EQ(scope_name(current_tag().scope), "block3.attention.softmax");
    EXPECT_EQ(current_tag().category, Category::mask);
  }
  EXPECT_EQ(scope_name(current_tag().scope), "block3");
  EXPECT_EQ(current_tag().category, Category::activation);
}

TEST(MemoryScope, InternsTheSamePathOnceInAllThreads) {
  const auto enter = [] {
    const MemoryScope outer("interned");
    const MemoryScope inner("path");
    return current_tag().scope;
  };
  const std::uint32_t expected = enter();
  std::vector<std::uint32_t> seen(4);
  std::vector<std::thread> threads;
  for (std::uint32_t& id : seen) threads.emplace_back([&id, enter] { id = enter(); });
  for (std::thread& thread : threads) thread.join();
  for (const std::uint32_t id : seen) EXPECT_EQ(id, expected);
}

TEST(MemoryScope, TellsThousandsOfPathsApart) {
  std::set<std::uint32_t> ids;
  for (int i = 0; i < 5000; ++i) {
    const MemoryScope scope("many" + std::to_string(i));
    ids.insert(current_tag().scope);
    ASSERT_EQ(scope_name(current_tag().scope), "many" + std::to_string(i));
  }
  EXPECT_EQ(ids.size(), 5000u);
}

TEST(Category, HasADistinctNameEach) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < category_count; ++i) names.emplace(to_string(static_cast<Category>(i)));
  EXPECT_EQ(names.size(), category_count);
  EXPECT_EQ(to_string(Category::optimizer_state), "optimizer_state");
  EXPECT_EQ(to_string(Category::unknown), "unknown");
}

}  // namespace
}  // namespace poolgrad
