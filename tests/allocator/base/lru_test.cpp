#include "allocator/base/lru.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

namespace poolgrad {
namespace {

struct Word {
  int number = 0, version = 0;
  std::size_t size = 1;
  std::size_t bytes() const { return size; }
};

/// A cache of numbers that all have one hash. It counts how often each number was made.
struct Words {
  Lru<Word> cache;
  int made = 0;

  Words(std::size_t bytes, std::size_t entries) : cache(bytes, entries) {}
  int get(int number, std::size_t size = 1) {
    const auto same = [&](const Word& word) { return word.number == number; };
    return cache.get(7, same, [&] { return Word{number, ++made, size}; }).version;
  }
};

TEST(Lru, MakesAValueOnceAndEvictsTheLeastRecentlyUsed) {
  Words words(100, 2);
  EXPECT_EQ(words.get(1), 1);
  EXPECT_EQ(words.get(2), 2);
  EXPECT_EQ(words.get(1), 1);
  EXPECT_EQ(words.get(3), 3) << "instead of 2";
  EXPECT_EQ(words.get(1), 1);
  EXPECT_EQ(words.get(2), 4);
  EXPECT_EQ(words.cache.statistics().hits, 2);
  EXPECT_EQ(words.cache.statistics().misses, 4);
  EXPECT_EQ(words.cache.statistics().entries, 2);
}

TEST(Lru, StaysWithinItsBytes) {
  Words words(10, 100);
  words.get(1, 6);
  words.get(2, 4);
  EXPECT_EQ(words.cache.statistics().bytes, 10);
  words.get(3, 1);
  EXPECT_EQ(words.cache.statistics().bytes, 5) << "2 and 3";
  EXPECT_EQ(words.get(4, 11), 4) << "too large to be kept";
  EXPECT_EQ(words.cache.statistics().entries, 0);
  words.get(5, 3);
  words.cache.set_byte_limit(2);
  EXPECT_EQ(words.cache.statistics().bytes, 0);
  words.get(6, 2);
  words.cache.clear();
  EXPECT_EQ(words.get(6, 2), 7);
}

TEST(Lru, IsUnchangedWhenMakingAValueThrows) {
  Words words(10, 10);
  words.get(1);
  const auto never = [](const Word&) { return false; };
  const auto fails = []() -> Word { throw std::runtime_error("no"); };
  EXPECT_THROW(words.cache.get(7, never, fails), std::runtime_error);
  EXPECT_THROW(words.cache.get_once(7, never, fails), std::runtime_error);
  EXPECT_EQ(words.cache.statistics().entries, 1);
  EXPECT_EQ(words.get(1), 1);
}

TEST(Lru, GivesAllThreadsOneValueAndMakesItOnceOnRequest) {
  Lru<Word> cache(1000, 1000);
  std::atomic<int> made = 0, made_once = 0, different = 0;
  std::latch start(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int n = 0; n < 50; ++n) {
        const auto same = [&](const Word& word) { return word.number == n; };
        const Word one = cache.get(static_cast<std::uint64_t>(n), same, [&] { return Word{n, ++made}; });
        const Word again = cache.get(static_cast<std::uint64_t>(n), same, [&] { return Word{n, ++made}; });
        different += one.version != again.version;
        cache.get_once(
            1000, [&](const Word& word) { return word.number == 1000 + n; },
            [&] {
              return Word{1000 + n, ++made_once};
            });
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
  EXPECT_EQ(made_once, 50);
  EXPECT_EQ(cache.statistics().entries, 100);
}

}  // namespace
}  // namespace poolgrad
