// The contract of DeviceMemory, written once and run on every implementation and through every adaptor.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory/device_memory.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {

struct MemoryKind {
  static constexpr std::size_t capacity = std::size_t{32} << 20;

  const char* name;
  /// Returns memory with a capacity of `capacity` bytes, none committed. May throw Unavailable to skip the test.
  std::function<std::unique_ptr<DeviceMemory>()> make;
  /// Returns the byte at an address; nullptr for memory without bytes.
  std::function<unsigned char(const unsigned char*)> read;
};

inline void PrintTo(const MemoryKind& kind, std::ostream* out) { *out << kind.name; }

struct Unavailable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline unsigned char read_host(const unsigned char* address) { return *address; }

class DeviceMemoryContract : public ::testing::TestWithParam<MemoryKind> {
 protected:
  static constexpr std::size_t capacity = MemoryKind::capacity;

  void SetUp() override {
    try {
      memory_ = GetParam().make();
    } catch (const Unavailable& reason) {
      GTEST_SKIP() << reason.what();
    }
    granule_ = memory_->granularity();
    window_bytes_ = 2 * capacity;
    window_ = static_cast<unsigned char*>(memory_->reserve(window_bytes_));
    ASSERT_NE(window_, nullptr);
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    if (window_ != nullptr) memory_->unreserve(window_, window_bytes_);
    EXPECT_EQ(memory_->info().free, capacity);
  }

  unsigned char* at(std::size_t granules) { return window_ + granules * granule_; }
  Stream stream(std::uint64_t id = 0) const { return Stream{memory_->device(), id}; }
  // Offsets of a few bytes to check, because all bytes would take too long.
  static std::array<std::size_t, 3> samples(std::size_t bytes) { return {0, bytes / 2 + 1, bytes - 1}; }
  void write(unsigned char* address, std::size_t bytes, unsigned char value) {
    for (const std::size_t offset : samples(bytes)) memory_->fill(address + offset, 1, value, stream());
  }
  void write(unsigned char* address, unsigned char value) { write(address, granule_, value); }
  // Mappings change at once, so the work that uses them must be done.
  void finish() { memory_->synchronize(memory_->record_event(stream())); }
  void expect_bytes(const unsigned char* address, std::size_t bytes, unsigned char value) {
    finish();
    if (!GetParam().read) return;
    for (const std::size_t offset : samples(bytes)) {
      EXPECT_EQ(GetParam().read(address + offset), value) << "at offset " << offset;
    }
  }

  std::unique_ptr<DeviceMemory> memory_;
  unsigned char* window_ = nullptr;
  std::size_t window_bytes_ = 0;
  std::size_t granule_ = 0;
};

inline std::string memory_kind_name(const ::testing::TestParamInfo<MemoryKind>& info) { return info.param.name; }

TEST_P(DeviceMemoryContract, ReservesAlignedDisjointRangesThatCostNothing) {
  EXPECT_EQ(granule_ & (granule_ - 1), 0u);
  EXPECT_EQ(memory_->large_page() % granule_, 0u);
  auto* second = static_cast<unsigned char*>(memory_->reserve(granule_));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window_) % granule_, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % granule_, 0u);
  EXPECT_TRUE(second >= window_ + window_bytes_ || window_ >= second + granule_);
  EXPECT_EQ(memory_->info().free, capacity);
  EXPECT_EQ(memory_->info().total, capacity);
  memory_->unreserve(second, granule_);
}

TEST_P(DeviceMemoryContract, CountsCommittedBytes) {
  ASSERT_TRUE(memory_->commit(at(2), granule_));
  ASSERT_TRUE(memory_->commit(at(3), granule_));
  ASSERT_TRUE(memory_->commit(at(4), 2 * granule_));
  EXPECT_EQ(memory_->info().free, capacity - 4 * granule_);
  memory_->decommit(at(3), granule_);
  EXPECT_EQ(memory_->info().free, capacity - 3 * granule_);
  ASSERT_TRUE(memory_->commit(at(3), granule_));
  memory_->decommit(at(2), 4 * granule_);
  EXPECT_EQ(memory_->info().free, capacity);
}

TEST_P(DeviceMemoryContract, RefusesMoreThanItHasAndStaysUsable) {
  ASSERT_TRUE(memory_->commit(window_, capacity - granule_));
  EXPECT_FALSE(memory_->commit(window_ + capacity, 2 * granule_));
  EXPECT_EQ(memory_->info().free, granule_);
  EXPECT_TRUE(memory_->commit(window_ + capacity, granule_));
  EXPECT_FALSE(memory_->commit(window_ + capacity + granule_, granule_));
  memory_->decommit(window_, capacity - granule_);
  memory_->decommit(window_ + capacity, granule_);
}

TEST_P(DeviceMemoryContract, RefusesAnImpossibleReservation) {
  EXPECT_EQ(memory_->reserve(std::size_t{1} << 60), nullptr);
}

TEST_P(DeviceMemoryContract, FillsCommittedMemory) {
  ASSERT_TRUE(memory_->commit(window_, 2 * granule_));
  memory_->fill(window_, 2 * granule_, 0xAB, stream());
  memory_->fill(at(1), granule_, 0x12, stream());
  expect_bytes(at(0), granule_, 0xAB);
  expect_bytes(at(1), granule_, 0x12);
  memory_->decommit(window_, 2 * granule_);
}

TEST_P(DeviceMemoryContract, MovesMemoryToOtherAddresses) {
  ASSERT_TRUE(memory_->commit(at(1), granule_));
  write(at(1), 0x5A);
  finish();
  ASSERT_TRUE(memory_->move(at(1), at(7), granule_));
  expect_bytes(at(7), granule_, 0x5A);
  EXPECT_EQ(memory_->info().free, capacity - granule_);
  // The old addresses are free and can get other memory.
  ASSERT_TRUE(memory_->commit(at(1), granule_));
  write(at(1), 0x11);
  expect_bytes(at(7), granule_, 0x5A);
  memory_->decommit(at(1), granule_);
  memory_->decommit(at(7), granule_);
}

TEST_P(DeviceMemoryContract, MovesNeighboursInOneCallWhenNoMemoryIsLeft) {
  ASSERT_TRUE(memory_->commit(at(0), granule_));
  ASSERT_TRUE(memory_->commit(at(1), 2 * granule_));
  ASSERT_TRUE(memory_->commit(at(3), capacity - 3 * granule_));
  ASSERT_EQ(memory_->info().free, 0u);
  write(at(0), 1);
  write(at(1), 2);
  write(at(2), 3);
  finish();
  unsigned char* target = window_ + capacity;
  ASSERT_TRUE(memory_->move(at(0), target, 3 * granule_));
  expect_bytes(target, granule_, 1);
  expect_bytes(target + granule_, granule_, 2);
  expect_bytes(target + 2 * granule_, granule_, 3);
  EXPECT_EQ(memory_->info().free, 0u);
  memory_->decommit(target, 3 * granule_);
  memory_->decommit(at(3), capacity - 3 * granule_);
}

TEST_P(DeviceMemoryContract, MovesBackAndForth) {
  ASSERT_TRUE(memory_->commit(at(0), granule_));
  ASSERT_TRUE(memory_->commit(at(1), granule_));
  write(at(0), 1);
  write(at(1), 2);
  finish();
  for (int round = 0; round < 20; ++round) {  // swaps them
    ASSERT_TRUE(memory_->move(at(0), at(9), granule_));
    ASSERT_TRUE(memory_->move(at(1), at(0), granule_));
    ASSERT_TRUE(memory_->move(at(9), at(1), granule_));
  }
  expect_bytes(at(0), granule_, 1);
  expect_bytes(at(1), granule_, 2);
  memory_->decommit(at(0), 2 * granule_);
}

TEST_P(DeviceMemoryContract, MovesPartsOfACommitOnlyIfDivisible) {
  ASSERT_TRUE(memory_->commit(window_, 4 * granule_));
  write(at(3), 9);
  finish();
  if (!memory_->divisible()) {
    EXPECT_THROW(memory_->move(at(1), at(10), granule_), DeviceError);
    EXPECT_THROW(memory_->move(at(0), at(10), granule_), DeviceError);
    EXPECT_THROW(memory_->move(at(0), at(10), 5 * granule_), DeviceError);
    EXPECT_THROW(memory_->move(at(0), at(2), 4 * granule_), DeviceError);
    EXPECT_EQ(memory_->info().free, capacity - 4 * granule_);
    expect_bytes(at(3), granule_, 9);
    memory_->decommit(window_, 4 * granule_);
    return;
  }
  memory_->decommit(at(1), granule_);
  EXPECT_EQ(memory_->info().free, capacity - 3 * granule_);
  ASSERT_TRUE(memory_->move(at(2), at(10), 2 * granule_));
  expect_bytes(at(11), granule_, 9);
  memory_->decommit(at(0), granule_);
  memory_->decommit(at(10), 2 * granule_);
}

TEST_P(DeviceMemoryContract, FinishesEventsOnceTheyAreSynchronised) {
  const EventId first = memory_->record_event(stream());
  const EventId second = memory_->record_event(stream());
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
  memory_->stream_wait(stream(), first);
  memory_->synchronize(first);
  memory_->synchronize(second);
  EXPECT_TRUE(memory_->event_finished(second));
  memory_->discard_event(memory_->record_event(stream()));
  memory_->discard_event(second);
}

TEST_P(DeviceMemoryContract, ServesManyThreads) {
  constexpr std::size_t threads = 4;
  constexpr std::size_t rounds = 25;
  const auto value_of = [](std::size_t thread, std::size_t round) {
    return static_cast<unsigned char>(1 + rounds * thread + round);
  };
  std::array<unsigned char*, threads> last{};
  const std::size_t share = window_bytes_ / threads;
  std::vector<std::thread> running;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      unsigned char* start = window_ + thread * share;
      for (std::size_t round = 0; round < rounds; ++round) {
        // The memory suffices for all threads at any time, and each thread's bytes stay unchanged.
        ASSERT_TRUE(memory_->commit(start, granule_));
        const unsigned char value = value_of(thread, round);
        write(start, value);
        expect_bytes(start, granule_, value);
        unsigned char* place = memory_->move(start, start + granule_, granule_) ? start + granule_ : start;
        expect_bytes(place, granule_, value);
        if (round + 1 < rounds) {
          memory_->decommit(place, granule_);
        } else {
          last[thread] = place;
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  EXPECT_EQ(memory_->info().free, capacity - threads * granule_) << "each thread has kept what it got last";
  for (std::size_t thread = 0; thread < threads; ++thread) {
    ASSERT_NE(last[thread], nullptr);
    expect_bytes(last[thread], granule_, value_of(thread, rounds - 1));
    memory_->decommit(last[thread], granule_);
  }
}

TEST_P(DeviceMemoryContract, HoldsForRandomCalls) {
  const std::uint64_t seed = seed_or(std::random_device{}());
  SCOPED_TRACE("POOLGRAD_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::size_t granules = window_bytes_ / granule_;
  struct Piece {
    std::size_t granules;
    unsigned char value;
  };
  std::map<std::size_t, Piece> committed;  // by first granule
  std::size_t bytes = 0;
  const auto hole = [&](std::size_t first, std::size_t count) {
    const auto after = committed.lower_bound(first);
    return first + count <= granules && (after == committed.end() || after->first >= first + count) &&
           (after == committed.begin() || std::prev(after)->first + std::prev(after)->second.granules <= first);
  };
  for (int step = 0; step < 400; ++step) {
    const std::size_t place = random() % granules;
    if (random() % 2 == 0) {
      const std::size_t count = 1 + random() % 4;
      if (!hole(place, count)) continue;
      const bool fits = bytes + count * granule_ <= capacity;
      ASSERT_EQ(memory_->commit(at(place), count * granule_), fits);
      if (!fits) continue;
      committed[place] = {count, static_cast<unsigned char>(random())};
      write(at(place), count * granule_, committed[place].value);
      bytes += count * granule_;
    } else if (auto entry = committed.lower_bound(place); entry != committed.end()) {
      const auto [first, piece] = *entry;
      expect_bytes(at(first), piece.granules * granule_, piece.value);
      const std::size_t target = random() % granules;
      if (random() % 2 == 0) {
        memory_->decommit(at(first), piece.granules * granule_);
        bytes -= piece.granules * granule_;
      } else if (hole(target, piece.granules)) {
        ASSERT_TRUE(memory_->move(at(first), at(target), piece.granules * granule_));
        committed[target] = piece;
      } else {
        continue;
      }
      committed.erase(first);
    }
    ASSERT_EQ(memory_->info().free, capacity - bytes);
  }
  for (const auto& [first, piece] : committed) {
    expect_bytes(at(first), piece.granules * granule_, piece.value);
    memory_->decommit(at(first), piece.granules * granule_);
  }
}

}  // namespace poolgrad::testing
