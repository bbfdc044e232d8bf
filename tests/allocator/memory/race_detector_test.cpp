// The race detector reports unordered uses, names both sides, and is silent otherwise.
#include "allocator/memory/race_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <set>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "tests/allocator/memory/pages.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

using ::testing::HasSubstr;

class RaceDetectorTest : public ::testing::Test {
 protected:
  Stream stream(std::uint64_t id) const { return Stream{memory_.device(), id}; }
  // Returns the text of the race, or "".
  std::string touch(std::size_t offset, std::size_t bytes, std::uint64_t id,
                    std::source_location by = std::source_location::current(), Access access = Access::writes) {
    try {
      memory_.touch(range_ + offset, bytes, stream(id), by, access);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }
  std::string read(std::size_t offset, std::size_t bytes, std::uint64_t id) {
    return touch(offset, bytes, id, std::source_location::current(), Access::reads);
  }
  void order(std::uint64_t first, std::uint64_t second) {
    const EventId event = memory_.record_event(stream(first));
    memory_.stream_wait(stream(second), event);
    memory_.discard_event(event);
  }

  RaceDetector memory_{std::make_unique<SimulatedMemory>(0, 64 * page)};
  char* range_ = static_cast<char*>(memory_.reserve(64 * page));
};

TEST_F(RaceDetectorTest, NamesBothStreamsAndBothCallSites) {
  const unsigned first = __LINE__ + 1;
  EXPECT_EQ(touch(0, 4096, 1), "");
  const unsigned second = __LINE__ + 1;
  const std::string race = touch(1024, 512, 2);
  EXPECT_THAT(race, HasSubstr("stream 1 of sim:0"));
  EXPECT_THAT(race, HasSubstr("stream 2 of sim:0"));
  EXPECT_THAT(race, HasSubstr("512 bytes"));
  EXPECT_THAT(race, HasSubstr("race_detector_test.cpp:" + std::to_string(first)));
  EXPECT_THAT(race, HasSubstr("race_detector_test.cpp:" + std::to_string(second)));
  EXPECT_THAT(race, HasSubstr("::TestBody)")) << "the operator's name, where one allocates";
  EXPECT_EQ(memory_.races(), 1u);
}

TEST_F(RaceDetectorTest, IsSilentOnOneStream) {
  for (std::size_t round = 0; round < 10; ++round) EXPECT_EQ(touch(round * 100, 1000, 1), "");
}

TEST_F(RaceDetectorTest, IsSilentOnDisjointRanges) {
  EXPECT_EQ(touch(0, 100, 1), "");
  EXPECT_EQ(touch(100, 100, 2), "");
  EXPECT_EQ(touch(200, 0, 1), "");
  EXPECT_EQ(touch(50, 0, 2), "");
}

TEST_F(RaceDetectorTest, AcceptsAWaitForTheOtherStream) {
  EXPECT_EQ(touch(0, 100, 1), "");
  order(1, 2);
  EXPECT_EQ(touch(0, 100, 2), "");
}

TEST_F(RaceDetectorTest, AcceptsAChainOfStreams) {
  EXPECT_EQ(touch(0, 100, 1), "");
  order(1, 2);
  order(2, 3);
  EXPECT_EQ(touch(0, 100, 3), "");
}

TEST_F(RaceDetectorTest, AcceptsSynchronizedWork) {
  EXPECT_EQ(touch(0, 100, 1), "");
  memory_.synchronize(memory_.record_event(stream(1)));
  EXPECT_EQ(touch(0, 100, 2), "");
  EXPECT_TRUE(memory_.event_finished(memory_.record_event(stream(2))));
  EXPECT_EQ(touch(0, 100, 3), "");
}

TEST_F(RaceDetectorTest, FindsUseAfterTheEventWasRecorded) {
  const EventId early = memory_.record_event(stream(1));
  EXPECT_EQ(touch(0, 100, 1), "");
  memory_.stream_wait(stream(2), early);
  EXPECT_NE(touch(0, 100, 2), "");
}

TEST_F(RaceDetectorTest, FindsAWaitInTheWrongDirection) {
  EXPECT_EQ(touch(0, 100, 1), "");
  order(2, 1);
  EXPECT_NE(touch(0, 100, 2), "");
}

TEST_F(RaceDetectorTest, FindsAnEventWithoutAWait) {
  EXPECT_EQ(touch(0, 100, 1), "");
  memory_.discard_event(memory_.record_event(stream(1)));
  EXPECT_NE(touch(0, 100, 2), "");
}

TEST_F(RaceDetectorTest, IgnoresAnUnfinishedEvent) {
  auto inner = std::make_unique<SimulatedMemory>(0, 64 * page);
  inner->set_event_delay(100);
  RaceDetector memory(std::move(inner));
  memory.touch(range_, 100, stream(1), {});
  EXPECT_FALSE(memory.event_finished(memory.record_event(stream(1))));
  EXPECT_THROW(memory.touch(range_, 100, stream(2), {}), DeviceError);
}

TEST_F(RaceDetectorTest, LetsSeveralStreamsReadAtATime) {
  EXPECT_EQ(touch(0, 100, 1), "");
  order(1, 2);
  order(1, 3);
  EXPECT_EQ(read(20, 30, 2), "");
  EXPECT_EQ(read(0, 100, 1), "");
  EXPECT_EQ(read(40, 60, 3), "");
}

TEST_F(RaceDetectorTest, FindsAReadThatMayComeBeforeTheWrite) {
  EXPECT_EQ(touch(0, 100, 1), "");
  EXPECT_NE(read(50, 10, 2), "");
}

TEST_F(RaceDetectorTest, FindsAWriteUnderAReadOfAnyStream) {
  for (const std::uint64_t waited : {2u, 3u}) {
    const std::size_t at = 1000 * waited;
    EXPECT_EQ(touch(at, 100, 1), "");
    order(1, 2);
    order(1, 3);
    EXPECT_EQ(read(at, 60, 2), "");
    EXPECT_EQ(read(at + 40, 60, 3), "");
    order(waited, 1);
    EXPECT_THAT(touch(at, 100, 1), HasSubstr("but stream " + std::to_string(5 - waited)));
  }
  EXPECT_EQ(touch(0, 100, 1), "");
  order(1, 2);
  EXPECT_EQ(read(0, 100, 2), "");
  order(2, 1);
  EXPECT_EQ(touch(0, 100, 1), "") << "after everybody has read";
}

TEST_F(RaceDetectorTest, ReportsARaceOnce) {
  EXPECT_EQ(touch(0, 100, 1), "");
  EXPECT_NE(touch(0, 100, 2), "");
  EXPECT_EQ(touch(0, 100, 2), "");
}

TEST_F(RaceDetectorTest, ForgetsReleasedMemory) {
  ASSERT_TRUE(memory_.commit(range_, page));
  EXPECT_EQ(touch(0, page, 1), "");
  memory_.decommit(range_, page);
  EXPECT_EQ(touch(0, page, 2), "");
}

TEST_F(RaceDetectorTest, FollowsMemoryThatMoves) {
  ASSERT_TRUE(memory_.commit(range_, page));
  ASSERT_TRUE(memory_.commit(range_ + page, page));
  EXPECT_EQ(touch(0, page, 1), "");
  EXPECT_EQ(touch(page, page, 1), "");
  memory_.synchronize(memory_.record_event(stream(1)));
  ASSERT_TRUE(memory_.move(range_, range_ + 8 * page, 2 * page));
  EXPECT_EQ(touch(8 * page, 2 * page, 2), "");
  EXPECT_EQ(touch(0, page, 3), "") << "other memory by now";
  EXPECT_NE(touch(9 * page, 1, 3), "");
}

TEST_F(RaceDetectorTest, FindsMemoryThatMovesWhileAStreamUsesIt) {
  ASSERT_TRUE(memory_.commit(range_, page));
  EXPECT_EQ(touch(4096, 100, 1), "");
  order(1, 2);  // orders streams; the program itself has not waited
  EXPECT_THROW(memory_.move(range_, range_ + page, page), DeviceError);
  memory_.synchronize(memory_.record_event(stream(2)));
  EXPECT_TRUE(memory_.move(range_, range_ + page, page));
}

// Computes the order by definition: operations are nodes, and a path from one to another orders them.
class Program {
 public:
  explicit Program(std::size_t slots) : last_use_(slots, none) {}

  int operation(std::size_t stream) {
    const int node = add(last_of_stream_[stream]);
    if (last_wait_ != none) before_[static_cast<std::size_t>(node)].push_back(last_wait_);
    return last_of_stream_[stream] = node;
  }
  void wait(std::size_t stream, int recorded) {
    before_[static_cast<std::size_t>(operation(stream))].push_back(recorded);
  }
  void synchronize(int recorded) {
    const int node = add(last_wait_);
    before_[static_cast<std::size_t>(node)].push_back(recorded);
    last_wait_ = node;
  }
  /// Returns whether using the slots is a race.
  bool use(std::size_t stream, std::size_t first, std::size_t last) {
    const int node = operation(stream);
    std::set<int> ordered;
    std::vector<int> open{node};
    while (!open.empty()) {
      const int next = open.back();
      open.pop_back();
      if (!ordered.insert(next).second) continue;
      for (const int earlier : before_[static_cast<std::size_t>(next)]) open.push_back(earlier);
    }
    bool race = false;
    for (std::size_t slot = first; slot < last; ++slot) {
      if (last_use_[slot] != none && !ordered.contains(last_use_[slot])) race = true;
      last_use_[slot] = node;
    }
    return race;
  }

 private:
  static constexpr int none = -1;
  int add(int earlier) {
    before_.emplace_back();
    if (earlier != none) before_.back().push_back(earlier);
    return static_cast<int>(before_.size()) - 1;
  }

  std::vector<std::vector<int>> before_;
  std::array<int, 4> last_of_stream_{none, none, none, none};
  int last_wait_ = none;
  std::vector<int> last_use_;
};

TEST_F(RaceDetectorTest, FindsExactlyTheRacesOfRandomPrograms) {
  const std::uint64_t seed = seed_or(std::random_device{}());
  SCOPED_TRACE("POOLGRAD_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::size_t slots = 24;
  std::size_t races = 0;
  std::size_t ordered_changes = 0;
  for (int program = 0; program < 200; ++program) {
    RaceDetector memory(std::make_unique<SimulatedMemory>(0, 64 * page));
    Program model(slots);
    struct Recorded {
      EventId event;
      int node;
    };
    std::vector<Recorded> events;
    for (int step = 0; step < 80; ++step) {
      const std::size_t id = random() % 4;
      const auto choice = random() % 10;
      if (choice < 3) {
        events.push_back({memory.record_event(stream(id)), model.operation(id)});
      } else if (choice < 6 && !events.empty()) {
        const Recorded recorded = events[random() % events.size()];
        memory.stream_wait(stream(id), recorded.event);
        model.wait(id, recorded.node);
      } else if (choice == 6 && random() % 4 == 0 && !events.empty()) {
        const Recorded recorded = events[random() % events.size()];
        memory.synchronize(recorded.event);
        model.synchronize(recorded.node);
        std::erase_if(events, [&](const Recorded& other) { return other.event == recorded.event; });
      } else {
        const std::size_t first = random() % slots;
        const std::size_t last = first + 1 + random() % (slots - first);
        bool found = false;
        try {
          memory.touch(range_ + first * 64, (last - first) * 64, stream(id), {});
        } catch (const DeviceError&) {
          found = true;
        }
        const bool expected = model.use(id, first, last);
        ASSERT_EQ(found, expected) << "program " << program << ", step " << step;
        (expected ? races : ordered_changes) += 1;
      }
    }
    ASSERT_LE(memory.races(), races);
  }
  // The programs with and without races both occur.
  EXPECT_GT(races, 100u);
  EXPECT_GT(ordered_changes, 100u);
}

TEST(PoolRaceDetector, SeesEveryUse) {
  CachingAllocator pool(std::make_unique<RaceDetector>(std::make_unique<SimulatedMemory>(0, 64 * page)),
                        {.races = true});
  const auto stream = [&](std::uint64_t id) { return Stream{pool.device(), id}; };
  const auto use = [&](void* block, std::uint64_t id, Access access) -> std::string {
    try {
      pool.use(block, stream(id), access);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  };
  void* block = pool.allocate(5000, 64, stream(1));
  EXPECT_THAT(use(block, 2, Access::reads), HasSubstr("stream 2 of sim:0"));
  for (const std::uint64_t reader : {3u, 4u}) pool.order(stream(reader), stream(2));  // stream 2 owns the memory now
  EXPECT_EQ(use(block, 3, Access::reads), "");
  EXPECT_EQ(use(block, 4, Access::reads), "") << "two may read";
  EXPECT_THAT(use(block, 4, Access::writes), HasSubstr("stream 3 of sim:0"));
  for (const std::uint64_t used : {2u, 3u, 4u}) pool.order(stream(1), stream(used));
  pool.deallocate(block, 5000, 64, stream(1));
}

TEST(PoolRaceDetector, SeesTheGrowthOfABlock) {
  CachingAllocator pool(std::make_unique<RaceDetector>(std::make_unique<SimulatedMemory>(0, 64 * page)),
                        {.races = true});
  const auto stream = [&](std::uint64_t id) { return Stream{pool.device(), id}; };
  void* block = pool.allocate(1024, 64, stream(1));
  void* next = pool.allocate(1024, 64, stream(1));
  pool.order(stream(2), stream(1));
  pool.memory().touch(next, 1024, stream(2), std::source_location::current(), Access::reads);
  pool.deallocate(next, 1024, 64, stream(1));  // stream 2 may still read it, without a use() call
  EXPECT_THROW(pool.expand_in_place(block, 1024, 2048, stream(1)), DeviceError);
  pool.order(stream(1), stream(2));
  EXPECT_TRUE(pool.expand_in_place(block, 1024, 2048, stream(1)));
  pool.deallocate(block, 2048, 64, stream(1));
}

}  // namespace
}  // namespace poolgrad::testing
