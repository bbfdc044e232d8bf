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

/// Records the scopes that a profiler shows for one thread.
struct RecordedScopes : ScopeListener {
  void begins(std::string_view name) noexcept override { events.emplace_back(name); }
  void ends() noexcept override { events.emplace_back("end"); }
  std::vector<std::string> events;
};

TEST(ScopeListener, IsToldWhenNamedScopesBeginAndEnd) {
  RecordedScopes listener;
  Tag earlier;
  ScopeListener* const before = listen_to_scopes(&listener);
  {
    const MemoryScope block("block3", Category::activation);
    {
      const MemoryScope category_only(Category::mask);
      const MemoryScope attention("attention");
      earlier = current_tag();
    }
    const MemoryScope same(current_tag());
  }
  const MemoryScope none{Tag{}};
  { const MemoryScope again(earlier); }
  EXPECT_EQ(listen_to_scopes(before), &listener);
  EXPECT_EQ(listener.events,
            (std::vector<std::string>{"block3", "attention", "end", "end", "block3.attention", "end"}));
}

TEST(ScopeListener, IsToldTheEndOfScopesItSawBegin) {
  RecordedScopes first, second;
  ScopeListener* const before = listen_to_scopes(nullptr);
  {
    const MemoryScope unheard("unheard");
    listen_to_scopes(&first);
    const MemoryScope heard("heard");
    listen_to_scopes(&second);
  }
  listen_to_scopes(before);
  EXPECT_EQ(first.events, (std::vector<std::string>{"heard", "end"}));
  EXPECT_TRUE(second.events.empty());
}

TEST(Category, HasADistinctNameEach) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < category_count; ++i) names.emplace(to_string(static_cast<Category>(i)));
  EXPECT_EQ(names.size(), category_count);
  EXPECT_EQ(to_string(Category::optimizer_state), "optimizer_state");
  EXPECT_EQ(to_string(Category::unknown), "unknown");
}

/// Returns the location recorded for an allocation made here.
std::source_location recorded(std::source_location inside = std::source_location::current()) {
  return CallSite::of(inside);
}

unsigned line_of(CallSite = {}) { return recorded().line(); }

TEST(CallSite, IsTheLineOfTheCallWithItAsParameter) {
  EXPECT_EQ(line_of(), static_cast<unsigned>(__LINE__));
  EXPECT_EQ(CallSite::current().line(), 0u) << "and is over with the call";
}

TEST(CallSite, IsTheOutermostOne) {
  const CallSite outer;
  const unsigned line = __LINE__ - 1;
  EXPECT_EQ(line_of(), line);
  const CallSite inner;
  EXPECT_EQ(CallSite::current().line(), line);
}

TEST(CallSite, IsTheAllocatingLineByDefault) {
  const auto at = std::source_location::current();
  const auto same = CallSite::of(at);
  EXPECT_EQ(same.line(), at.line());
  EXPECT_EQ(same.function_name(), at.function_name());
}

TEST(CallSite, KeepsTheAllocatingFunctionBesideTheOutermostLine) {
  const CallSite site;
  const auto place = CallSite::of(std::source_location::current());
  EXPECT_EQ(place.line(), static_cast<unsigned>(__LINE__) - 2);
  EXPECT_STREQ(place.file_name(), __FILE__);
  EXPECT_NE(std::string(place.function_name()).find("TestBody"), std::string::npos);
  EXPECT_EQ(recorded().function_name(), recorded().function_name()) << "one place, however often it is asked for";
}

TEST(CallSite, NamesTheBackwardWithTheLineOfItsForward) {
  const std::string name = "matmul";
  const auto forward = std::source_location::current();
  {
    const CallSite backward(name, forward);
    EXPECT_EQ(recorded().line(), forward.line());
    EXPECT_STREQ(recorded().function_name(), "matmul backward");
    const CallSite inside;
    EXPECT_EQ(recorded().line(), forward.line());
  }
  const CallSite site;
  const unsigned line = __LINE__ - 1;
  const CallSite unknown(name, {});
  EXPECT_EQ(recorded().line(), line) << "where the forward is unknown, the line in force";
  EXPECT_STREQ(recorded().function_name(), "matmul backward");
}

TEST(FunctionName, OmitsResultParametersAndBindings) {
  EXPECT_EQ(function_name("T ns::Pool<T>::take(int) [with T = float]"), "ns::Pool<T>::take");
  EXPECT_EQ(function_name("poolgrad::Tensor poolgrad::matmul(const poolgrad::Tensor&, CallSite)"), "poolgrad::matmul");
  EXPECT_EQ(function_name("matmul backward"), "matmul backward");
}

}  // namespace
}  // namespace poolgrad
