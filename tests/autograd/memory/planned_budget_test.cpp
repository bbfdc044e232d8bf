// A budget for steps that repeat: the plan alone, and by what is dropped because of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/memory/step_plan.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/test_seed.h"
#include "tests/threads.h"

namespace poolgrad {
namespace {

using ::testing::HasSubstr;

// The plan as a function of a profile.

/// A chain, or, with `skips`, operators that also read the result before the last one; all is saved, and wanted in
/// reverse. Sizes and times are small numbers.
StepProfile small_step(std::uint32_t count, std::mt19937_64& random, bool skips) {
  const auto number = [&](std::uint64_t most) { return static_cast<std::uint32_t>(1 + random() % most); };
  StepProfile step;
  for (std::uint32_t i = 0; i < count; ++i) {
    StepProfile::Operation operation{.kind = number(3), .nanoseconds = 1.0 * number(9), .scratch = number(2) - 1};
    if (i > 0) operation.reads.push_back(i - 1);
    if (i > 1 && skips && number(2) == 1) operation.reads.push_back(i - 2);
    operation.makes = {i};
    step.operations.push_back(operation);
    step.results.push_back({number(3), i});
    const std::size_t made = step.results.back().bytes;
    step.events.push_back({StepProfile::Kind::recorded, i, made, made, 0});
    const auto saved_at = static_cast<std::uint32_t>(step.events.size());
    step.events.push_back({StepProfile::Kind::saved, i, 0, 0, saved_at + 1});  // until the next operator has begun
  }
  for (std::uint32_t i = count; i-- > 0;) {
    const auto at = static_cast<std::uint32_t>(step.events.size());
    step.events.push_back({StepProfile::Kind::wanted, i, 1, 1, at + 1});
    step.events.push_back({StepProfile::Kind::released, i, 2, 1, 0});
  }
  return step;
}

/// The least nanoseconds of any schedule: shortest paths over (event, what is in memory), where at each point any
/// result that is not used may be dropped, and any operator whose inputs are there may run.
double least_by_search(const StepProfile& step, std::size_t limit) {
  using State = std::pair<std::uint32_t, std::uint32_t>;  // event that comes next, set of results
  std::map<State, double> reached{{{0, 0}, 0.0}};
  const auto bytes_of = [&](std::uint32_t set) {
    std::size_t bytes = 0;
    for (std::uint32_t r = 0; r < step.results.size(); ++r)
      if (set >> r & 1) bytes += step.results[r].bytes;
    return bytes;
  };
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::uint32_t> used(step.events.size() + 1, 0);  // sets that nobody may drop before the event
  std::vector<std::uint32_t> alive(step.events.size() + 1, 0);
  for (std::uint32_t e = 0; e < step.events.size(); ++e) {
    const StepProfile::Event& event = step.events[e];
    alive[e + 1] = alive[e];
    if (event.kind == StepProfile::Kind::saved) alive[e + 1] |= 1u << event.which;
    if (event.kind == StepProfile::Kind::released) alive[e + 1] &= ~(1u << event.which);
    if (event.kind == StepProfile::Kind::saved || event.kind == StepProfile::Kind::wanted)
      for (std::uint32_t later = e + 1; later <= event.used_until; ++later) used[later] |= 1u << event.which;
  }
  for (std::uint32_t e = 0; e < step.events.size(); ++e) {
    const StepProfile::Event& event = step.events[e];
    std::map<std::uint32_t, double> open;
    for (const auto& [state, cost] : reached)
      if (state.first == e) open[state.second] = cost;
    // Within the event: cheapest first, by the number of changes of costs until nothing improves.
    for (bool improved = true; improved;) {
      improved = false;
      const auto offer = [&](std::uint32_t set, double cost) {
        const auto [place, added] = open.try_emplace(set, cost);
        if (!added && place->second <= cost) return;
        place->second = cost;
        improved = true;
      };
      const std::map<std::uint32_t, double> now = open;
      for (const auto& [set, cost] : now) {
        for (std::uint32_t r = 0; r < step.results.size(); ++r) {
          const std::uint32_t one = 1u << r;
          if ((set & one) != 0 && (used[e] & one) == 0) offer(set & ~one, cost);
          const StepProfile::Operation& operation = step.operations[r];
          const bool can_run =
              event.kind == StepProfile::Kind::wanted && (set & one) == 0 && (alive[e] & one) != 0 &&
              std::ranges::all_of(operation.reads, [&](std::uint32_t read) { return set >> read & 1; });
          if (can_run && bytes_of(set | one) + event.now + operation.scratch <= limit)
            offer(set | one, cost + operation.nanoseconds);
        }
      }
    }
    for (const auto& [set, cost] : open) {
      std::uint32_t after = set;
      if (event.kind == StepProfile::Kind::wanted && (set >> event.which & 1) == 0) continue;
      if (event.kind == StepProfile::Kind::saved) after |= 1u << event.which;
      if (event.kind == StepProfile::Kind::released) after &= ~(1u << event.which);
      if (e + 1 == step.events.size()) {
        best = std::min(best, cost);
        continue;
      }
      // What is dropped at the end of this event is tried as well.
      for (std::uint32_t kept = after;; kept = (kept - 1) & after) {
        if ((used[e + 1] & after & ~kept) == 0 && bytes_of(kept) + step.events[e + 1].before <= limit) {
          const auto [place, added] = reached.try_emplace({e + 1, kept}, cost);
          if (!added) place->second = std::min(place->second, cost);
        }
        if (kept == 0) break;
      }
    }
  }
  return best;
}

TEST(StepPlan, IsNearTheOptimumOfSmallStepsAndNeverBelowTheBound) {
  std::mt19937_64 random(test_seed());
  int planned = 0, optimal = 0;
  double sum_planned = 0, sum_optimal = 0;
  for (int round = 0; round < 60; ++round) {
    const StepProfile step = small_step(4 + static_cast<std::uint32_t>(random() % 4), random, round % 2 == 1);
    std::size_t all = 2;
    for (const StepProfile::Result& result : step.results) all += result.bytes;
    for (std::size_t limit = all; limit >= 5; --limit) {
      const double least = least_by_search(step, limit);
      const StepPlan plan = plan_step(step, limit);
      const double bound = least_nanoseconds(step, limit);
      EXPECT_LE(bound, least + 1e-9);
      if (!plan.is_feasible) continue;
      ++planned;
      EXPECT_LE(plan.peak, limit);
      EXPECT_GE(plan.nanoseconds, least - 1e-9) << "limit " << limit;
      sum_planned += plan.nanoseconds;
      sum_optimal += least;
      optimal += plan.nanoseconds <= least + 1e-9;
    }
  }
  EXPECT_GT(planned, 250);
  EXPECT_GE(optimal, planned * 9 / 10);
  EXPECT_LE(sum_planned, 1.03 * sum_optimal);
  RecordProperty("planned", planned);
  RecordProperty("optimal", optimal);
  RecordProperty("share", std::to_string(sum_planned / sum_optimal));
}

TEST(StepPlan, KeepsWhatIsDearAndDropsWhatIsCheapForItsSize) {
  StepProfile step;
  const double nanoseconds[] = {100, 1, 100, 1};
  for (std::uint32_t i = 0; i < 4; ++i) {
    step.operations.push_back({.kind = i, .nanoseconds = nanoseconds[i], .makes = {i}});
    step.results.push_back({10, i});
    step.events.push_back({StepProfile::Kind::saved, i, 0, 0, i});
  }
  for (std::uint32_t i = 4; i-- > 0;) {
    step.events.push_back({StepProfile::Kind::wanted, i, 0, 0, static_cast<std::uint32_t>(step.events.size())});
    step.events.push_back({StepProfile::Kind::released, i, 0, 0, 0});
  }
  const StepPlan plan = plan_step(step, 30);  // one of four has to go
  ASSERT_TRUE(plan.is_feasible);
  ASSERT_EQ(plan.drops.size(), 1u);
  EXPECT_EQ(plan.drops[0].result, 1u);
  EXPECT_EQ(plan.nanoseconds, 1.0);
  EXPECT_EQ(plan.bound, 1.0);
  EXPECT_EQ(plan.peak, 30u);
  EXPECT_EQ(plan_step(step, 40).drops.size(), 0u);
  EXPECT_FALSE(plan_step(step, 9).is_feasible);
  EXPECT_EQ(smallest_limit(step, 50), 10u);
}

// The same for tensors.

/// Residual blocks with dropout, wider inside.
class PlannedBlocks {
 public:
  explicit PlannedBlocks(int depth) {
    for (int i = 0; i < depth; ++i) {
      parameters_.push_back(ones({width}).set_requires_grad());
      parameters_.push_back((randn({4 * width, width}, {}, generator_) * 0.1).detach().set_requires_grad());
      parameters_.push_back((randn({width, 4 * width}, {}, generator_) * 0.1).detach().set_requires_grad());
    }
  }
  std::vector<Tensor> gradients(std::int64_t rows = 1024) {
    Generator masks(7), input(static_cast<std::uint64_t>(rows));
    Tensor x = randn({rows, width}, {}, input);
    for (std::size_t i = 0; i < parameters_.size(); i += 3) {
      const Tensor hidden = gelu(linear(rms_norm(x, parameters_[i]), parameters_[i + 1]));
      x = x + dropout(linear(hidden, parameters_[i + 2]), 0.1, masks);
    }
    return grad({mean(square(x))}, parameters_);
  }

 private:
  static constexpr std::int64_t width = 32;
  Generator generator_{11};
  std::vector<Tensor> parameters_;
};

bool are_equal_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return a.size() == b.size() &&
         std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) { return bit_equal(x, y); });
}

std::size_t peak_within(const std::function<void()>& body) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.trim();
  pool.reset_peaks();
  body();
  return pool.statistics().reserved_bytes.peak;
}

struct Limits {
  std::size_t standing, unlimited;
  std::size_t share(std::size_t percent) const { return standing + (unlimited - standing) * percent / 100; }
};
Limits limits_of(const std::function<void()>& body) {
  return {peak_within([] {}), peak_within(body)};
}

/// Nanoseconds computed again by one call.
double again_in(const MemoryBudget& budget, const std::function<void()>& body) {
  const double before = budget.statistics().recomputed_nanoseconds;
  body();
  return budget.statistics().recomputed_nanoseconds - before;
}

TEST(PlannedBudget, GivesTheSameBitsWithinEveryBudgetAndComputesLessAgain) {
  PlannedBlocks blocks(8);
  const std::vector<Tensor> expected = blocks.gradients();
  const Limits limits = limits_of([&] { blocks.gradients(); });
  int feasible = 0, better = 0;
  double planned = 0, unplanned = 0;
  for (std::size_t percent = 100; percent > 10; percent -= 15) {
    const std::size_t bytes = limits.share(percent);
    const auto last_of = [&](bool plans) {
      allocator_for(cpu).trim();
      const MemoryBudget budget(bytes, cpu, {.planned = plans});
      double last = 0;
      const std::size_t peak = peak_within([&] {
        for (int i = 0; i < 5; ++i)
          last =
              again_in(budget, [&] { EXPECT_TRUE(are_equal_bits(blocks.gradients(), expected)) << percent << " %"; });
      });
      EXPECT_LE(peak, bytes) << percent << " %";
      EXPECT_EQ(budget.statistics().held_bytes, 0u);
      return last;
    };
    try {
      const double without = last_of(false), with = last_of(true);
      planned += with;
      unplanned += without;
      better += with < without;
      ++feasible;
    } catch (const OutOfMemoryError&) {
      EXPECT_LE(allocator_for(cpu).statistics().reserved_bytes.peak, bytes);
    }
  }
  EXPECT_GE(feasible, 4);
  EXPECT_GE(better, 2);
  EXPECT_LT(planned, unplanned);
}

TEST(PlannedBudget, DoesWhatWasPredictedAndTheSameEachTime) {
  const Threads one(1);  // with more, scratch is reckoned with where it does not always count
  PlannedBlocks blocks(8);
  const Limits limits = limits_of([&] { blocks.gradients(); });
  for (const std::size_t percent : {85u, 50u}) {
    std::vector<std::tuple<std::uint64_t, std::uint64_t, double, double, std::uint64_t>> seen;
    for (int run = 0; run < 2; ++run) {
      allocator_for(cpu).trim();
      const MemoryBudget budget(limits.share(percent), cpu, {.planned = true});
      double last = 0;
      for (int i = 0; i < 8; ++i) {
        allocator_for(cpu).reset_peaks();
        last = again_in(budget, [&] { blocks.gradients(); });
      }
      const RematerialisationStatistics statistics = budget.statistics();
      EXPECT_GE(statistics.plan.steps, 4u) << percent << " %";
      EXPECT_GT(statistics.dropped, 0u);
      EXPECT_NEAR(statistics.plan.nanoseconds, last, 1e-12 * last);  // summed in another order
      EXPECT_LE(statistics.plan.bound_nanoseconds, statistics.plan.nanoseconds);
      EXPECT_LE(statistics.plan.peak_bytes, limits.share(percent));
      EXPECT_EQ(statistics.plan.peak_bytes, allocator_for(cpu).statistics().active_bytes.peak);
      seen.emplace_back(statistics.dropped, statistics.recomputed, last, statistics.plan.nanoseconds,
                        statistics.plan.peak_bytes);
    }
    EXPECT_EQ(seen[0], seen[1]);
  }
}

TEST(PlannedBudget, LearnsAnewWhereTheStepChangesItsShape) {
  PlannedBlocks blocks(8);
  const Limits limits = limits_of([&] { blocks.gradients(1024); });
  const std::vector<std::int64_t> rows{1024, 1024, 1024, 768, 768, 1024, 256, 768, 1024, 768};
  std::map<std::int64_t, std::vector<Tensor>> expected;
  for (const std::int64_t n : rows) expected[n] = blocks.gradients(n);
  const std::size_t bytes = limits.share(60) + limits_of([] {}).standing - limits.standing;
  allocator_for(cpu).trim();
  const MemoryBudget budget(bytes, cpu, {.planned = true});
  EXPECT_LE(peak_within([&] {
              for (const std::int64_t n : rows) EXPECT_TRUE(are_equal_bits(blocks.gradients(n), expected[n]));
            }),
            bytes);
  EXPECT_GE(budget.statistics().plan.plans, 3u);
  EXPECT_GE(budget.statistics().plan.steps, 5u);
}

TEST(PlannedBudget, OutlivesAStepThatDoesSomethingElseInTheMiddle) {
  const Tensor x = uniform({1 << 12}, 0.5, 1.0).set_requires_grad();
  const auto run = [&](int other) {
    Tensor y = x;
    for (int i = 0; i < 40; ++i) y = i == other ? sigmoid(y) : sin(y);
    return grad({sum(y)}, {x});
  };
  const Limits limits = limits_of([&] { run(-1); });
  const std::vector<int> others{-1, -1, -1, 20, -1, 21, 22, 23, 24, 25, 26, -1, -1, -1};
  std::map<int, std::vector<Tensor>> expected;
  for (const int other : others) expected[other] = run(other);
  const std::size_t bytes = limits.share(55) + limits_of([] {}).standing - limits.standing;
  allocator_for(cpu).trim();
  const MemoryBudget budget(bytes, cpu, {.planned = true});
  EXPECT_LE(peak_within([&] {
              for (const int other : others) EXPECT_TRUE(are_equal_bits(run(other), expected[other])) << other;
            }),
            bytes);
  EXPECT_EQ(budget.statistics().plan.steps, 2u) << "none of them is one that went another way";
}

TEST(PlannedBudget, NamesABudgetThatWorksAndIsNearTheLeast) {
  PlannedBlocks blocks(12);
  const Limits limits = limits_of([&] { blocks.gradients(); });
  const auto works = [&](std::size_t bytes) {
    allocator_for(cpu).trim();
    const MemoryBudget budget(bytes, cpu, {.planned = true});
    try {
      for (int i = 0; i < 2; ++i) blocks.gradients();
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  for (const std::size_t percent : {100u, 50u}) {
    std::size_t named = 0;
    {
      allocator_for(cpu).trim();
      const MemoryBudget budget(limits.share(percent), cpu, {.planned = true});
      blocks.gradients();
      blocks.gradients();
      named = budget.smallest();
    }
    EXPECT_TRUE(works(named)) << percent << " %: " << named << " bytes";
    EXPECT_FALSE(works(named * 94 / 100)) << percent << " %: " << named << " bytes";
  }
}

TEST(PlannedBudget, ThatIsTooSmallNamesOneThatWouldDo) {
  CachingAllocator& pool = allocator_for(cpu);
  const Tensor x = uniform({1 << 14}, 0.5, 1.0).set_requires_grad();
  const auto run = [&] {
    Tensor y = x;
    for (int i = 0; i < 500; ++i) y = sin(y);
    return grad({sum(y)}, {x});
  };
  const std::vector<Tensor> expected = run();
  pool.trim();
  const std::size_t standing = pool.statistics().reserved_bytes.current;
  std::string refusal;
  std::size_t named = 0;
  for (std::size_t tensors = 6; tensors > 1 && refusal.empty(); --tensors) {
    const MemoryBudget budget(standing + tensors * (1 << 16), cpu, {.planned = true});
    try {
      run();
    } catch (const Error& error) {
      refusal = error.what();
      named = budget.smallest();
    }
  }
  EXPECT_THAT(refusal, HasSubstr("the budget is too small"));
  EXPECT_THAT(refusal, HasSubstr(" would do"));
  pool.trim();
  const MemoryBudget budget(named, cpu, {.planned = true});
  EXPECT_TRUE(are_equal_bits(run(), expected));
}

TEST(PlannedBudget, WorksInAPoolThatPlansItsAddresses) {
  // In POOLGRAD_ALLOCATOR=mode:planned, too: see CMakeLists.txt.
  CachingAllocator& pool = allocator_for(cpu);
  PlannedBlocks blocks(8);
  const std::vector<Tensor> expected = blocks.gradients();
  const Limits limits = limits_of([&] { blocks.gradients(); });
  const MemoryBudget budget(limits.share(60), cpu, {.planned = true});
  EXPECT_LE(peak_within([&] {
              for (int i = 0; i < 8; ++i) {
                pool.begin_step();
                EXPECT_TRUE(are_equal_bits(blocks.gradients(), expected));
              }
            }),
            limits.share(60));
  EXPECT_GE(budget.statistics().plan.steps, 4u);
}

}  // namespace
}  // namespace poolgrad
