// A group of ranks within one process: the contract of communicators on threads and in turns, and promises of this
// group alone.
#include "attention/ring/communicator.h"

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <thread>

#include "tensor/generator.h"
#include "tests/attention/ring/communicator_contract.h"

namespace poolgrad::attention::testing_support {
namespace {

struct InThisProcess {
  static int most_ranks() { return 8; }
  static int here(int ranks) { return ranks; }
  static std::string told(int, const std::string& reason) { return reason; }
};
struct OnThreads : InThisProcess {
  static void run(int ranks, int steps, const std::function<void(Communicator&, int)>& body) {
    LocalGroup(ranks, LocalGroup::Progress::threads).run(steps, body);
  }
};
struct InTurns : InThisProcess {
  static void run(int ranks, int steps, const std::function<void(Communicator&, int)>& body) {
    LocalGroup(ranks, LocalGroup::Progress::turns).run(steps, body);
  }
};
using Groups = ::testing::Types<OnThreads, InTurns>;
INSTANTIATE_TYPED_TEST_SUITE_P(LocalGroup, CommunicatorContract, Groups);

void exchange_with_next(Communicator& c, Mailbox& mine) {
  mine.out = bytes_of_rank(c.rank(), 16), mine.in.assign(16, 0);
  mine.transfers.push_back(c.start({}, beyond(c, 1), message(mine.out), beyond(c, -1), message(mine.in)));
}

TEST(LocalGroup, RefusesZeroRanks) {
  EXPECT_EQ(error_of<ValueError>([] { LocalGroup{0}; }), "[LocalGroup] needs at least one rank, got 0");
}

TEST(LocalGroup, TakesTurnsOnTheCallersThreadStepByStep) {
  LocalGroup group(3, LocalGroup::Progress::turns);
  std::vector<int> order;
  group.run(2, [&, caller = std::this_thread::get_id()](Communicator& c, int step) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(10 * step + c.rank());
  });
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 10, 11, 12));
}

TEST(LocalGroup, RanksDrawTheSameNumbersAndTheCallerContinues) {
  for (const auto progress : {LocalGroup::Progress::threads, LocalGroup::Progress::turns}) {
    manual_seed(5);
    default_generator().take(7);
    LocalGroup group(3, progress);
    std::vector<std::vector<kernels::RandomKey>> drawn(3);
    for (int run = 0; run < 2; ++run)
      group.run(2, [&](Communicator& c, int) {
        drawn[static_cast<std::size_t>(c.rank())].push_back(default_generator().take(10));
      });
    for (const std::vector<kernels::RandomKey>& keys : drawn)
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(keys.at(i).seed, 5u);
        EXPECT_EQ(keys[i].use, default_generator().state().use);
        EXPECT_EQ(keys[i].offset, 7 + 10 * i) << "the second run goes on";
      }
    EXPECT_EQ(default_generator().state().offset, 47u);
  }
}

TEST(LocalGroup, WorksAgainAfterAFailure) {
  for (const auto progress : {LocalGroup::Progress::threads, LocalGroup::Progress::turns}) {
    LocalGroup group(3, progress);
    std::vector<Mailbox> left(3);  // transfers of the failed run are destroyed during the next one
    const auto fail = [&](Communicator& c, int step) {
      if (step == 1 && c.rank() == 1) throw ValueError("no");
      if (step == 0 && c.rank() != 2) exchange_with_next(c, left[static_cast<std::size_t>(c.rank())]);
    };
    EXPECT_THROW(group.run(2, fail), ValueError);
    std::vector<Mailbox> mail(3);
    group.run(2, [&](Communicator& c, int step) {
      Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
      if (step == 0) {
        left[static_cast<std::size_t>(c.rank())].transfers.clear();
        exchange_with_next(c, mine);
      } else {
        mine.transfers[0]->wait();
        EXPECT_EQ(mine.in, bytes_of_rank(beyond(c, -1), 16));
      }
    });
  }
}

TEST(LocalGroup, TellsTheOthersWhichRankFailed) {
  LocalGroup group(2);
  std::vector<Mailbox> mail(2);
  std::string heard;
  const auto body = [&](Communicator& c, int) {
    if (c.rank() == 1) throw ValueError("[matmul] no such thing");
    heard = error_of<Error>([&] {  // at the first of the two after the failure
      exchange_with_next(c, mail[0]);
      mail[0].transfers[0]->wait();
    });
  };
  EXPECT_THROW(group.run(1, body), ValueError);
  EXPECT_EQ(heard, "[exchange] rank 1 failed: [matmul] no such thing");
}

TEST(LocalGroup, ReportsWhyAFailedRankAbandonedAnExchange) {
  for (const bool says_why : {true, false}) {
    LocalGroup group(3);
    std::vector<Mailbox> mail(2);
    std::string heard;
    const auto body = [&](Communicator& c, int) {
      if (c.rank() == 0)
        heard = error_of<Error>([&] { c.start({}, 1, message(mail[0].out), 1, message(mail[0].in))->wait(); });
      if (c.rank() != 1) return;
      try {
        const auto under_way = c.start({}, 2, message(mail[1].out), 2, message(mail[1].in));
        throw ValueError("no such thing");
      } catch (const ValueError&) {
        if (says_why) throw;
      }
    };
    if (says_why)
      EXPECT_THROW(group.run(1, body), ValueError);
    else
      group.run(1, body);
    EXPECT_EQ(heard, says_why ? "[exchange] rank 1 failed: no such thing" : "[exchange] rank 1 gave up an exchange");
  }
}

TEST(LocalGroup, ReportsAnExchangeAbandonedByAUserThread) {
  LocalGroup group(3);
  std::vector<Mailbox> mail(2);
  const auto first = group.communicator(0), second = group.communicator(1);
  std::promise<std::string> said;
  std::future<std::string> heard = said.get_future();
  const std::jthread waits([&] {
    said.set_value(error_of<Error>([&] { first->start({}, 1, message(mail[0].out), 1, message(mail[0].in))->wait(); }));
  });
  std::jthread([&] {
    try {
      const auto under_way = second->start({}, 2, message(mail[1].out), 2, message(mail[1].in));
      throw ValueError("no such thing");
    } catch (const ValueError&) {
      // The thread ends without an error report.
    }
  }).join();
  EXPECT_EQ(heard.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "rank 0 waits for ever";
  EXPECT_THROW(second->start({}, 2, {}, 2, {}), Error);  // would end the wait of rank 0 in any case
  EXPECT_EQ(heard.get(), "[exchange] rank 1 gave up an exchange");
}

/// The rank then waits by other means for the rank that waits for it.
TEST(LocalGroup, ReportsAnExchangeAbandonedByACaughtException) {
  for (const int late : {0, 300}) {
    LocalGroup group(2);
    std::vector<Mailbox> mail(2);
    std::promise<std::string> said;
    std::future<std::string> heard = said.get_future();
    group.run(1, [&](Communicator& rank, int) {
      if (rank.rank() == 0) {
        said.set_value(
            error_of<Error>([&] { rank.start({}, 1, message(mail[0].out), 1, message(mail[0].in))->wait(); }));
        return;
      }
      try {
        const auto under_way = rank.start({}, 0, message(mail[1].out), 1, {});
        std::this_thread::sleep_for(std::chrono::milliseconds(late));  // rank 0 may already wait
        throw ValueError("no such thing");
      } catch (const ValueError&) {
        EXPECT_EQ(heard.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "rank 0 waits for ever";
      }
    });
    EXPECT_EQ(heard.get(), "[exchange] rank 1 gave up an exchange");
  }
}

TEST(LocalGroup, ReportsAFailureWhileAnotherMessageIsCopied) {
  constexpr std::size_t size = std::size_t{48} << 20;  // copying takes milliseconds
  std::vector<Mailbox> mail(2);
  mail[0].out.assign(size, 7), mail[0].in.resize(1), mail[1].in.resize(size);
  for (int round = 0; round < 5; ++round) {
    LocalGroup group(3);
    std::latch offered(1), copying(1);
    std::string heard;
    const auto body = [&](Communicator& c, int) {
      if (c.rank() == 0) {  // sends to rank 1, which receives, and receives from rank 2, which fails meanwhile
        const auto transfer = c.start({}, 1, message(mail[0].out), 2, message(mail[0].in));
        offered.count_down();
        heard = error_of<Error>([&] { transfer->wait(); });
      } else if (c.rank() == 1) {
        offered.wait();
        copying.count_down();
        c.start({}, 2, {}, 0, message(mail[1].in));
      } else {
        copying.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        throw ValueError("no");
      }
    };
    EXPECT_EQ(error_of<ValueError>([&] { group.run(1, body); }), "no");
    EXPECT_THAT(heard, ::testing::AnyOf("[exchange] rank 2 failed: no", "[exchange] rank 1 gave up an exchange"));
  }
}

TEST(LocalGroup, DetectsAMessageThatCannotArrive) {
  LocalGroup threads(3), turns(3, LocalGroup::Progress::turns);
  std::vector<Mailbox> mail(3);
  const auto body = [&](Communicator& c, int) {
    Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
    if (c.rank() == 2) return;
    exchange_with_next(c, mine);
    mine.transfers.back()->wait();
  };
  EXPECT_EQ(error_of<Error>([&] { threads.run(1, body); }),
            "[exchange] every rank waits: rank 0 for rank 2, which has ended, rank 1 for rank 2, which has ended");
  EXPECT_EQ(
      error_of<Error>([&] { turns.run(1, body); }),
      "[exchange] rank 0 waits for rank 2, which has not started: every rank must start an exchange before any rank "
      "waits");
}

TEST(LocalGroup, DoesNotWriteMemoryOfAnAbandonedExchange) {
  LocalGroup group(2);
  Mailbox zero, one;
  zero.in.assign(16, 1);
  { const auto given_up = group.communicator(0)->start({}, 1, message(zero.out), 1, message(zero.in)); }
  one.out.assign(16, 2);
  EXPECT_EQ(error_of<Error>([&] { group.communicator(1)->start({}, 0, message(one.out), 0, message(one.in)); }),
            "[exchange] rank 0 gave up an exchange");
  EXPECT_THAT(zero.in, ::testing::Each(1));
}

TEST(LocalGroup, CommunicatorsOutliveTheGroupAndServeUserThreads) {
  std::vector<std::shared_ptr<Communicator>> ranks;
  {
    LocalGroup group(4);
    for (int r = 0; r < 4; ++r) ranks.push_back(group.communicator(r));
  }
  std::vector<std::jthread> threads;
  std::atomic<int> right{0};
  for (const auto& rank : ranks)
    threads.emplace_back([&right, &c = *rank] {
      for (int round = 0; round < 50; ++round) {
        Mailbox mine;
        exchange_with_next(c, mine);
        mine.transfers[0]->wait();
        right += mine.in == bytes_of_rank(beyond(c, -1), 16);
      }
    });
  threads.clear();
  EXPECT_EQ(right, 200);
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
