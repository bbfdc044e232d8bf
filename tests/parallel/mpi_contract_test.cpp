// The contract of communicators between processes, and the further guarantees of MpiWorld.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/parallel/mpi_support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using ::testing::MatchesRegex;

INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, CommunicatorContract, Group);

std::unique_ptr<attention::Transfer> send_on(Communicator& c, Mailbox& mine, std::size_t bytes, int distance = 1) {
  mine.out = bytes_of_rank(c.rank(), bytes), mine.in.assign(bytes, 0);
  return c.start({}, beyond(c, distance), message(mine.out), beyond(c, -distance), message(mine.in));
}

/// Expects that a world works: every rank receives from the previous one.
void expect_to_work(MpiWorld& world) {
  world.run([&] {
    Communicator& c = *world.communicator();
    Mailbox mine;
    send_on(c, mine, 100000)->wait();
    EXPECT_EQ(mine.in, bytes_of_rank(beyond(c, -1), 100000));
  });
}

TEST(MpiWorld, SendsLargeMessagesInPieces) {
  MpiWorld world({.piece = 1000});
  for (const std::size_t bytes : {1u, 999u, 1000u, 1001u, 3000u, 123456u})
    world.run([&] {
      Communicator& c = *world.communicator();
      Mailbox mine, other;
      const auto first = send_on(c, mine, bytes), second = send_on(c, other, 3 * bytes);
      second->wait(), first->wait();
      EXPECT_EQ(mine.in, bytes_of_rank(beyond(c, -1), bytes));
      EXPECT_EQ(other.in, bytes_of_rank(beyond(c, -1), 3 * bytes));
    });
}

TEST(MpiWorld, RefusesASecondWorld) {
  const MpiWorld world;
  EXPECT_EQ(error_of<Error>([] { MpiWorld second; }), "[mpi] there is an MpiWorld in this process already");
}

TEST(MpiWorld, RefusesInvalidOptions) {
  EXPECT_EQ(error_of<ValueError>([] { MpiWorld({.timeout = -1}); }), "[mpi] timeout must be 0 s or more, but is -1");
  EXPECT_EQ(error_of<ValueError>([] { MpiWorld({.grace = 0}); }), "[mpi] grace must be more than 0 s, but is 0");
  EXPECT_EQ(error_of<ValueError>([] { MpiWorld({.piece = std::int64_t{1} << 31}); }),
            "[mpi] a piece must have 1 to 2147483647 bytes, but has 2147483648");
  setenv("POOLGRAD_MPI_TIMEOUT", "soon", 1);
  EXPECT_EQ(error_of<ValueError>([] { MpiWorld(); }),
            "[mpi] POOLGRAD_MPI_TIMEOUT must be a number of seconds, but is soon");
  unsetenv("POOLGRAD_MPI_TIMEOUT");
  MpiWorld world;
  EXPECT_EQ(error_of<ValueError>([&] { world.split(-1); }), "[mpi] a color must be at least 0, but is -1");
  expect_to_work(world);
}

TEST(MpiWorld, GroupsSeparateMessagesAndNameWorldRanks) {
  NEEDS_RANKS(4);
  MpiWorld world;
  const auto all = world.communicator(), half = world.split(rank() % 2);
  EXPECT_EQ(half->rank(), rank() / 2);
  EXPECT_EQ(half->size(), (ranks() + 1 - rank() % 2) / 2);
  world.run([&] {
    Mailbox mine, ours;
    const auto everyone = send_on(*all, mine, 50), few = send_on(*half, ours, 50);
    few->wait(), everyone->wait();
    EXPECT_EQ(mine.in, bytes_of_rank(beyond(*all, -1), 50));
    EXPECT_EQ(ours.in, bytes_of_rank(beyond(*half, -1), 50));
  });
  EXPECT_EQ(error_of<Error>([&] {
              world.run([&] {
                if (rank() % 2 == 0 || half->rank() > 1) return;
                Mailbox mine;
                mine.out.resize(half->rank() == 0 ? 9 : 7), mine.in.resize(7);
                half->start({}, 1 - half->rank(), message(mine.out), 1 - half->rank(), message(mine.in))->wait();
              });
            }),
            "[exchange] rank 1 sends 9 bytes to rank 3, which expects 7");
  expect_to_work(world);
}

TEST(MpiWorld, DoesNotWriteMemoryOfAnAbandonedExchange) {
  NEEDS_RANKS(2);
  constexpr std::size_t large = std::size_t{1} << 20;  // more than MPI buffers: in transit when abandoned
  MpiWorld world;
  for (const int first : {0, 1}) {
    Mailbox mine;
    EXPECT_EQ(error_of<Error>([&] {
                world.run([&] {
                  Communicator& c = *world.communicator();
                  if (c.rank() > 1) return;
                  mine.out = bytes_of_rank(c.rank(), large), mine.in.assign(large, 0);
                  if (c.rank() != first) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  auto transfer = c.start({}, 1 - c.rank(), message(mine.out), 1 - c.rank(), message(mine.in));
                  if (c.rank() == 1) return transfer->wait();
                  transfer.reset();
                  mine.out.assign(large, 1), mine.in.assign(large, 1);
                });
              }),
              "[exchange] rank 0 gave up an exchange");
    if (rank() == 0) {
      EXPECT_TRUE(std::ranges::all_of(mine.in, [](std::uint8_t byte) { return byte == 1; }));
    }
    mine = {};
    expect_to_work(world);
  }
}

TEST(MpiWorld, ReportsAFailureToAllRanksDuringMessages) {
  NEEDS_RANKS(2);
  constexpr std::size_t large = std::size_t{1} << 19;
  MpiWorld world;
  for (int culprit = 0; culprit < std::min(ranks(), 3); ++culprit) {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(error_of<Error>([&] {
                world.run([&] {
                  Communicator& c = *world.communicator();
                  std::vector<Mailbox> mail(3);
                  for (Mailbox& mine : mail) mine.transfers.push_back(send_on(c, mine, large));
                  mail[0].transfers[0]->wait();
                  if (c.rank() == culprit) throw ValueError("out of luck");
                  for (Mailbox more;;) send_on(c, more, large)->wait();
                });
              }),
              Group::told(culprit, "out of luck"));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(8));
    expect_to_work(world);
  }
}

TEST(MpiWorld, ReportsAFailureToIdleRanksAtTheEnd) {
  NEEDS_RANKS(2);
  MpiWorld world;
  EXPECT_EQ(error_of<Error>([&] {
              world.run([&] {
                if (rank() == 1) throw IndexError("no");
              });
            }),
            Group::told(1, "no"));
  expect_to_work(world);
}

TEST(MpiWorld, EveryFailedRankThrowsItsOwnException) {
  MpiWorld world;
  for (int round = 0; round < 3; ++round) {
    const std::string own = "rank " + std::to_string(rank()) + " is out of luck";
    EXPECT_EQ(error_of<ValueError>([&] {
                world.run([&] {
                  Mailbox mine;
                  try {
                    mine.transfers.push_back(send_on(*world.communicator(), mine, 1000));
                  } catch (const Error&) {  // another rank failed first
                  }
                  throw ValueError(own);
                });
              }),
              own);
    expect_to_work(world);
  }
}

TEST(MpiWorld, RefusesToWaitForTransfersOfAFailedRun) {
  NEEDS_RANKS(2);
  MpiWorld world;
  Mailbox mine;
  world.run([&] { mine.transfers.push_back(send_on(*world.communicator(), mine, 8)); });
  EXPECT_THROW(world.run([&] {
    if (rank() == 0) throw ValueError("no");
  }),
               Error);
  EXPECT_EQ(error_of<Error>([&] { mine.transfers[0]->wait(); }),
            "[exchange] the group has restarted since this exchange began");
  mine.transfers.clear();
  expect_to_work(world);
}

TEST(MpiWorld, ItsCommunicatorsRefuseAfterItsEnd) {
  Mailbox mine;
  std::shared_ptr<Communicator> left;
  {
    MpiWorld world;
    left = world.communicator();
    world.run([&] { mine.transfers.push_back(send_on(*left, mine, 8)); });
  }
  mine.transfers.clear();
  EXPECT_EQ(error_of<Error>([&] { left->start({}, 0, {}, 0, {}); }),
            "[exchange] the MpiWorld of this communicator has ended");
}

TEST(MpiWorld, DetectsAnEndedRank) {
  NEEDS_RANKS(2);
  MpiWorld world;
  EXPECT_EQ(error_of<Error>([&] {
              world.run([&] {
                Mailbox mine;
                if (rank() == 0) send_on(*world.communicator(), mine, 8)->wait();
              });
            }),
            "[exchange] rank 0 waits for rank " + std::to_string(ranks() - 1) + ", which has ended");
  expect_to_work(world);
}

TEST(MpiWorld, NamesWaitingRanksAfterTheTimeout) {
  NEEDS_RANKS(2);
  MpiWorld world({.timeout = 0.3});
  const std::string error = error_of<Error>([&] {
    world.run([&] {  // every rank expects a message that no rank sends
      Communicator& c = *world.communicator();
      std::vector<std::uint8_t> in(8);
      const int next = beyond(c, 1);
      if (c.rank() > 0) c.start({}, c.rank(), {}, next, {in.data(), 8})->wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      c.start({}, c.rank(), {}, next, {in.data(), 8})->wait();
    });
  });
  EXPECT_THAT(error, MatchesRegex("\\[exchange\\] rank [0-9] has waited 0.3 s for rank [0-9](; rank [0-9] "
                                  "(computes|waits for rank [0-9]))+"));
  expect_to_work(world);
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
