#include "allocator/pool/reclaim_policy.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::array ids = {ReclaimStageId::poll,     ReclaimStageId::other_streams, ReclaimStageId::magazines,
                            ReclaimStageId::coalesce, ReclaimStageId::commit,        ReclaimStageId::stitch,
                            ReclaimStageId::release,  ReclaimStageId::synchronise,   ReclaimStageId::borrow,
                            ReclaimStageId::wait,     ReclaimStageId::derived_cache, ReclaimStageId::offload};

// Names are "a", "b", ... in ascending order.
ReclaimStage stage(const std::string& name, std::vector<std::string>& visited, std::size_t estimate,
                   std::size_t yield) {
  return {ids[static_cast<std::size_t>(name[0] - 'a')], name, [estimate](AllocationAttempt&) { return estimate; },
          [&visited, name, yield](AllocationAttempt&) {
            visited.push_back(name);
            return yield;
          }};
}

std::vector<ReclaimResult> reclaim(
    const std::vector<ReclaimStage>& stages, AllocationAttempt& attempt,
    const ReclaimLoop::Search& search = [](AllocationAttempt&) {}) {
  return ReclaimLoop::reclaim(stages, attempt, search, [](const ReclaimStage&, std::size_t, std::uint64_t) {});
}

TEST(ReclaimLoop, TriesStagesInOrderAndSkipsThoseWithoutYield) {
  std::vector<std::string> visited;
  AllocationAttempt attempt;
  const auto yields = reclaim({stage("a", visited, 1, 0), stage("b", visited, 0, 5), stage("c", visited, 1, 0)},
                              attempt, [](AllocationAttempt&) { FAIL() << "nothing was released"; });
  EXPECT_THAT(visited, ElementsAre("a", "c"));
  ASSERT_EQ(yields.size(), 3u);
  EXPECT_EQ(yields[2].stage, "c");
  EXPECT_EQ(yields[0].runs, 1u);
  EXPECT_EQ(yields[1].runs, 0u);
  EXPECT_EQ(attempt.block, nullptr);
}

TEST(ReclaimLoop, SearchesAgainAfterEachStageThatYields) {
  std::vector<std::string> visited;
  AllocationAttempt attempt;
  Block block;
  int searches = 0;
  const auto yields = reclaim({stage("a", visited, 1, 10), stage("b", visited, 1, 20), stage("c", visited, 1, 30)},
                              attempt, [&](AllocationAttempt& n) {
                                if (++searches == 2) n.block = &block;
                              });
  EXPECT_THAT(visited, ElementsAre("a", "a"));
  EXPECT_TRUE(yields.empty()) << "only a report of failure needs them";
  EXPECT_EQ(attempt.block, &block);
}

TEST(ReclaimLoop, StartsOverWhenAStageYields) {
  std::vector<std::string> visited;
  AllocationAttempt attempt;
  ReclaimStage once = stage("c", visited, 1, 7);
  once.estimate = [&](AllocationAttempt&) { return std::ranges::count(visited, "c") == 0 ? std::size_t{7} : 0; };
  const auto yields = reclaim({stage("a", visited, 1, 0), stage("b", visited, 1, 0), once}, attempt);
  EXPECT_THAT(visited, ElementsAre("a", "b", "c", "a", "b"));
  EXPECT_EQ(yields[2].bytes, 7u);
}

TEST(ReclaimLoop, EndsEvenIfEveryStageAlwaysYields) {
  std::vector<std::string> visited;
  std::vector<ReclaimStage> stages;
  for (char name = 'a'; name <= 'l'; ++name) stages.push_back(stage(std::string(1, name), visited, 1, 1));
  AllocationAttempt attempt;
  reclaim(stages, attempt);
  EXPECT_EQ(visited.size(), 12u * 12u);
}

TEST(ReclaimLoop, SearchesOnceMoreAfterAnUntrustedStage) {
  std::vector<std::string> visited;
  AllocationAttempt attempt;
  ReclaimStage stranger = stage("b", visited, 1, 0);
  stranger.trusted = false;
  int searches = 0;
  reclaim({stage("a", visited, 1, 0), stranger, stage("c", visited, 1, 0)}, attempt,
          [&](AllocationAttempt&) { ++searches; });
  EXPECT_THAT(visited, ElementsAre("a", "b", "a", "c"));
  EXPECT_EQ(searches, 1);
}

TEST(ReclaimLoop, ReportsEachRun) {
  std::vector<std::string> visited;
  std::vector<std::pair<ReclaimStageId, std::size_t>> runs;
  AllocationAttempt attempt;
  ReclaimStage waits = stage("b", visited, 1, 0);
  waits.yields = false;
  ReclaimLoop::reclaim(
      {stage("a", visited, 1, 3), waits}, attempt, [](AllocationAttempt&) {},
      [&](const ReclaimStage& run, std::size_t bytes, std::uint64_t) { runs.emplace_back(run.id, bytes); });
  EXPECT_THAT(runs, ElementsAre(std::pair(ReclaimStageId::poll, 3u), std::pair(ReclaimStageId::poll, 3u),
                                std::pair(ReclaimStageId::other_streams, 0u)));
}

TEST(ReclaimLoop, RunsOnlyEarlierStagesInsideAStage) {
  std::vector<std::string> visited;
  std::vector<std::string> inner;
  AllocationAttempt attempt;
  std::vector<ReclaimStage> stages = {stage("a", visited, 1, 0), stage("b", visited, 1, 0), stage("c", visited, 1, 0)};
  stages.back().run = [&](AllocationAttempt&) -> std::size_t {
    AllocationAttempt nested;
    reclaim({stage("a", inner, 1, 0), stage("b", inner, 1, 0), stage("c", inner, 1, 0), stage("d", inner, 1, 0)},
            nested);
    return 0;
  };
  reclaim(stages, attempt);
  EXPECT_THAT(inner, ElementsAre("a", "b"));
  reclaim({stage("l", visited, 1, 0)}, attempt);
  EXPECT_EQ(visited.back(), "l");
}

TEST(ReclaimLoop, NeverGoesFromOffloadingToRecomputing) {
  std::vector<std::string> inner;
  for (const ReclaimStageId id : {ReclaimStageId::offload, ReclaimStageId::rematerialise}) {
    const ReclaimLoop::Running running(id);
    AllocationAttempt nested;
    ReclaimStage offload = stage("a", inner, 1, 0);
    offload.id = ReclaimStageId::offload;
    reclaim({offload}, nested);
  }
  EXPECT_THAT(inner, ElementsAre());
}

class Cache : public ReclaimClient {
 public:
  Cache(CachingAllocator& pool, std::string name, double its_price, ReclaimStageId kind = ReclaimStageId::derived_cache)
      : price(its_price), pool_(pool), name_(std::move(name)), kind_(kind) {}
  ~Cache() override { drop(SIZE_MAX); }

  void keep(std::size_t bytes) { blocks_.emplace_back(allocate(pool_, bytes), bytes); }
  std::size_t asked() const { return asked_; }
  double price;
  std::function<void()> while_reclaiming = [] {};
  std::size_t exaggeration = 0;
  bool claims_nothing = false;

  std::string name() const override { return name_; }
  ReclaimStageId kind() const override { return kind_; }
  double price_per_byte() const override { return price; }
  std::size_t estimate() override {
    if (claims_nothing) return 0;
    std::size_t bytes = exaggeration;
    for (const auto& [pointer, size] : blocks_) bytes += size;
    return bytes;
  }
  std::size_t reclaim(std::size_t bytes) override {
    ++asked_;
    while_reclaiming();
    return drop(bytes) + exaggeration;
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
  ReclaimStageId kind_;
  std::size_t asked_ = 0;
  std::vector<std::pair<void*, std::size_t>> blocks_;
};

// Returns the message of a refused request for `bytes`.
std::string refusal(CachingAllocator& pool, std::size_t bytes) {
  const auto result = pool.try_allocate({.bytes = bytes, .stream = stream_of(pool)});
  EXPECT_TRUE(std::holds_alternative<std::string>(result));
  const std::string* report = std::get_if<std::string>(&result);
  return report != nullptr ? *report : "";
}

class ReclaimClientTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, ReclaimClientTest, devices, device_name);

TEST_P(ReclaimClientTest, IsAskedLastIfItsPriceIsNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CachingAllocator pool(memory(), {.budget = 3 * page});
  const std::array clients = {std::make_shared<Cache>(pool, "unknown", 0.0),
                              std::make_shared<Cache>(pool, "dear", 1e300),
                              std::make_shared<Cache>(pool, "cheap", 0.5)};
  for (const auto& client : clients) {
    pool.add_client(client);
    client->keep(page);
  }
  clients[0]->price = nan;
  const auto asked = [&] {
    std::array<bool, 3> who{};
    for (std::size_t i = 0; i < 3; ++i) who[i] = clients[i]->asked() != 0;
    return who;
  };
  const std::array blocks = {allocate(pool, page), allocate(pool, page)};
  EXPECT_THAT(asked(), ElementsAre(false, true, true));
  // A limit on cost excludes it.
  const auto refused = pool.try_allocate(
      {.bytes = page, .stream = stream_of(pool), .tag = {Category::activation, 0}, .priority = 1e300});
  EXPECT_TRUE(std::holds_alternative<std::string>(refused));
  EXPECT_THAT(asked(), ElementsAre(false, true, true));
  void* last = allocate(pool, page);
  EXPECT_THAT(asked(), ElementsAre(true, true, true));
  deallocate(pool, last, page);
  for (void* block : blocks) deallocate(pool, block, page);
}

TEST_P(ReclaimClientTest, IsEmptiedByTrimIfItIsADerivedCache) {
  CachingAllocator pool(memory(), {.budget = 8 * page});
  const auto derived = std::make_shared<Cache>(pool, "derived", 1.0);
  const auto offloading = std::make_shared<Cache>(pool, "offloading", 1.0, ReclaimStageId::offload);
  for (const auto& client : {derived, offloading}) {
    pool.add_client(client);
    client->keep(page);
  }
  derived->while_reclaiming = [&] { pool.trim(); };  // asks no client again
  pool.trim(page);
  EXPECT_EQ(derived->asked(), 0u) << "for some pages only";
  pool.trim();
  EXPECT_EQ(derived->asked(), 1u);
  EXPECT_EQ(offloading->asked(), 0u);
  EXPECT_EQ(pool.statistics().reserved_bytes.current, page);
}

TEST_P(ReclaimClientTest, IsAskedCheapestFirstForTheNeededBytesOnly) {
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

TEST_P(ReclaimClientTest, IsAskedByPriceOfAnyKindAfterCaches) {
  CachingAllocator pool(memory(), {.budget = 3 * page});
  const auto recompute = std::make_shared<Cache>(pool, "recompute", 1.0, ReclaimStageId::rematerialise);
  const auto offload = std::make_shared<Cache>(pool, "offload", 2.0, ReclaimStageId::offload);
  const auto tables = std::make_shared<Cache>(pool, "tables", 3.0);
  const std::vector<std::shared_ptr<Cache>> all = {offload, recompute, tables};
  for (const auto& client : all) {
    pool.add_client(client);
    client->keep(page);
  }
  const auto asked = [&] { return std::vector{tables->asked(), recompute->asked(), offload->asked()}; };
  void* first = allocate(pool, page);
  EXPECT_THAT(asked(), ElementsAre(1u, 0u, 0u));
  void* second = allocate(pool, page);
  EXPECT_THAT(asked(), ElementsAre(1u, 1u, 0u));
  void* third = allocate(pool, page);
  EXPECT_THAT(asked(), ElementsAre(1u, 1u, 1u));
  for (void* block : {first, second, third}) deallocate(pool, block, page);
  EXPECT_EQ(pool.statistics().stages[static_cast<std::size_t>(ReclaimStageId::rematerialise)].bytes, page);
}

TEST_P(ReclaimClientTest, IsLeftAloneByRequestsOfLowPriority) {
  CachingAllocator pool(memory(), {.budget = page});
  const auto client = std::make_shared<Cache>(pool, "client", 2.0, ReclaimStageId::offload);
  pool.add_client(client);
  client->keep(page);
  AllocationRequest request{.bytes = page, .alignment = 64, .stream = stream_of(pool)};
  request.priority = 1.5;
  EXPECT_TRUE(std::holds_alternative<std::string>(pool.try_allocate(request)));
  request.priority = 2.0;
  request.may_reclaim = false;
  EXPECT_TRUE(std::holds_alternative<std::string>(pool.try_allocate(request)));
  EXPECT_EQ(client->asked(), 0u);
  request.may_reclaim = true;
  const auto result = pool.try_allocate(request);
  ASSERT_TRUE(std::holds_alternative<void*>(result));
  deallocate(pool, std::get<void*>(result), page);
}

TEST_P(ReclaimClientTest, FreesBytesForASmallerBudget) {
  CachingAllocator pool(memory());
  const auto client = std::make_shared<Cache>(pool, "client", 1.0);
  pool.add_client(client);
  for (int i = 0; i < 4; ++i) client->keep(page);
  void* block = allocate(pool, page);
  pool.set_budget(3 * page);
  EXPECT_EQ(client->estimate(), 2 * page);
  EXPECT_THROW(pool.set_budget(page / 2), ValueError);
  EXPECT_EQ(pool.budget(), 3 * page);
  deallocate(pool, block, page);
  expect_invariants(pool);
}

TEST_P(ReclaimClientTest, MayAllocateWhileItReclaims) {
  CachingAllocator pool(memory(), {.budget = 4 * page});
  const auto cache = std::make_shared<Cache>(pool, "cache", 0.0);
  pool.add_client(cache);
  for (int i = 0; i < 4; ++i) cache->keep(page);
  int refused = 0;
  // No memory is left at this moment: the nested request fails at once and does not ask the client again.
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

// A client with the test's answers that allocates before it answers.
class Asker : public ReclaimClient {
 public:
  std::string name() const override { return "asker"; }
  double price_per_byte() const override { return price(); }
  std::size_t estimate() override { return held(); }
  std::size_t reclaim(std::size_t) override { return 0; }

  std::function<double()> price = [] { return 1.0; };
  std::function<std::size_t()> held = [] { return std::size_t{0}; };
};

TEST_P(ReclaimClientTest, MayAllocateForItsPriceAndItsEstimate) {
  CachingAllocator pool(memory(), {.budget = 2 * page});
  const auto client = std::make_shared<Asker>();
  void* block = allocate(pool, 2 * page);
  int prices = 0, estimates = 0;
  const auto allocate_in_vain = [&] { EXPECT_THROW(allocate(pool, page), OutOfMemoryError); };
  pool.add_client(client);
  client->price = [&] {
    ++prices;
    allocate_in_vain();
    return 1.0;
  };
  client->held = [&] {
    ++estimates;
    allocate_in_vain();
    return page;
  };
  EXPECT_THROW(pool.set_budget(page), ValueError);
  EXPECT_EQ(prices, 1) << "what it allocates leads to no client, so nobody asks for a price";
  EXPECT_GT(estimates, 0);
  allocate_in_vain();
  EXPECT_EQ(prices, 2);
  deallocate(pool, block, 2 * page);
}

TEST_P(ReclaimClientTest, MayChangeItsPriceWhileOthersAreAsked) {
  CachingAllocator pool(memory(), {.budget = page});
  std::vector<std::shared_ptr<Asker>> clients;
  int questions = 0;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_shared<Asker>());
    clients.back()->price = [&, i] { return (questions++ * 7919 + i) % 13; };
    pool.add_client(clients.back());
  }
  questions = 0;
  EXPECT_THAT(refusal(pool, 2 * page), HasSubstr("asker"));
  EXPECT_EQ(questions, 40) << "each is asked once";
}

TEST_P(ReclaimClientTest, MayLowerTheBudgetWhileItReclaims) {
  CachingAllocator pool(memory());
  const auto lower = std::make_shared<Cache>(pool, "lower", 0.0);
  const auto upper = std::make_shared<Cache>(pool, "upper", 1.0, ReclaimStageId::offload);
  for (const auto& client : {lower, upper}) {
    pool.add_client(client);
    for (int i = 0; i < 4; ++i) client->keep(page);
  }
  int refused = 0;
  const auto set_budget = [&] {
    try {
      pool.set_budget(page);
    } catch (const ValueError&) {
      ++refused;
    }
  };
  lower->while_reclaiming = upper->while_reclaiming = set_budget;
  pool.set_budget(6 * page);
  EXPECT_EQ(lower->asked(), 1u);
  EXPECT_EQ(upper->asked(), 0u);
  EXPECT_EQ(refused, 1) << "no client is asked for it";
  pool.set_budget(2 * page);
  EXPECT_EQ(lower->estimate(), 0u) << "asked, and then by the one above it";
  EXPECT_EQ(pool.budget(), 2 * page);
  expect_invariants(pool);
}

TEST_P(ReclaimClientTest, IsForgottenWhenItIsDestroyed) {
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
  // The second half of a page stays in use. Two and a half pages fit neither before nor after it.
  void* front = allocate(pool, page / 2);
  void* block = allocate(pool, page / 2);
  deallocate(pool, front, page / 2);
  cache->keep(page);
  EXPECT_THAT(refusal(pool, 2 * page + page / 2), HasSubstr("rope tables 2.00 MiB"));
  EXPECT_EQ(cache->asked(), 2u) << "and once more when it claims nothing";
  deallocate(pool, block, page / 2);
}

TEST_P(ReclaimClientTest, IsNotAskedForRequestsItCannotHelp) {
  CachingAllocator pool(memory(), {.budget = 4 * page});
  const std::array clients = {std::make_shared<Cache>(pool, "tables", 0.0),
                              std::make_shared<Cache>(pool, "offloading", 1.0, ReclaimStageId::offload)};
  for (const auto& client : clients) {
    pool.add_client(client);
    client->keep(page);
  }
  void* block = allocate(pool, page);
  for (const std::size_t bytes : {3 * page + 1, 5 * page, std::size_t{1} << 62}) {
    EXPECT_THAT(refusal(pool, bytes),
                HasSubstr("\n  clients were not asked: the request would not fit even without their memory"));
  }
  EXPECT_THROW(pool.set_budget(page / 2), ValueError);
  for (const auto& client : clients) {
    EXPECT_EQ(client->asked(), 0u);
    EXPECT_EQ(client->estimate(), page);
  }
  void* large = allocate(pool, 3 * page);
  for (const auto& client : clients) EXPECT_EQ(client->estimate(), 0u) << "both together make room for three pages";
  deallocate(pool, large, 3 * page);
  deallocate(pool, block, page);
}

TEST_P(ReclaimClientTest, IsAskedLastIfItsEstimateIsZero) {
  CachingAllocator pool(memory(), {.budget = 2 * page});
  const auto modest = std::make_shared<Cache>(pool, "modest", 0.0);
  const auto open = std::make_shared<Cache>(pool, "open", 1.0, ReclaimStageId::rematerialise);
  for (const auto& client : {modest, open}) {
    pool.add_client(client);
    client->keep(page);
  }
  modest->claims_nothing = true;
  void* first = allocate(pool, page);
  EXPECT_EQ(open->estimate(), 0u);
  EXPECT_EQ(modest->asked(), 0u);
  refusal(pool, 2 * page + 1);
  EXPECT_EQ(modest->asked(), 0u) << "the budget does not allow so much";
  pool.set_out_of_memory_callback([](std::size_t, int) {
    ADD_FAILURE() << "the user is asked after all clients";
    return false;
  });
  void* second = allocate(pool, page);
  EXPECT_EQ(modest->asked(), 1u);
  deallocate(pool, first, page);
  deallocate(pool, second, page);
}

TEST_P(ReclaimClientTest, IsAskedAfterTheCallbackIfThatHelps) {
  CachingAllocator pool(memory(), {.budget = 3 * page});
  const auto client = std::make_shared<Cache>(pool, "tables", 0.0);
  pool.add_client(client);
  client->keep(page);
  void* mine = allocate(pool, page);
  pool.set_out_of_memory_callback([&](std::size_t, int) {
    EXPECT_EQ(client->asked(), 0u) << "it could not have helped";
    deallocate(pool, mine, page);
    return true;
  });
  deallocate(pool, allocate(pool, 3 * page), 3 * page);
  EXPECT_EQ(client->estimate(), 0u);
}

TEST_P(ReclaimClientTest, IsRefusedIfNullOrWithoutPriceOrKind) {
  CachingAllocator pool(memory());
  const double infinity = std::numeric_limits<double>::infinity();
  const auto said = [&](const std::weak_ptr<ReclaimClient>& client) -> std::string {
    try {
      pool.add_client(client);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(said({}), HasSubstr("[add_client] the client is null or destroyed"));
  for (const double price : {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity, -1.0}) {
    EXPECT_THAT(said(std::make_shared<Cache>(pool, "tables", price)),
                HasSubstr("[add_client] the price of tables is " + std::to_string(price) + " nanoseconds a byte"));
  }
  for (const ReclaimStageId kind : {ReclaimStageId::commit, ReclaimStageId::callback}) {
    EXPECT_THAT(said(std::make_shared<Cache>(pool, "tables", 1.0, kind)),
                HasSubstr("[add_client] the kind of tables is '" + std::string(to_string(kind)) + "'"));
  }
  EXPECT_EQ(said(std::make_shared<Cache>(pool, "tables", 0.0)), "");
}

TEST_P(ReclaimClientTest, IsMeasuredAndNotBelieved) {
  CachingAllocator pool(memory(), {.budget = 2 * page});
  const auto liar = std::make_shared<Cache>(pool, "liar", 0.0);
  pool.add_client(liar);
  liar->exaggeration = 3 * page;
  void* block = allocate(pool, page);
  void* other = allocate(pool, page);
  EXPECT_THAT(refusal(pool, page), ::testing::AllOf(HasSubstr("; liar 0 B in "), HasSubstr("; liar, all of it 0 B in "),
                                                    HasSubstr("\n  liar claimed to free 6.00 MiB, but freed 0 B")));
  EXPECT_EQ(liar->asked(), 2u) << "for what is needed, and for all of it";
  deallocate(pool, other, page);
  liar->keep(page);
  other = allocate(pool, page);
  EXPECT_EQ(pool.statistics().stages[static_cast<std::size_t>(ReclaimStageId::derived_cache)].bytes, page);
  deallocate(pool, other, page);
  deallocate(pool, block, page);
}

TEST_P(ReclaimClientTest, IsSkippedAndNamedWhenItThrows) {
  CachingAllocator pool(memory(), {.budget = 3 * page});
  const auto broken = std::make_shared<Cache>(pool, "broken", 0.0);
  const auto sound = std::make_shared<Cache>(pool, "sound", 1.0);
  for (const auto& client : {broken, sound}) {
    pool.add_client(client);
    client->keep(page);
  }
  broken->while_reclaiming = [] { throw std::runtime_error("no room on the disk\nbut for a byte"); };
  void* block = allocate(pool, 2 * page);
  EXPECT_EQ(sound->estimate(), 0u) << "the next one was asked";
  EXPECT_EQ(broken->estimate(), page) << "nothing of it is lost";
  EXPECT_EQ(broken->asked(), 1u) << "it was not asked for all of it too";
  EXPECT_EQ(pool.statistics().num_client_failures, 1u);
  const std::string failure = "broken failed: no room on the disk";
  EXPECT_THAT(refusal(pool, page), HasSubstr("\n  " + failure));
  try {
    pool.set_budget(2 * page);
    FAIL() << "three pages are in use";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), ::testing::EndsWith("; " + failure));
  }
  pool.trim();
  broken->while_reclaiming = [] { throw 1; };
  EXPECT_THAT(refusal(pool, page), HasSubstr("\n  broken failed: an exception other than std::exception"));
  broken->while_reclaiming = [] {};
  deallocate(pool, allocate(pool, page), page);
  deallocate(pool, block, 2 * page);
  expect_invariants(pool);
}

class CallbackTest : public PoolTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CallbackTest, devices, device_name);

TEST_P(CallbackTest, IsAskedLastAndMayMakeRoom) {
  constexpr std::size_t wanted = 2 * page + page / 2;
  CachingAllocator pool(memory(), {.budget = 3 * page});
  const auto client = std::make_shared<Cache>(pool, "client", 1.0);
  pool.add_client(client);
  // In the second half of a page: the request fits beside it, but neither before nor after it.
  void* front = allocate(pool, page / 2);
  void* mine = allocate(pool, page / 2);
  deallocate(pool, front, page / 2);
  client->keep(page);
  std::vector<int> attempts;
  pool.set_out_of_memory_callback([&](std::size_t bytes, int attempt) {
    EXPECT_EQ(bytes, wanted);
    EXPECT_EQ(client->estimate(), 0u);
    attempts.push_back(attempt);
    // The first attempt frees nothing; the second frees a block.
    if (attempt == 1) deallocate(pool, mine, page / 2);
    return true;
  });
  void* block = allocate(pool, wanted);
  EXPECT_THAT(attempts, ElementsAre(0, 1));
  deallocate(pool, block, wanted);
  expect_invariants(pool);
}

TEST_P(CallbackTest, IsAskedEightTimesAtMost) {
  CachingAllocator pool(memory(), {.budget = page});
  int attempts = 0;
  pool.set_out_of_memory_callback([&](std::size_t, int) {
    ++attempts;
    return true;
  });
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  EXPECT_EQ(attempts, 8);
  attempts = 0;
  pool.set_out_of_memory_callback([&](std::size_t, int) { return ++attempts < 3; });
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  EXPECT_EQ(attempts, 3);
  attempts = 0;
  const auto result =
      pool.try_allocate({.bytes = 2 * page, .alignment = 64, .stream = stream_of(pool), .may_reclaim = false});
  EXPECT_TRUE(std::holds_alternative<std::string>(result));
  EXPECT_EQ(attempts, 0);
}

// Pool memory that its owner can spare.
class Spare {
 public:
  Spare(CachingAllocator& pool, std::size_t bytes) : pool_(pool), block_(allocate(pool, bytes)), bytes_(bytes) {}
  ~Spare() { deallocate(pool_, block_, bytes_); }
  Spare(const Spare&) = delete;
  Spare& operator=(const Spare&) = delete;

 private:
  CachingAllocator& pool_;
  void* block_;
  std::size_t bytes_;
};

TEST_P(CallbackTest, KeepsItsState) {
  CachingAllocator pool(memory(), {.budget = page});
  std::vector<int> calls;
  pool.set_out_of_memory_callback([&, call = 0](std::size_t, int) mutable {
    calls.push_back(++call);
    return call < 3;
  });
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  EXPECT_THAT(calls, ElementsAre(1, 2, 3));
}

TEST_P(CallbackTest, MayOwnTheMemoryItFrees) {
  CachingAllocator pool(memory(), {.budget = 2 * page});
  pool.set_out_of_memory_callback([spare = std::make_shared<Spare>(pool, page)](std::size_t, int) mutable {
    return std::exchange(spare, nullptr) != nullptr;
  });
  void* block = allocate(pool, 2 * page);
  EXPECT_THROW(allocate(pool, page), OutOfMemoryError) << "it has nothing left";
  deallocate(pool, block, 2 * page);
  expect_invariants(pool);
}

TEST_P(CallbackTest, FreesItsMemoryWhenReplacedAndWithThePool) {
  CachingAllocator pool(memory());
  const auto callback_with_a_page = [&] {
    return [spare = std::make_shared<Spare>(pool, page)](std::size_t, int) { return spare == nullptr; };
  };
  pool.set_out_of_memory_callback(callback_with_a_page());
  pool.set_out_of_memory_callback(callback_with_a_page());
  EXPECT_EQ(pool.statistics().allocated_bytes.current, page);
  pool.set_out_of_memory_callback({});
  EXPECT_EQ(pool.statistics().allocated_bytes.current, 0u);
  pool.set_out_of_memory_callback(callback_with_a_page());
}

TEST_P(CallbackTest, MayAllocateWithoutACallToItself) {
  CachingAllocator pool(memory(), {.budget = 2 * page});
  void* kept = allocate(pool, page);
  int depth = 0;
  int refused = 0;
  pool.set_out_of_memory_callback([&](std::size_t, int) {
    EXPECT_EQ(depth++, 0);
    try {
      allocate(pool, 2 * page);
    } catch (const OutOfMemoryError&) {
      ++refused;
    }
    deallocate(pool, allocate(pool, page), page);
    --depth;
    return false;
  });
  EXPECT_THROW(allocate(pool, 2 * page), OutOfMemoryError);
  EXPECT_EQ(refused, 1);
  deallocate(pool, kept, page);
  expect_invariants(pool);
}

}  // namespace
}  // namespace poolgrad::testing
