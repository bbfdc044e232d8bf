#include "kernels/schedule/strips.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/kernels/attention/schedule_pairs.h"

namespace poolgrad::kernels {
namespace {

using testing_support::Definition;
using testing_support::expect_visits;
using testing_support::shards;
using Kind = AttentionTerm::Kind;

std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}
std::int64_t mod_of(std::int64_t a, std::int64_t b) { return a - b * floor_of(a, b); }

struct Branches {
  std::vector<std::int64_t> lengths, rates;
  bool nested = false;
};

AttentionSchedule dilated(const Branches& branches, std::int64_t count, std::int64_t heads) {
  AttentionSchedule schedule;
  schedule.queries = schedule.keys = PositionMap::contiguous(count);
  schedule.heads = heads;
  AttentionTerm& term = schedule.term[0];
  term.kind = Kind::dilated;
  term.nested = branches.nested;
  term.branches = static_cast<std::int32_t>(branches.rates.size());
  for (std::size_t b = 0; b < branches.rates.size(); ++b) {
    term.segment_length[b] = branches.lengths[b];
    term.dilation_rate[b] = branches.rates[b];
    schedule.modulus = std::lcm(schedule.modulus, branches.rates[b]);
  }
  return schedule;
}

/// Sum over branches, from the table of docs/reference/attention.md; `phase` gives the residue of a branch.
Definition dilated_definition(const Branches& branches,
                              std::function<std::int64_t(std::int64_t h, std::size_t b)> phase, bool unite = false) {
  return [=](std::int64_t h, std::int64_t i, std::int64_t j) {
    std::int64_t m = 0;
    for (std::size_t b = 0; b < branches.rates.size(); ++b) {
      const std::int64_t w = branches.lengths[b], r = branches.rates[b], p = phase(h, b);
      if (p < 0) continue;
      m += floor_of(i, w) == floor_of(j, w) && mod_of(i, w) % r == p && mod_of(j, w) % r == p;
    }
    return unite ? std::min<std::int64_t>(m, 1) : m;
  };
}

const Branches branch_sets[] = {
    {{16, 32, 64}, {1, 2, 4}, true},
    {{8, 8, 64}, {1, 2, 2}, true},
    {{32, 128}, {2, 4}, true},
    {{16, 32, 64}, {1, 2, 4}, false},
    {{12, 24}, {4, 6}, false},
    {{10, 7}, {4, 3}, false},
    {{200}, {1}, true},
    {{30, 20, 50}, {1, 1, 5}, false},
};

TEST(DilatedStrips, VisitEveryBranchOnce) {
  for (const Branches& branches : branch_sets)
    for (const std::int64_t count : {64, 61, 100})
      for (const bool causal : {false, true}) {
        AttentionSchedule schedule = dilated(branches, count, 5);
        if (causal) schedule.right = 0;
        const Definition all = dilated_definition(branches, [&](auto h, auto b) { return h % branches.rates[b]; });
        expect_visits(schedule, [&](auto h, auto i, auto j) { return causal && j > i ? 0 : all(h, i, j); },
                      "w " + std::to_string(branches.lengths[0]) + (branches.nested ? " nested" : ""), {16, 128});
      }
}

TEST(DilatedStrips, VisitShardsAndNegativePositions) {
  for (const Branches& branches : branch_sets)
    for (const PositionMap& queries : shards(50, -21))
      for (const PositionMap& keys : shards(40)) {
        AttentionSchedule schedule = dilated(branches, 0, 2);
        schedule.queries = queries;
        schedule.keys = keys;
        schedule.cut = branches.nested ? branches.lengths[0] : 0;
        expect_visits(schedule, dilated_definition(branches, [&](auto h, auto b) { return h % branches.rates[b]; }),
                      "w " + std::to_string(branches.lengths[0]) + (branches.nested ? " nested" : ""), {1, 16});
      }
}

TEST(DilatedStrips, VisitFewerPairsOfNestedShells) {
  const Branches nested{{16, 32, 64}, {1, 2, 4}, true}, plain{{16, 32, 64}, {1, 2, 4}, false};
  EXPECT_EQ(dilated(nested, 64, 4).count_pairs() * 28, dilated(plain, 64, 4).count_pairs() * 22);  // 704 of 896
}

TEST(DilatedStrips, CountAPairOncePerBranch) {
  Branches branches{{}, {}, true};
  for (std::int64_t b = 0; b < AttentionTerm::max_branches; ++b) {
    branches.lengths.push_back(b < 5 ? 4 << b : 64);
    branches.rates.push_back(b < 3 ? 1 : 2);
    expect_visits(dilated(branches, 70, 2),
                  dilated_definition(branches, [&](auto h, auto n) { return h % branches.rates[n]; }),
                  std::to_string(b + 1) + " branches", {37});
  }
}

TEST(DilatedStrips, CountPairsOfUnitedBranchesOnce) {
  for (const Branches& branches : branch_sets) {
    AttentionSchedule schedule = dilated(branches, 90, 3);
    schedule.term[0].unite = true;
    expect_visits(schedule,
                  dilated_definition(
                      branches, [&](auto h, auto b) { return h % branches.rates[b]; }, true),
                  "united", {37});
  }
}

TEST(DilatedStrips, GiveEachGroupOfHeadsOneBranch) {
  for (const Branches& branches : branch_sets)
    for (const std::int64_t heads : {3, 8}) {
      AttentionSchedule schedule = dilated(branches, 80, heads);
      schedule.term[0].grouped = true;
      schedule.term[0].nested = false;
      const auto groups = static_cast<std::int64_t>(branches.rates.size());
      std::vector<std::int64_t> group_of;
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t n = 0; n < heads / groups + (g < heads % groups ? 1 : 0); ++n) group_of.push_back(g);
      expect_visits(schedule,
                    dilated_definition(branches,
                                       [&](auto h, auto b) -> std::int64_t {
                                         const auto g = static_cast<std::size_t>(group_of[static_cast<std::size_t>(h)]);
                                         return g == b ? static_cast<std::int64_t>(g) % branches.rates[b] : -1;
                                       }),
                    "grouped", {37});
    }
}

TEST(DilatedStrips, SupportContiguousPhases) {
  for (const Branches& branches : branch_sets) {
    const std::int64_t heads = 7;
    AttentionSchedule schedule = dilated(branches, 80, heads);
    schedule.term[0].contiguous_offset = true;
    schedule.term[0].nested = false;
    expect_visits(schedule,
                  dilated_definition(branches,
                                     [&](auto h, auto b) {
                                       const auto r = static_cast<double>(branches.rates[b]);
                                       return h / static_cast<std::int64_t>(std::ceil(static_cast<double>(heads) / r));
                                     }),
                  "contiguous offsets", {37});
  }
}

TEST(DilatedStrips, VisitOnlyTheBranchesOfOnePass) {
  const Branches branches{{12, 24, 90}, {4, 6, 9}, false};
  AttentionSchedule schedule = dilated(branches, 90, 3);
  schedule.modulus = 12;
  schedule.term[0].visited_branches = 0b011;
  expect_visits(schedule,
                dilated_definition(branches, [&](auto h, auto b) { return b < 2 ? h % branches.rates[b] : -1; }),
                "two of three", {37});
}

TEST(OffsetStrips, VisitBlocksAtTheListedDistances) {
  AttentionSchedule schedule;
  schedule.heads = 3;
  AttentionTerm& term = schedule.term[0];
  term.kind = Kind::offsets;
  term.size = 16;
  term.sets = 2;
  term.set_begin[1] = 3;
  term.set_begin[2] = 5;
  const AttentionTerm::OffsetRun runs[] = {{-4, -4}, {-2, 2}, {4, 4}, {-3, -3}, {5, 5}};
  std::copy(std::begin(runs), std::end(runs), term.run);
  const std::vector<std::vector<std::int64_t>> sets{{-4, -2, -1, 0, 1, 2, 4}, {-3, 5}};
  for (const std::int64_t cut : {0, 16, 64})
    for (const PositionMap& queries : shards(90, -20))
      for (const PositionMap& keys : shards(70)) {
        schedule.queries = queries;
        schedule.keys = keys;
        schedule.cut = cut;
        expect_visits(schedule,
                      [&](auto h, auto i, auto j) {
                        const auto& set = sets[static_cast<std::size_t>(h % 2)];
                        return std::count(set.begin(), set.end(), floor_of(j, 16) - floor_of(i, 16));
                      },
                      "offsets", {16, 128});
      }
}

}  // namespace
}  // namespace poolgrad::kernels
