#include "allocator/emergency_ladder.h"

#include <algorithm>
#include <functional>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Rung rung(const std::string& name, std::vector<std::string>& visited, std::size_t estimate, std::size_t yield) {
  return {name, [estimate](Need&) { return estimate; },
          [&visited, name, yield](Need&) {
            visited.push_back(name);
            return yield;
          }};
}

TEST(EmergencyLadder, TriesRungsInOrderAndSkipsTheHopeless) {
  std::vector<std::string> visited;
  Need need;
  const auto yields =
      EmergencyLadder::climb({rung("a", visited, 1, 0), rung("b", visited, 0, 5), rung("c", visited, 1, 0)}, need,
                             [](Need&) { FAIL() << "nothing was released"; });
  EXPECT_THAT(visited, ElementsAre("a", "c"));
  EXPECT_EQ(yields.size(), 3u);
  EXPECT_EQ(need.block, nullptr);
}

TEST(EmergencyLadder, SearchesAgainAfterEveryRungThatYields) {
  std::vector<std::string> visited;
  Need need;
  Block block;
  int searches = 0;
  EmergencyLadder::climb({rung("a", visited, 1, 10), rung("b", visited, 1, 20), rung("c", visited, 1, 30)}, need,
                         [&](Need& n) {
                           if (++searches == 2) n.block = &block;
                         });
  EXPECT_THAT(visited, ElementsAre("a", "a"));
  EXPECT_EQ(need.block, &block);
}

TEST(EmergencyLadder, GoesBackToTheLowerRungsWhenAHigherOneYields) {
  std::vector<std::string> visited;
  Need need;
  Rung once = rung("c", visited, 1, 7);
  once.estimate = [&](Need&) { return std::ranges::count(visited, "c") == 0 ? std::size_t{7} : 0; };
  const auto yields =
      EmergencyLadder::climb({rung("a", visited, 1, 0), rung("b", visited, 1, 0), once}, need, [](Need&) {});
  EXPECT_THAT(visited, ElementsAre("a", "b", "c", "a", "b"));
  EXPECT_EQ(yields[2].bytes, 7u);
}

TEST(EmergencyLadder, EndsEvenIfEveryRungAlwaysYields) {
  std::vector<std::string> visited;
  std::vector<Rung> rungs;
  for (int i = 0; i < 12; ++i) rungs.push_back(rung(std::to_string(i), visited, 1, 1));
  Need need;
  EmergencyLadder::climb(rungs, need, [](Need&) {});
  EXPECT_EQ(visited.size(), 12u * 12u);
}

TEST(EmergencyLadder, ClimbsOnlyBelowTheRungThatIsRunning) {
  std::vector<std::string> visited;
  std::vector<std::string> inner;
  Need need;
  std::vector<Rung> rungs = {rung("a", visited, 1, 0), rung("b", visited, 1, 0)};
  rungs.push_back({"nested", [](Need&) { return std::size_t{1}; },
                   [&](Need&) -> std::size_t {
                     Need nested;
                     EmergencyLadder::climb({rung("x", inner, 1, 0), rung("y", inner, 1, 0), rung("z", inner, 1, 0),
                                             rung("w", inner, 1, 0)},
                                            nested, [](Need&) {});
                     return 0;
                   }});
  EmergencyLadder::climb(rungs, need, [](Need&) {});
  EXPECT_THAT(inner, ElementsAre("x", "y"));
  EmergencyLadder::climb({rung("full", visited, 1, 0)}, need, [](Need&) {});
  EXPECT_EQ(visited.back(), "full");
}

class Cache : public ReclaimClient {
 public:
  Cache(CachingAllocator& pool, std::string name, double price) : pool_(pool), name_(std::move(name)), price_(price) {}
  ~Cache() override { drop(SIZE_MAX); }

  void keep(std::size_t bytes) { blocks_.emplace_back(allocate(pool_, bytes), bytes); }
  std::size_t asked() const { return asked_; }
  std::function<void()> while_reclaiming = [] {};

  std::string name() const override { return name_; }
  double price_per_byte() const override { return price_; }
  std::size_t estimate() override {
    std::size_t bytes = 0;
    for (const auto& [pointer, size] : blocks_) bytes += size;
    return bytes;
  }
  std::size_t reclaim(std::size_t bytes) override {
    ++asked_;
    while_reclaiming();
    return drop(bytes);
  }

 private:
  std::size_t drop(std::size_t bytes) {
    std::size_t dropped = 0;
    while (!blocks_.empty() && dropped < bytes) {
      deallocate(pool_, blocks_.back().first, blocks_.back().second);
      dropped += blocks_.back().second;
      blocks_.pop_back();
    }
    return dropped;
  }

  CachingAllocator& pool_;
  std::string name_;
  double price_;
  std::size_t asked_ = 0;
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

class ReclaimClientTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ReclaimClientTest, devices, device_name);

TEST_P(ReclaimClientTest, IsAskedCheapestFirstAndOnlyForWhatIsNeeded) {
  CachingAllocator pool(memory(), {.budget = 8 * page});
  const auto dear = std::make_shared<Cache>(pool, "dear", 2.0);
  const auto cheap = std::make_shared<Cache>(pool, "cheap", 1.0);
  pool.add_client(dear);
  pool.add_client(cheap);
  for (int i = 0; i < 4; ++i) {
    dear->keep(page);
    cheap->keep(page);
  }
  void* block = allocate(pool, page);
  EXPECT_EQ(cheap->asked(), 1u);
  EXPECT_EQ(cheap->estimate(), 3 * page);
  EXPECT_EQ(dear->asked(), 0u);
  void* large = allocate(pool, 5 * page);
  EXPECT_EQ(cheap->estimate(), 0u);
  EXPECT_LE(dear->estimate(), 2 * page);
  EXPECT_LE(pool.statistics().reserved_bytes.peak, 8 * page);
  deallocate(pool, block, page);
  deallocate(pool, large, 5 * page);
  expect_invariants(pool);
}

TEST_P(ReclaimClientTest, MayAllocateWhileItReclaims) {
  CachingAllocator pool(memory(), {.budget = 4 * page});
  const auto cache = std::make_shared<Cache>(pool, "cache", 0.0);
  pool.add_client(cache);
  for (int i = 0; i < 4; ++i) cache->keep(page);
  int refused = 0;
  // Nothing is left at this moment: the nested request fails at once and never asks the client again.
  cache->while_reclaiming = [&] {
    try {
      deallocate(pool, allocate(pool, page), page);
    } catch (const OutOfMemoryError&) {
      ++refused;
    }
  };
  void* block = allocate(pool, page);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(cache->asked(), 1u);
  deallocate(pool, block, page);
}

TEST_P(ReclaimClientTest, IsForgottenWhenItIsGone) {
  CachingAllocator pool(memory(), {.budget = page});
  pool.add_client(std::make_shared<Cache>(pool, "gone", 0.0));
  void* block = allocate(pool, page);
  const auto result = pool.try_allocate({.bytes = 1, .alignment = 64, .stream = stream_of(pool)});
  EXPECT_THAT(std::get<std::string>(result), ::testing::Not(HasSubstr("gone")));
  deallocate(pool, block, page);
}

TEST_P(ReclaimClientTest, AppearsInTheReport) {
  CachingAllocator pool(memory(), {.budget = 3 * page});
  const auto cache = std::make_shared<Cache>(pool, "rope tables", 0.0);
  pool.add_client(cache);
  cache->keep(page);
  void* block = allocate(pool, page);
  const auto result = pool.try_allocate({.bytes = 3 * page, .alignment = 64, .stream = stream_of(pool)});
  ASSERT_TRUE(std::holds_alternative<std::string>(result));
  EXPECT_THAT(std::get<std::string>(result), HasSubstr("rope tables 2.00 MiB"));
  deallocate(pool, block, page);
}

}  // namespace
}  // namespace poolgrad::testing
