#include "allocator/heap/pointer_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/test_seed.h"

namespace {

thread_local bool no_memory = false;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = no_memory ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace poolgrad::testing {
namespace {

struct Without {
  Without() { no_memory = true; }
  ~Without() { no_memory = false; }
};

struct Thing {
  std::uint64_t key = 0;
};

class PointerTableTest : public ::testing::Test {
 protected:
  std::size_t held_ = 0;
  PointerTable<Thing> table_{held_};
  const std::size_t of_none_ = held_;
  std::vector<Thing> things_{4096};

  void set_all(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) table_.set(i << 15, &things_[i]);
  }
};

TEST_F(PointerTableTest, AgreesWithAMap) {
  std::mt19937_64 random(test_seed());
  for (const unsigned shift : {0u, 6u, 15u, 30u}) {
    const std::uint64_t stride = std::uint64_t{1} << shift;
    SCOPED_TRACE("stride " + std::to_string(stride) + ", seed " + std::to_string(test_seed()));
    std::map<std::uint64_t, Thing*> known;
    for (int i = 0; i < 100000; ++i) {
      // The number of keys in use grows and shrinks.
      const std::uint64_t key = stride * (random() % (i % 20000 < 10000 ? 4000 : 100));
      if (random() % 2 == 0) {
        table_.set(key, known[key] = &things_[random() % things_.size()]);
      } else {
        const auto found = known.extract(key);
        ASSERT_EQ(table_.erase(key), found ? found.mapped() : nullptr);
      }
      const std::uint64_t other = stride * (random() % 4000);
      ASSERT_EQ(table_.find(other), known.contains(other) ? known[other] : nullptr);
      ASSERT_EQ(table_.size(), known.size());
      if (i % 10000 == 9999) table_.trim();
    }
    for (const auto& [key, thing] : known) ASSERT_EQ(table_.erase(key), thing);
  }
}

TEST_F(PointerTableTest, TakesAFewBytesPerPointerForAnyKeys) {
  set_all(0, 1000);
  const std::size_t full = held_;
  EXPECT_TRUE(table_.expect()) << "former slots";
  table_.forget_former();
  EXPECT_FALSE(table_.expect());
  EXPECT_LE(held_, of_none_ + 43 * 1000);
  EXPECT_LT(held_, full);
  for (std::size_t i = 0; i < 1000; ++i) EXPECT_EQ(table_.find(i << 15), &things_[i]);
  for (std::size_t i = 0; i < 1000; ++i) table_.erase(i << 15);
  table_.trim();
  EXPECT_EQ(held_, of_none_);
}

TEST_F(PointerTableTest, NeedsNoMemoryForExpectedPointers) {
  for (std::size_t i = 0; i < 3000; ++i) {
    table_.expect();
    const Without memory;
    table_.set(i << 15, &things_[i]);
  }
}

TEST_F(PointerTableTest, NeedsNoMemoryToReplaceAPointer) {
  for (std::size_t i = 0; i < 300; ++i) {
    set_all(i, i + 1);
    const Without memory;
    table_.set(i << 15, &things_[4000]);
    ASSERT_EQ(table_.find(i << 15), &things_[4000]);
  }
}

TEST_F(PointerTableTest, NeedsNoMemoryToRefill) {
  set_all(0, 3000);
  for (std::size_t i = 0; i < 3000; ++i) table_.erase(i << 15);
  const Without memory;
  set_all(1000, 4000);
}

TEST_F(PointerTableTest, IsUnchangedWhenMemoryRunsOut) {
  set_all(0, 24);
  const Without memory;
  EXPECT_THROW(table_.expect(), std::bad_alloc);
  EXPECT_THROW(table_.set(std::uint64_t{24} << 15, &things_[24]), std::bad_alloc);
  EXPECT_EQ(table_.size(), 24u);
  EXPECT_EQ(held_, of_none_);
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(table_.find(i << 15), &things_[i]);
  EXPECT_EQ(table_.find(std::uint64_t{24} << 15), nullptr);
}

// A lookup of a stable key by another thread finds the right value or, rarely, no value.
TEST_F(PointerTableTest, IsReadWhileItChanges) {
  constexpr std::size_t own = 64;
  for (std::size_t i = 0; i < own; ++i) table_.set(i * 7, &things_[i]);
  std::atomic<bool> over = false;
  std::thread reader([&] {
    while (!over) {
      for (std::size_t i = 0; i < own; ++i) {
        const Thing* thing = table_.find(i * 7);
        if (thing != nullptr && thing != &things_[i]) {
          ADD_FAILURE() << "another's, for key " << i * 7;
          return;
        }
      }
    }
  });
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 300000; ++i) {
    const std::uint64_t key = 1000 + random() % (i < 150000 ? 100 : 3000);
    if (random() % 2 == 0) {
      table_.set(key, &things_[1000 + random() % 3000]);
    } else {
      table_.erase(key);
    }
  }
  over = true;
  reader.join();
  for (std::size_t i = 0; i < own; ++i) EXPECT_EQ(table_.find(i * 7), &things_[i]);
}

}  // namespace
}  // namespace poolgrad::testing
