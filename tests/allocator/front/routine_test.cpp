// What a thread does again and again is answered from memory, and nobody can tell.
#include "allocator/front/routine.h"

#include <cstdlib>
#include <random>
#include <thread>

#include "tests/allocator/pool_testing.h"
#include "tests/allocator/training_trace.h"

namespace poolgrad::testing {
namespace {

using Act = Routine::Act;

/// Observes acts as a pool does whose arenas change once for each, until one of them completes a routine; how many it
/// took, 0 if all were not enough.
std::size_t acts_until_known(Routine& routine, const std::vector<Act>& acts, std::size_t bytes = 0) {
  const Stream stream{};
  for (std::size_t i = 0; i < acts.size(); ++i) {
    if (!routine.attentive(i, bytes)) return 0;
    if (routine.observe(acts[i], stream, i, i + 1)) return i + 1;
  }
  return 0;
}

Act allocation(std::uintptr_t address) { return Act::allocation(address, 100, 64, {Category::activation, 3}); }
Act release(std::uintptr_t address) { return Act::free(address, 100, 64, {Category::activation, 3}, 0); }

/// Whether the act comes next in what is followed.
bool follow(Routine& routine, const Act& act) {
  const Act* next = act.is_free() ? routine.free(reinterpret_cast<void*>(act.address), act.bytes, Stream{})
                                  : routine.allocation(act.bytes, act.alignment, Stream{}, act.tag());
  return next != nullptr && *next == act;
}

std::vector<Act> repeated(const std::vector<Act>& acts, std::size_t times) {
  std::vector<Act> all;
  for (std::size_t i = 0; i < times; ++i) all.insert(all.end(), acts.begin(), acts.end());
  return all;
}

std::vector<Act> step_of(std::size_t blocks) {
  std::vector<Act> acts;
  for (std::size_t i = 0; i < blocks; ++i) acts.push_back(allocation(4096 * (i + 1)));
  for (std::size_t i = 0; i < blocks; ++i) acts.push_back(release(4096 * (i + 1)));
  return acts;
}

TEST(Routine, IsWhatCameTwiceInARow) {
  Routine routine;
  const std::size_t known = acts_until_known(routine, repeated(step_of(200), 3));
  EXPECT_GE(known, 800u);
  EXPECT_LT(known, 820u) << "the table of what came last is not perfect";
  EXPECT_EQ(routine.length(), 400u);
}

TEST(Routine, IsFoundSoonHoweverLongItIs) {
  Routine routine;
  const std::size_t known = acts_until_known(routine, repeated(step_of(15000), 3), std::size_t{4} << 20);
  EXPECT_GE(known, 60000u);
  EXPECT_LT(known, 60100u);
  EXPECT_EQ(routine.length(), 30000u);
}

/// A routine of step_of(200), found behind `earlier` acts that do not repeat themselves; Stream{} is its stream.
std::unique_ptr<Routine> routine_behind(std::size_t earlier) {
  std::vector<Act> acts;
  for (std::size_t i = 0; i < earlier; ++i) acts.push_back(Act::allocation(64 * i, 64 + i, 64, {}));
  const std::vector<Act> steps = repeated(step_of(200), 3);
  acts.insert(acts.end(), steps.begin(), steps.end());
  auto routine = std::make_unique<Routine>();
  const std::size_t known = acts_until_known(*routine, acts);
  if (known != 0) {
    for (std::size_t i = known; i < acts.size(); ++i) follow(*routine, acts[i]);
  }
  return routine;
}

TEST(Routine, GoesRoundWhereverItsHistoryEnds) {
  const std::vector<Act> step = step_of(200);
  for (std::size_t earlier = 0; earlier < 2048; earlier += 100) {
    const std::unique_ptr<Routine> routine = routine_behind(earlier);
    ASSERT_EQ(routine->length(), 400u) << earlier;
    for (std::size_t i = 0; i < 2 * step.size(); ++i) {
      ASSERT_TRUE(follow(*routine, step[i % step.size()])) << earlier << " acts, then " << i;
      ASSERT_EQ(routine->answered(1), step[i % step.size()]);
    }
  }
}

TEST(Routine, LetsThePoolCatchUpNowAndThen) {
  const std::vector<Act> step = step_of(200);
  const std::unique_ptr<Routine> routine = routine_behind(0);
  routine->caught_up(0);
  std::size_t next = 0;
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(routine->count_answered(), 0u);
    while (follow(*routine, step[next % step.size()])) ++next;
    EXPECT_EQ(routine->count_answered(), std::uint64_t{1} << 16);
    EXPECT_FALSE(follow(*routine, step[next % step.size()]));
    routine->caught_up(0);
  }
  EXPECT_EQ(next, std::size_t{2} << 16);
}

TEST(Routine, IsNotWhatOnlyHasTheSameSizes) {
  Routine routine;
  std::vector<Act> acts;
  for (std::size_t i = 1; i < 500; ++i) {
    acts.push_back(allocation(64 * i));
    acts.push_back(release(64 * i));
  }
  EXPECT_EQ(acts_until_known(routine, acts), 0u);
}

TEST(Routine, IsNotWhatWasDisturbed) {
  const std::vector<Act> acts = repeated(step_of(300), 3);
  Routine routine;
  for (std::size_t i = 0; i < acts.size(); ++i) {
    ASSERT_TRUE(routine.attentive(i, 0));
    if (i == 700) routine.disturb();
    EXPECT_FALSE(routine.observe(acts[i], Stream{}, i, i + 1));
  }
}

TEST(Routine, IsNotSomebodyElses) {
  Routine routine;
  const std::size_t known = acts_until_known(routine, repeated({allocation(4096), release(4096)}, 200));
  ASSERT_NE(known, 0u);
  ASSERT_EQ(routine.length(), 2u);
  if (known % 2 == 1) routine.free(reinterpret_cast<void*>(4096), 100, Stream{});
  const Tag tag{Category::activation, 3};
  EXPECT_EQ(routine.allocation(101, 64, Stream{}, tag), nullptr);
  EXPECT_EQ(routine.allocation(100, 128, Stream{}, tag), nullptr);
  EXPECT_EQ(routine.allocation(100, 64, Stream{Device{}, 1}, tag), nullptr);
  EXPECT_EQ(routine.allocation(100, 64, Stream{}, {Category::gradient, 3}), nullptr);
  EXPECT_EQ(routine.allocation(100, 64, Stream{}, {Category::activation, 4}), nullptr);
  EXPECT_EQ(routine.free(reinterpret_cast<void*>(4096), 100, Stream{}), nullptr);
  ASSERT_NE(routine.allocation(100, 64, Stream{}, tag), nullptr);
}

TEST(Routine, ShortOnesGiveWayToTheLongOneAroundThem) {
  // The inner one comes 300 times in each step: the first finds end with it, the step is found after a few.
  std::vector<Act> step = step_of(30);
  for (int i = 0; i < 300; ++i) step.insert(step.end(), {allocation(64), release(64)});
  Routine routine;
  std::size_t steps = 0;
  std::uint64_t changes = 0;
  while (routine.length() != step.size()) {
    ASSERT_LT(++steps, 12u);
    for (const Act& act : step) {
      ASSERT_TRUE(routine.attentive(changes, 0));
      routine.observe(act, Stream{}, changes, changes + 1);
      ++changes;
    }
  }
}

TEST(Routine, IsNotSoughtForEver) {
  Routine routine;
  std::uint64_t observed = 0;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    if (!routine.attentive(i, 0)) continue;
    ++observed;
    routine.observe(allocation(64 * i), Stream{}, i, i + 1);
  }
  EXPECT_GT(observed, 10'000u);
  EXPECT_LT(observed, 100'000u);
}

TEST(Routine, IsSoughtAtOnceWhereTicksBeginAnew) {
  const auto learns = [](Routine& routine) {
    for (std::uint64_t tick = 0; tick < 2'000; ++tick)
      if (routine.attentive(tick, 0)) return true;
    return false;
  };
  Routine routine;
  for (std::uint64_t i = 0; i < 1'000'000; ++i)
    if (routine.attentive(i, 0)) routine.observe(allocation(64 * i), Stream{}, i, i + 1);
  ASSERT_FALSE(learns(routine)) << "there is a rest from so many in vain";
  routine.restart();
  EXPECT_TRUE(learns(routine));
}

class RoutinesTest : public PoolTest {
 protected:
  void train(CachingAllocator& pool, TrainingTrace& trace, int steps) {
    for (int step = 0; step < steps; ++step) {
      trace.step();
      for (const TraceEvent& event : trace.take()) {
        live_.resize(std::max(live_.size(), event.id + 1));
        auto& [pointer, bytes] = live_[event.id];
        if (event.allocates) {
          pointer = allocate(pool, bytes = event.bytes, event.category);
        } else {
          deallocate(pool, pointer, bytes);
        }
      }
    }
  }

 private:
  std::vector<std::pair<void*, std::size_t>> live_;
};
INSTANTIATE_TEST_SUITE_P(Devices, RoutinesTest, devices, device_name);

constexpr TraceModel model{8, 256, 192, 4, 6, 256};

TEST_P(RoutinesTest, AnswerWarmTrainingStepsOfAllSizes) {
  CachingAllocator pool(memory());
  TrainingTrace trace(model);
  train(pool, trace, 5);
  const Statistics warm = pool.statistics();
  train(pool, trace, 10);
  const Statistics end = pool.statistics();
  const auto requests = static_cast<double>(end.requests - warm.requests);
  EXPECT_GT(static_cast<double>(end.routine_hits - warm.routine_hits), 0.9 * requests) << "looking costs a request";
  expect_invariants(pool);
}

TEST_P(RoutinesTest, AreFollowedUnderAnyAlignmentThatPyTorchWants) {
  CachingAllocator pool(memory());
  for (int i = 0; i < 1000; ++i) {
    void* block = pool.allocate(1000, 256, stream_of(pool));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0u);
    pool.deallocate(block, 1000, 256, stream_of(pool));
  }
  EXPECT_GT(pool.statistics().routine_hits, 800u);
}

TEST_P(RoutinesTest, AreFollowedWhereTagsDoNotCount) {
  CachingAllocator pool(memory(), {.mode = AllocatorMode::lightweight});
  const std::uint64_t hash = pool.sequence_hash();
  for (const Category category : {Category::gradient, Category::unknown}) {
    for (int i = 0; i < 1000; ++i) deallocate(pool, allocate(pool, 1000, category), 1000);
  }
  EXPECT_GT(pool.statistics().routine_hits, 1600u);
  EXPECT_EQ(pool.sequence_hash(), hash);
}

TEST_P(RoutinesTest, EndWhereAnotherStreamComesToUseABlock) {
  CachingAllocator pool(memory());
  void* block = nullptr;
  for (int i = 0; i < 300; ++i) deallocate(pool, block = allocate(pool, 1000), 1000);
  ASSERT_GT(pool.statistics().routine_hits, 0u);
  ASSERT_EQ(allocate(pool, 1000), block);
  pool.use(block, stream_of(pool, 1));
  deallocate(pool, block, 1000);
  EXPECT_EQ(pool.statistics().pending_bytes, 1024u);
  EXPECT_NE(allocate(pool, 1000), block) << "the other stream may still use it";
}

TEST_P(RoutinesTest, GoOnAfterSomebodyHasLooked) {
  CachingAllocator pool(memory());
  for (int i = 0; i < 1000; ++i) {
    deallocate(pool, allocate(pool, 1000), 1000);
    if (i % 10 == 0) {
      EXPECT_EQ(pool.statistics().allocation.allocated, static_cast<std::uint64_t>(i + 1));
    }
  }
  EXPECT_GT(pool.statistics().routine_hits, 700u) << "one act is carried out after each look";
}

TEST_P(RoutinesTest, AreTakenAwayWhileTheirThreadFollowsThem) {
  CachingAllocator pool(memory());
  std::atomic<bool> done = false;
  std::thread looker([&] {
    while (!done) {
      pool.snapshot();
      pool.trim(1);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int i = 0; i < 20000; ++i) {
    void* first = allocate(pool, 1000);
    void* second = allocate(pool, 3 * MiB, Category::gradient);
    deallocate(pool, first, 1000);
    deallocate(pool, second, 3 * MiB);
  }
  done = true;
  looker.join();
  const Statistics statistics = pool.statistics();
  EXPECT_EQ(statistics.requests, 40000u);
  EXPECT_EQ(statistics.allocation.freed, 40000u);
  EXPECT_EQ(statistics.requested_bytes.peak, 3 * MiB + 1000);
  expect_invariants(pool);
}

TEST_P(RoutinesTest, LeaveMagazinesToSeveralThreads) {
  CachingAllocator pool(memory());
  deallocate(pool, allocate(pool, 1000), 1000);
  EXPECT_EQ(pool.statistics().magazine_bytes, 0u);
  std::thread([&] {
    deallocate(pool, allocate(pool, 1000), 1000);
    EXPECT_EQ(pool.statistics().magazine_bytes, 1024u);
  }).join();
}

TEST_P(RoutinesTest, AreInTracesLikeEverythingElse) {
  CachingAllocator pool(memory());
  pool.start_trace();
  for (int i = 0; i < 300; ++i) deallocate(pool, allocate(pool, 1100, Category::activation, 0, 256), 1100);
  ASSERT_GT(pool.statistics().routine_hits, 0u);
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  for (const poolgrad::TraceEvent& event : pool.trace().events) {
    if (event.allocation != 0) {
      EXPECT_EQ(event.size, 1100u);
      EXPECT_EQ(event.slack, 1280u - 1100u) << "rounded up to the alignment";
    }
    if (event.kind == TraceKind::allocate) {
      EXPECT_EQ(event.allocation, ++allocations);
    } else if (event.kind == TraceKind::free_completed) {
      EXPECT_EQ(event.allocation, ++frees);
    }
  }
  EXPECT_EQ(allocations, 300u);
  EXPECT_EQ(frees, 300u);
}

// Two pools, one with routines, do the same: random steps that repeat themselves, and now and then something else. All
// that can be asked about them is the same at every moment.
class Twins {
 public:
  explicit Twins(std::uint64_t seed) : random_(seed) {}

  void run(int rounds) {
    std::vector<Step> steps;
    for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
      if (steps.empty() || one_in(40)) steps = {random_step(), random_step()};
      const Step& step = steps[one_in(20) ? 1 : 0];
      const std::size_t odd = one_in(8) ? random_() % step.size() : step.size();
      for (std::size_t i = 0; i < step.size(); ++i) {
        if (i == odd) do_something_else();
        perform(step[i]);
      }
    }
    compare();
  }
  std::uint64_t routine_hits() const { return with_.statistics().routine_hits; }

 private:
  struct Deed {
    std::size_t slot;
    std::size_t bytes;  // 0: free
    Category category;
    std::size_t alignment;
  };
  using Step = std::vector<Deed>;
  struct Held {
    void* pointers[2];
    std::size_t bytes;
    std::uint64_t stream;
  };

  bool one_in(std::uint64_t n) { return random_() % n == 0; }
  CachingAllocator& pool(int i) { return i == 0 ? with_ : without_; }

  Step random_step() {
    Step step;
    std::vector<std::size_t> live;
    const std::size_t blocks = 1 + random_() % 150;
    for (std::size_t slot = 0; slot < blocks || !live.empty();) {
      if (slot < blocks && (live.empty() || !one_in(2))) {
        const std::size_t bytes = 1 + random_() % (std::size_t{64} << random_() % 17);
        const std::size_t alignment = one_in(4) ? std::size_t{16} << random_() % 8 : 64;
        step.push_back({slot, bytes, static_cast<Category>(random_() % category_count), alignment});
        live.push_back(slot++);
      } else {
        const std::size_t which = random_() % live.size();
        step.push_back({live[which], 0, {}, 0});
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    return step;
  }

  void allocate_both(std::size_t bytes, Category category, std::uint64_t stream, Held& held,
                     std::size_t alignment = 64) {
    for (int i = 0; i < 2; ++i) held.pointers[i] = allocate(pool(i), bytes, category, stream, alignment);
    held.bytes = bytes;
    held.stream = stream;
    ASSERT_EQ(held.pointers[0], held.pointers[1]);
  }
  void free_both(const Held& held, std::uint64_t stream) {
    for (int i = 0; i < 2; ++i) deallocate(pool(i), held.pointers[i], held.bytes, stream);
  }

  void perform(const Deed& deed) {
    if (held_.size() <= deed.slot) held_.resize(deed.slot + 1);
    if (deed.bytes != 0) return allocate_both(deed.bytes, deed.category, 0, held_[deed.slot], deed.alignment);
    free_both(held_[deed.slot], 0);
    held_[deed.slot] = {};
  }

  // Of what is live, any; nullptr if nothing is.
  Held* any() {
    for (int tries = 0; tries < 8 && !held_.empty(); ++tries) {
      Held& held = held_[random_() % held_.size()];
      if (held.bytes != 0) return &held;
    }
    return nullptr;
  }

  void do_something_else() {
    switch (random_() % 12) {
      case 0: return compare();
      case 1: {
        if (kept_.size() > 6) {
          free_both(kept_.front(), random_() % 2);
          kept_.erase(kept_.begin());
          return;
        }
        return allocate_both(1 + random_() % 100000, Category::activation, random_() % 2, kept_.emplace_back());
      }
      case 2:
        if (Held* held = any()) {
          for (int i = 0; i < 2; ++i) pool(i).use(held->pointers[i], stream_of(pool(i), 1));
        }
        return;
      case 3: {
        const std::uint64_t later = random_() % 2;
        for (int i = 0; i < 2; ++i) pool(i).order(stream_of(pool(i), later), stream_of(pool(i), 1 - later));
        return;
      }
      case 4: {
        const std::size_t bytes = one_in(2) ? SIZE_MAX : 64 * KiB * (random_() % 32);
        EXPECT_EQ(with_.trim(bytes), without_.trim(bytes));
        return;
      }
      case 5:
        if (Held* held = any()) {
          const std::size_t wanted = 1 + random_() % (2 * held->bytes);
          bool done[2];
          for (int i = 0; i < 2; ++i)
            done[i] = pool(i).expand_in_place(held->pointers[i], held->bytes, wanted, stream_of(pool(i), held->stream));
          EXPECT_EQ(done[0], done[1]);
          if (done[0]) held->bytes = wanted;
        }
        return;
      case 6: {
        Held held;
        std::thread([&] {
          allocate_both(1000, Category::temp, 0, held);
          free_both(held, 0);
        }).join();
        return;
      }
      case 7: with_.reset_peaks(); return without_.reset_peaks();
      case 8: EXPECT_EQ(with_.sequence_hash(), without_.sequence_hash()); return;
      case 9:
        if (Held* held = any()) {
          EXPECT_EQ(with_.usable_size(held->pointers[0]), without_.usable_size(held->pointers[1]));
        }
        return;
      case 10: {
        Held held;
        allocate_both(5000, Category::output, 0, held);
        return free_both(held, 0);
      }
      default:
        for (int i = 0; i < 2; ++i) pool(i).begin_step();
    }
  }

  void compare() {
    Statistics one = with_.statistics();
    Statistics other = without_.statistics();
    one.routine_hits = one.bookkeeping_bytes = other.bookkeeping_bytes = 0;
    auto names = named_statistics(one);
    auto others = named_statistics(other);
    for (auto* list : {&names, &others}) {
      std::erase_if(*list, [](const auto& entry) { return entry.first.ends_with("nanoseconds"); });
    }
    ASSERT_EQ(names, others);
    const auto blocks = with_.snapshot();
    const auto expected = without_.snapshot();
    ASSERT_EQ(blocks.size(), expected.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(blocks[i].address, expected[i].address);
      ASSERT_EQ(blocks[i].size, expected[i].size);
      ASSERT_EQ(blocks[i].state, expected[i].state);
      ASSERT_EQ(blocks[i].stream, expected[i].stream);
      ASSERT_EQ(blocks[i].epoch, expected[i].epoch);
      if (blocks[i].state != BlockState::live) continue;
      ASSERT_EQ(blocks[i].requested, expected[i].requested);
      ASSERT_EQ(blocks[i].number, expected[i].number);
      ASSERT_EQ(blocks[i].tag.category, expected[i].tag.category);
    }
  }

  std::mt19937_64 random_;
  CachingAllocator with_{make_memory("sim", 256 * MiB, 64 * KiB), {.magazines = false, .deterministic = true}};
  CachingAllocator without_{make_memory("sim", 256 * MiB, 64 * KiB),
                            {.magazines = false, .routines = false, .deterministic = true}};
  std::vector<Held> held_;  // by slot of the step
  std::vector<Held> kept_;
};

TEST(RoutineTwins, CannotBeToldApart) {
  const char* given = std::getenv("POOLGRAD_TEST_SEED");
  const std::uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::uint64_t hits = 0;
  for (std::uint64_t seed = first; seed < first + 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Twins twins(seed);
    twins.run(300);
    hits += twins.routine_hits();
    if (HasFailure()) return;
  }
  EXPECT_GT(hits, 20u * 1000u);
}

using RoutinesDeathTest = RoutinesTest;
INSTANTIATE_TEST_SUITE_P(Devices, RoutinesDeathTest, devices, device_name);

TEST_P(RoutinesDeathTest, NameADoubleFreeAndAWrongSize) {
  CachingAllocator pool(memory());
  void* block = nullptr;
  for (int i = 0; i < 300; ++i) deallocate(pool, block = allocate(pool, 1000), 1000);
  ASSERT_GT(pool.statistics().routine_hits, 0u);
  EXPECT_DEATH(deallocate(pool, block, 1000), "\\[deallocate\\] double free of 0x");
  ASSERT_EQ(allocate(pool, 1000), block);
  EXPECT_DEATH(deallocate(pool, block, 999), "wrong size for .* it has 1000 bytes, not 999");
}

}  // namespace
}  // namespace poolgrad::testing
