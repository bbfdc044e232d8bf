// The contract of communicators (attention/ring/communicator.h) as a test suite. A traits class T says how ranks start:
//   static void run(int ranks, int steps, const std::function<void(Communicator&, int step)>& body)
//     calls body for every rank and step as LocalGroup::run() describes, and rethrows the exception of a rank;
//   static int most_ranks()       the largest number of ranks: tests of more are skipped;
//   static int here(int ranks)    the number of a group's ranks in this process;
//   static std::string told(int culprit, const std::string& reason)  the message of run() if a rank throws `reason`.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "attention/ring/communicator.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention::testing_support {

using poolgrad::testing_support::error_of;

/// One rank's memory; ranks never touch another's.
struct Mailbox {
  std::vector<std::uint8_t> out, in;
  std::vector<std::unique_ptr<Transfer>> transfers;  // destroyed before the buffers
};

inline Message message(std::vector<std::uint8_t>& bytes) {
  return {bytes.data(), static_cast<std::int64_t>(bytes.size())};
}
inline std::uint8_t pattern(int rank, std::size_t i) {
  return static_cast<std::uint8_t>(rank * 31 + static_cast<int>(i % 23));
}
inline std::vector<std::uint8_t> bytes_of_rank(int rank, std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(rank, i);
  return bytes;
}
inline int beyond(const Communicator& c, int distance) {
  return ((c.rank() + distance) % c.size() + c.size()) % c.size();
}

template <class T>
class CommunicatorContract : public ::testing::Test {};
TYPED_TEST_SUITE_P(CommunicatorContract);

TYPED_TEST_P(CommunicatorContract, KnowsItsRankAndSize) {
  for (const int ranks : {1, 2, 5}) {
    if (ranks > TypeParam::most_ranks()) continue;
    std::vector<int> seen(static_cast<std::size_t>(ranks));
    std::mutex mutex;
    TypeParam::run(ranks, 1, [&](Communicator& c, int) {
      EXPECT_EQ(c.size(), ranks);
      const std::lock_guard lock(mutex);
      seen.at(static_cast<std::size_t>(c.rank())) += 1;
    });
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), TypeParam::here(ranks));
    EXPECT_THAT(seen, ::testing::Each(::testing::Le(1)));
  }
}

TYPED_TEST_P(CommunicatorContract, SendsMessagesOfAnySizeOverAnyDistance) {
  for (const int ranks : {1, 2, 3, 8})
    for (const int distance : {0, 1, 2, ranks - 1}) {
      if (ranks > TypeParam::most_ranks()) continue;
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{777}, std::size_t{100000}}) {
        std::vector<Mailbox> mail(static_cast<std::size_t>(ranks));
        TypeParam::run(ranks, 2, [&](Communicator& c, int step) {
          Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
          if (step == 0) {
            mine.out = bytes_of_rank(c.rank(), size), mine.in.resize(size);
            mine.transfers.push_back(
                c.start({}, beyond(c, distance), message(mine.out), beyond(c, -distance), message(mine.in)));
          } else {
            mine.transfers[0]->wait();
            EXPECT_EQ(mine.in, bytes_of_rank(beyond(c, -distance), size)) << ranks << " ranks, " << distance << " on";
            EXPECT_EQ(mine.out, bytes_of_rank(c.rank(), size));
          }
        });
      }
    }
}

TYPED_TEST_P(CommunicatorContract, PassesEveryMessageAroundTheRing) {
  constexpr int ranks = 4;
  if (TypeParam::most_ranks() < ranks) GTEST_SKIP() << "needs 4 ranks";
  std::vector<Mailbox> mail(ranks);
  TypeParam::run(ranks, ranks + 1, [&](Communicator& c, int step) {
    Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
    if (step == 0) mine.out = bytes_of_rank(c.rank(), 64), mine.in.resize(64);
    if (step > 0) {
      mine.transfers.back()->wait();
      EXPECT_EQ(mine.in, bytes_of_rank(beyond(c, -step), 64));
      mine.out.swap(mine.in);
    }
    if (step < ranks)
      mine.transfers.push_back(c.start({}, beyond(c, 1), message(mine.out), beyond(c, -1), message(mine.in)));
  });
}

TYPED_TEST_P(CommunicatorContract, KeepsTheOrderOfMessagesBetweenTwoRanks) {
  constexpr int ranks = 3, count = 5;
  if (TypeParam::most_ranks() < ranks) GTEST_SKIP() << "needs 3 ranks";
  std::vector<std::vector<Mailbox>> mail(ranks);
  TypeParam::run(ranks, 2, [&](Communicator& c, int step) {
    std::vector<Mailbox>& mine = mail[static_cast<std::size_t>(c.rank())];
    if (step == 0) mine.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (step == 0) {
        mine[i].out = {static_cast<std::uint8_t>(c.rank()), static_cast<std::uint8_t>(i)}, mine[i].in.resize(2);
        mine[i].transfers.push_back(
            c.start({}, beyond(c, 1), message(mine[i].out), beyond(c, -1), message(mine[i].in)));
      } else {
        Mailbox& one = mine[count - 1 - i];  // waits in another order
        one.transfers[0]->wait();
        EXPECT_THAT(one.in, ::testing::ElementsAre(beyond(c, -1), count - 1 - i));
      }
    }
  });
}

TYPED_TEST_P(CommunicatorContract, ASecondWaitDoesNothing) {
  if (TypeParam::most_ranks() < 2) GTEST_SKIP() << "needs 2 ranks";
  std::vector<Mailbox> mail(2);
  TypeParam::run(2, 2, [&](Communicator& c, int step) {
    Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
    if (step == 0) {
      mine.out = {7}, mine.in = {0};
      mine.transfers.push_back(c.start({}, beyond(c, 1), message(mine.out), beyond(c, 1), message(mine.in)));
    } else {
      mine.transfers[0]->wait();
      mine.in = {9};
      mine.transfers[0]->wait();
      EXPECT_EQ(mine.in[0], 9);
    }
  });
}

TYPED_TEST_P(CommunicatorContract, RefusesAMessageOfTheWrongSize) {
  if (TypeParam::most_ranks() < 2) GTEST_SKIP() << "needs 2 ranks";
  std::vector<Mailbox> mail(2);
  const std::string error = error_of<Error>([&] {
    TypeParam::run(2, 2, [&](Communicator& c, int step) {
      Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
      if (step == 0) {
        mine.out.resize(c.rank() == 0 ? 64 : 16), mine.in.resize(16);
        mine.transfers.push_back(c.start({}, beyond(c, 1), message(mine.out), beyond(c, 1), message(mine.in)));
      } else {
        mine.transfers[0]->wait();
      }
    });
  });
  EXPECT_EQ(error, "[exchange] rank 0 sends 64 bytes to rank 1, which expects 16");
}

TYPED_TEST_P(CommunicatorContract, RefusesMissingRanks) {
  if (TypeParam::most_ranks() < 2) GTEST_SKIP() << "needs 2 ranks";
  TypeParam::run(2, 1, [](Communicator& c, int) {
    EXPECT_EQ(error_of<IndexError>([&] { c.start({}, 2, {}, 0, {}); }), "[exchange] there is no rank 2 among 2");
    EXPECT_EQ(error_of<IndexError>([&] { c.start({}, 1, {}, -1, {}); }), "[exchange] there is no rank -1 among 2");
  });
}

TYPED_TEST_P(CommunicatorContract, ThrowsTheFailureOfARankAndReleasesTheOthers) {
  if (TypeParam::most_ranks() < 3) GTEST_SKIP() << "needs 3 ranks";
  for (const int culprit : {0, 1, 2}) {
    std::vector<Mailbox> mail(3);
    const std::string error = error_of<Error>([&] {
      TypeParam::run(3, 3, [&](Communicator& c, int step) {
        Mailbox& mine = mail[static_cast<std::size_t>(c.rank())];
        if (step == 1 && c.rank() == culprit) throw IndexError("out of luck");
        if (step > 0) mine.transfers.back()->wait();
        mine.out.resize(8), mine.in.resize(8);
        if (step < 2)
          mine.transfers.push_back(c.start({}, beyond(c, 1), message(mine.out), beyond(c, -1), message(mine.in)));
      });
    });
    EXPECT_EQ(error, TypeParam::told(culprit, "out of luck"));
  }
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorContract, KnowsItsRankAndSize, SendsMessagesOfAnySizeOverAnyDistance,
                            PassesEveryMessageAroundTheRing, KeepsTheOrderOfMessagesBetweenTwoRanks,
                            ASecondWaitDoesNothing, RefusesAMessageOfTheWrongSize, RefusesMissingRanks,
                            ThrowsTheFailureOfARankAndReleasesTheOthers);

}  // namespace poolgrad::attention::testing_support
