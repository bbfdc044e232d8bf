#include "attention/pattern/block_list.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "attention/pattern/pattern.h"

namespace poolgrad::attention {
namespace {

/// One block on the diagonal of each of `rows` rows.
BlockLists diagonal(std::int32_t rows) {
  std::vector<std::int32_t> row_begin{0}, columns;
  for (std::int32_t b = 0; b < rows; ++b) {
    columns.push_back(b);
    row_begin.push_back(b + 1);
  }
  return make_block_lists("test", {row_begin}, {columns});
}

PatternCache::Key key(std::int64_t n) { return {"diagonal", {16}, n}; }

TEST(PatternCache, MakesEveryListOnce) {
  PatternCache cache(1 << 20);
  int made = 0;
  const auto make = [&] { return ++made, diagonal(8); };
  const auto first = cache.get(key(8), make), second = cache.get(key(8), make);
  EXPECT_EQ(first, second);
  EXPECT_EQ(made, 1);
  cache.get({"diagonal", {32}, 8}, make);
  cache.get({"other", {16}, 8}, make);
  cache.get(key(9), make);
  EXPECT_EQ(made, 4) << "kind, parameters and length all count";
  const PatternCache::Statistics statistics = cache.statistics();
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.misses, 4);
  EXPECT_EQ(statistics.entries, 4);
  EXPECT_EQ(statistics.bytes, 4 * first->bytes());
}

TEST(PatternCache, EvictsTheLeastRecentlyUsedWhenBytesAreTooMany) {
  const std::int64_t each = diagonal(8).bytes();
  PatternCache cache(2 * each);
  const auto make = [] { return diagonal(8); };
  const auto first = cache.get(key(1), make);
  cache.get(key(2), make);
  cache.get(key(1), make);
  cache.get(key(3), make);  // the second goes
  EXPECT_EQ(cache.statistics().evictions, 1);
  EXPECT_EQ(cache.statistics().bytes, 2 * each);
  EXPECT_EQ(cache.get(key(1), make), first);
  EXPECT_EQ(cache.statistics().hits, 2);
  cache.get(key(2), make);
  EXPECT_EQ(cache.statistics().misses, 4);
  cache.set_byte_limit(0);
  EXPECT_EQ(cache.statistics().entries, 0);
  EXPECT_EQ(cache.statistics().bytes, 0);
  EXPECT_EQ(first->block_rows, 8) << "who holds a list keeps it";
}

TEST(PatternCache, DoesNotKeepWhatIsLargerThanItself) {
  PatternCache cache(diagonal(8).bytes());
  const auto kept = cache.get(key(8), [] { return diagonal(8); });
  EXPECT_EQ(cache.get(key(9), [] { return diagonal(9); })->block_rows, 9);
  EXPECT_EQ(cache.statistics().entries, 1);
  EXPECT_EQ(cache.get(key(8), [] { return diagonal(8); }), kept);
}

TEST(PatternCache, SurvivesWhatMakingThrows) {
  PatternCache cache(1 << 20);
  EXPECT_THROW(cache.get(key(8), []() -> BlockLists { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(cache.statistics().entries, 0);
  EXPECT_EQ(cache.get(key(8), [] { return diagonal(8); })->block_rows, 8);
}

TEST(PatternCache, GivesAllThreadsTheSameList) {
  PatternCache cache(1 << 20);
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const BlockLists>> lists(8 * 100);
  for (std::size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t n = 0; n < 100; ++n)
        lists[t * 100 + n] = cache.get(key(static_cast<std::int64_t>(n % 10)), [] { return diagonal(8); });
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t n = 0; n < lists.size(); ++n) EXPECT_EQ(lists[n], lists[n % 10]);
  const PatternCache::Statistics statistics = cache.statistics();
  EXPECT_EQ(statistics.hits + statistics.misses, 800);
  EXPECT_EQ(statistics.entries, 10);
}

TEST(PatternCache, PatternsShareItsLists) {
  const auto lists = PatternCache::global().get({"test diagonal", {}, 128}, [] { return diagonal(8); });
  const auto map = kernels::PositionMap::contiguous(128);
  const auto first = Pattern::blocks(16, lists).compile(1, map, map),
             second = Pattern::blocks(16, lists).compile(1, map, map);
  EXPECT_EQ(first.passes[0].term[0].columns, lists->columns.data());
  EXPECT_EQ(second.passes[0].term[0].columns, lists->columns.data());
}

}  // namespace
}  // namespace poolgrad::attention
