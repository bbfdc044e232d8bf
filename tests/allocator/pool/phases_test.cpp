// Phases that repeat: each finds the pool in the same state.
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "tests/allocator/pool_testing.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {
namespace {

/// Requests and frees of one phase; no block is live at its end.
class Script {
 public:
  explicit Script(std::mt19937_64& random) {
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<std::size_t> live;
    const auto free_one = [&] {
      const std::size_t i = below(live.size());
      acts_.push_back({live[i], 0});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    };
    const std::size_t count = 100 + below(200);
    for (std::size_t block = 0; block < count; ++block) {
      if (live.size() > 4 + below(20)) free_one();
      acts_.push_back({block, std::size_t{1} << (5 + below(14))});
      acts_.back().bytes += below(acts_.back().bytes);
      live.push_back(block);
    }
    while (!live.empty()) free_one();
  }

  /// Returns the addresses, in order. Frees all blocks and throws if a request does not fit.
  std::vector<void*> run(CachingAllocator& pool) const {
    std::vector<std::pair<void*, std::size_t>> blocks;
    std::vector<void*> addresses;
    const auto free = [&](std::pair<void*, std::size_t>& block) {
      if (block.first != nullptr) deallocate(pool, block.first, block.second);
      block.first = nullptr;
    };
    for (const Act& act : acts_) {
      if (act.bytes == 0) {
        free(blocks[act.block]);
        continue;
      }
      try {
        addresses.push_back(allocate(pool, act.bytes));
      } catch (const OutOfMemoryError&) {
        for (auto& block : blocks) free(block);
        throw;
      }
      blocks.emplace_back(addresses.back(), act.bytes);
    }
    return addresses;
  }

 private:
  struct Act {
    std::size_t block, bytes;  // 0: a free
  };
  std::vector<Act> acts_;
};

class PhasesTest : public PoolTest {
 protected:
  static constexpr std::size_t small_page = 64 * KiB;

  std::unique_ptr<CachingAllocator> pool(std::size_t budget = 0) {
    const SimulationOptions like_host{.granularity = small_page, .large_page = small_page, .divisible = true};
    std::unique_ptr<DeviceMemory> memory = make_memory("host", 64 * MiB, small_page);
    if (GetParam() == std::string("sim")) memory = std::make_unique<SimulatedMemory>(0, 64 * MiB, like_host);
    return std::make_unique<CachingAllocator>(std::move(memory), AllocatorConfig{.budget = budget});
  }
  /// Allocates blocks that stay, half of them after a phase has used the pool.
  static void fill(CachingAllocator& pool, const Script& phase) {
    for (std::size_t i = 0; i < 20; ++i) {
      allocate(pool, 3000 + 4096 * (i % 5), i % 3 == 0 ? Category::activation : Category::parameter);
      if (i == 10) phase.run(pool);
    }
  }

  std::mt19937_64 random_{test_seed()};
};

TEST_P(PhasesTest, HaveTheSameAddressesAfterAnyPhases) {
  for (int round = 0; round < 5; ++round) {
    const std::array scripts{Script(random_), Script(random_), Script(random_)};
    const auto pool = this->pool();
    fill(*pool, scripts[2]);
    std::array<std::vector<void*>, 3> known;
    for (int i = 0; i < 200; ++i) {
      const std::size_t which = i < 3 ? static_cast<std::size_t>(i) : random_() % 3;
      pool->begin_phase();
      const std::vector<void*> addresses = scripts[which].run(*pool);
      if (i < 3) known[which] = addresses;
      ASSERT_EQ(addresses, known[which]) << "phase " << i;
    }
  }
}

// The block nearly fills three pages, but its place in the last free block has less than that from the next page on.
TEST_P(PhasesTest, PlaceABlockThatFillsItsPagesWhateverTheGrowth) {
  const auto pool = this->pool();
  allocate(*pool, 1000);
  const auto run_phase = [&](std::size_t bytes) {
    pool->begin_phase();
    void* block = allocate(*pool, bytes);
    deallocate(*pool, block, bytes);
    return block;
  };
  run_phase(180 * KiB);
  ASSERT_EQ(pool->statistics().reserved_bytes.current, 3 * small_page);
  void* const first = run_phase(3 * small_page - 2944);
  ASSERT_EQ(pool->statistics().reserved_bytes.current, 3 * small_page);
  run_phase(1 * MiB);
  EXPECT_EQ(run_phase(3 * small_page - 2944), first);
}

TEST_P(PhasesTest, FitAgainAfterTheBudgetHasRefusedPages) {
  for (int round = 0; round < 3; ++round) {
    const std::array scripts{Script(random_), Script(random_)};
    std::size_t reserved = 0;
    {
      const auto unlimited = pool();
      fill(*unlimited, scripts[1]);
      for (int i = 0; i < 2; ++i)
        for (const Script& script : scripts) {
          unlimited->begin_phase();
          script.run(*unlimited);
        }
      reserved = unlimited->statistics().reserved_bytes.peak;
    }
    int held = 0;
    for (std::size_t budget = reserved; budget > reserved / 2; budget -= small_page) {
      const auto limited = pool(budget);
      std::array<std::vector<void*>, 2> known;
      const auto run = [&](std::size_t which) {
        limited->begin_phase();
        return scripts[which].run(*limited);
      };
      try {
        fill(*limited, scripts[1]);
        // In the first run, pages cached by earlier phases may remain; later, the budget has refused some.
        for (int i = 0; i < 2; ++i)
          for (const std::size_t which : {0u, 1u}) known[which] = run(which);
      } catch (const OutOfMemoryError&) {
        break;
      }
      ++held;
      for (int i = 0; i < 50; ++i) {
        const std::size_t which = random_() % 2;
        ASSERT_EQ(run(which), known[which]) << "budget " << budget << " of " << reserved;
      }
    }
    EXPECT_GT(held, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PhasesTest, devices, device_name);

}  // namespace
}  // namespace poolgrad::testing
