// For all clients and callbacks, an allocation ends with a block or with a refusal.
#include <functional>

#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {
namespace {

// A client whose methods call functions of the test.
class Client : public ReclaimClient {
 public:
  std::function<std::size_t()> estimates = [] { return page; };
  std::function<std::size_t(std::size_t)> reclaims = [](std::size_t) { return std::size_t{0}; };
  double price = 0;
  int asked = 0;

  std::string name() const override { return "client"; }
  double price_per_byte() const override { return price; }
  std::size_t estimate() override { return estimates(); }
  std::size_t reclaim(std::size_t bytes) override {
    ++asked;
    return reclaims(bytes);
  }
};

class ReclaimLiveness : public PoolTest {
 protected:
  ReclaimLiveness() : pool_(memory(), {.budget = 4 * page}), client_(std::make_shared<Client>()) {
    pool_.add_client(client_);
    for (void*& block : blocks_) block = allocate(pool_, page);
  }
  ~ReclaimLiveness() override {
    for (void* block : blocks_) {
      if (block != nullptr) deallocate(pool_, block, page);
    }
    EXPECT_EQ(pool_.statistics().allocated_bytes.current, 0u);
    expect_invariants(pool_);
  }
  // The pool is full: returns whether one more page can be allocated, and frees it.
  bool can_allocate() {
    const auto result = pool_.try_allocate({.bytes = page, .stream = stream_of(pool_)});
    if (void* const* pointer = std::get_if<void*>(&result)) deallocate(pool_, *pointer, page);
    return std::holds_alternative<void*>(result);
  }
  std::size_t give_one_back() {
    for (void*& block : blocks_) {
      if (block == nullptr) continue;
      deallocate(pool_, block, page);
      block = nullptr;
      return page;
    }
    return 0;
  }

  CachingAllocator pool_;
  std::shared_ptr<Client> client_;
  std::array<void*, 4> blocks_{};
};
INSTANTIATE_TEST_SUITE_P(Devices, ReclaimLiveness, devices, device_name);

TEST_P(ReclaimLiveness, EndsWithAClientThatClaimsBytesItDoesNotFree) {
  client_->reclaims = [](std::size_t bytes) { return bytes; };
  EXPECT_FALSE(can_allocate());
  EXPECT_GT(client_->asked, 0);
  EXPECT_LT(client_->asked, 1000);
}

TEST_P(ReclaimLiveness, EndsWithAClientThatClaimsAllBytes) {
  client_->estimates = [] { return SIZE_MAX; };
  client_->reclaims = [](std::size_t) { return SIZE_MAX; };
  EXPECT_FALSE(can_allocate());
}

TEST_P(ReclaimLiveness, EndsWithAClientThatNeverFreesItsEstimate) {
  EXPECT_FALSE(can_allocate());
  EXPECT_FALSE(can_allocate());
  EXPECT_LT(client_->asked, 1000);
}

TEST_P(ReclaimLiveness, LetsAClientAllocateLessThanItFrees) {
  client_->reclaims = [this](std::size_t) {
    give_one_back();
    give_one_back();
    blocks_[0] = allocate(pool_, page);
    return page;
  };
  EXPECT_TRUE(can_allocate());
  EXPECT_LE(pool_.statistics().reserved_bytes.peak, 4 * page);
}

TEST_P(ReclaimLiveness, DoesNotAskAClientForItsOwnAllocations) {
  int depth = 0;
  int deepest = 0;
  client_->reclaims = [&](std::size_t) {
    deepest = std::max(deepest, ++depth);
    EXPECT_FALSE(can_allocate());
    --depth;
    return std::size_t{0};
  };
  EXPECT_FALSE(can_allocate());
  EXPECT_EQ(deepest, 1);
}

TEST_P(ReclaimLiveness, SurvivesAClientThatThrows) {
  client_->reclaims = [](std::size_t) -> std::size_t { throw std::runtime_error("no"); };
  EXPECT_FALSE(can_allocate());
  client_->reclaims = [this](std::size_t) { return give_one_back(); };
  EXPECT_TRUE(can_allocate());
}

TEST_P(ReclaimLiveness, SurvivesAClientThatTrimsAndReadsStatistics) {
  client_->reclaims = [this](std::size_t) {
    pool_.trim();
    pool_.statistics();
    pool_.snapshot();
    return give_one_back();
  };
  EXPECT_TRUE(can_allocate());
}

TEST_P(ReclaimLiveness, SurvivesAClientThatAddsClientsAndChangesTheBudget) {
  std::vector<std::shared_ptr<Client>> others;
  client_->reclaims = [&](std::size_t) {
    others.push_back(std::make_shared<Client>());
    pool_.add_client(others.back());
    pool_.set_budget(5 * page);
    return page;
  };
  EXPECT_TRUE(can_allocate());
  EXPECT_EQ(pool_.budget(), 5 * page);
}

TEST_P(ReclaimLiveness, DoesNotAskForRequestsThatMayNotReclaim) {
  client_->reclaims = [this](std::size_t) { return give_one_back(); };
  const auto result = pool_.try_allocate({.bytes = page, .stream = stream_of(pool_), .may_reclaim = false});
  EXPECT_TRUE(std::holds_alternative<std::string>(result));
  EXPECT_EQ(client_->asked, 0);
}

TEST_P(ReclaimLiveness, DoesNotAskClientsAboveThePriority) {
  client_->price = 2.0;
  client_->reclaims = [this](std::size_t) { return give_one_back(); };
  const auto cheap = pool_.try_allocate({.bytes = page, .stream = stream_of(pool_), .priority = 1.0});
  EXPECT_TRUE(std::holds_alternative<std::string>(cheap));
  EXPECT_EQ(client_->asked, 0);
  EXPECT_TRUE(can_allocate());
  EXPECT_GT(client_->asked, 0);
}

TEST_P(ReclaimLiveness, AsksTheCallbackOnlyAFewTimes) {
  client_->estimates = [] { return std::size_t{0}; };
  std::vector<int> attempts;
  pool_.set_out_of_memory_callback([&](std::size_t bytes, int attempt) {
    EXPECT_GE(bytes, page);
    attempts.push_back(attempt);
    return true;
  });
  EXPECT_FALSE(can_allocate());
  EXPECT_THAT(attempts, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_P(ReclaimLiveness, TriesAgainAfterACallbackThatHelped) {
  client_->estimates = [] { return std::size_t{0}; };
  int calls = 0;
  pool_.set_out_of_memory_callback([&](std::size_t, int attempt) {
    ++calls;
    if (attempt == 2) give_one_back();
    return true;
  });
  EXPECT_TRUE(can_allocate());
  EXPECT_EQ(calls, 3);
}

TEST_P(ReclaimLiveness, FailsAtOnceWhenTheCallbackDeclines) {
  int calls = 0;
  pool_.set_out_of_memory_callback([&](std::size_t, int) { return ++calls, false; });
  EXPECT_FALSE(can_allocate());
  EXPECT_EQ(calls, 1);
}

TEST_P(ReclaimLiveness, DoesNotCallBackFromWithinTheCallback) {
  int depth = 0;
  int deepest = 0;
  pool_.set_out_of_memory_callback([&](std::size_t, int) {
    deepest = std::max(deepest, ++depth);
    EXPECT_FALSE(can_allocate());
    --depth;
    return false;
  });
  EXPECT_FALSE(can_allocate());
  EXPECT_EQ(deepest, 1);
}

TEST_P(ReclaimLiveness, SurvivesACallbackThatThrows) {
  pool_.set_out_of_memory_callback([](std::size_t, int) -> bool { throw std::runtime_error("no"); });
  try {
    EXPECT_FALSE(can_allocate());
  } catch (const std::runtime_error&) {
  }
  give_one_back();
  EXPECT_TRUE(can_allocate());
}

}  // namespace
}  // namespace poolgrad::testing
