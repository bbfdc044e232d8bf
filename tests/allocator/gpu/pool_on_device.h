// Random work on a pool whose blocks hold real bytes. Each block keeps its mark until it is freed, on any stream. Runs
// on a GPU and on every stand-in for one.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "allocator/caching_allocator.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {

struct DeviceWorkload {
  std::vector<std::uint64_t> streams;
  std::function<unsigned char(const unsigned char*)> read;
  std::size_t budget = std::size_t{48} << 20;
  int operations = 2000;
};

class PoolOnDevice {
 public:
  PoolOnDevice(std::unique_ptr<DeviceMemory> memory, DeviceWorkload workload)
      : workload_(std::move(workload)), pool_(std::move(memory), {.budget = workload_.budget}) {}

  void run() {
    const std::uint64_t seed = seed_or(std::random_device{}());
    SCOPED_TRACE("POOLGRAD_TEST_SEED=" + std::to_string(seed));
    random_.seed(seed);
    for (int step = 0; step < workload_.operations && !::testing::Test::HasFailure(); ++step) {
      if (random_() % 100 < 60) {
        allocate(1 + random_() % (std::size_t{1} << random_() % 25));
      } else if (!blocks_.empty()) {
        give_back(std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(random_() % blocks_.size())));
      }
      if (random_() % 200 == 0) pool_.trim(random_() % workload_.budget);
      EXPECT_LE(pool_.statistics().reserved_bytes.current, workload_.budget);
    }
    // Fill the budget once for every seed.
    for (int more = 0; more < 64 && refused_ == 0 && !::testing::Test::HasFailure(); ++more)
      allocate(workload_.budget / 32);
    EXPECT_GT(refused_, 0u) << "the budget was never tight";
    while (!blocks_.empty()) give_back(blocks_.begin());
    pool_.trim();
    EXPECT_EQ(pool_.statistics().reserved_bytes.current, 0u);
    EXPECT_GT(granted_, 0u);
  }

 private:
  struct Block {
    std::size_t bytes;
    std::uint64_t stream;
    unsigned char value;
  };
  using Blocks = std::map<unsigned char*, Block>;

  Stream stream(std::uint64_t id) const { return Stream{pool_.device(), id}; }
  std::uint64_t any_stream() { return workload_.streams[random_() % workload_.streams.size()]; }
  // Marks the ends of a block in stream order.
  void mark(unsigned char* pointer, const Block& block) {
    for (const std::size_t offset : {std::size_t{0}, block.bytes - 1}) {
      pool_.memory().fill(pointer + offset, 1, block.value, stream(block.stream));
    }
  }

  void allocate(std::size_t bytes) {
    const Block block{bytes, any_stream(), static_cast<unsigned char>(random_())};
    const auto result = pool_.try_allocate({.bytes = bytes, .stream = stream(block.stream)});
    void* const* pointer = std::get_if<void*>(&result);
    if (pointer == nullptr) {
      ++refused_;
      return;
    }
    ++granted_;
    auto* const start = static_cast<unsigned char*>(*pointer);
    const auto after = blocks_.lower_bound(start);
    ASSERT_TRUE(after == blocks_.end() || start + bytes <= after->first);
    ASSERT_TRUE(after == blocks_.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= start);
    blocks_[start] = block;
    mark(start, block);
  }

  void give_back(Blocks::iterator entry) {
    auto [start, block] = *entry;
    blocks_.erase(entry);
    if (workload_.read) {
      EXPECT_EQ(workload_.read(start), block.value);
      EXPECT_EQ(workload_.read(start + block.bytes - 1), block.value);
    }
    if (random_() % 4 == 0) {  // another stream uses it last, after the first
      const std::uint64_t other = any_stream();
      if (other != block.stream) pool_.order(stream(other), stream(block.stream));
      const std::size_t bytes = block.bytes;
      mark(start, {bytes, other, 0});
      block.stream = other;
    }
    pool_.deallocate(start, block.bytes, 64, stream(block.stream));
  }

  DeviceWorkload workload_;
  CachingAllocator pool_;
  std::mt19937_64 random_;
  Blocks blocks_;
  std::size_t granted_ = 0;
  std::size_t refused_ = 0;
};

}  // namespace poolgrad::testing
