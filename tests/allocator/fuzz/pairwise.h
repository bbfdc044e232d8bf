// A short list of option combinations that contains every pair of values of two options.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "tests/allocator/fuzz/generator.h"

namespace poolgrad::testing {

/// One value (an index) for each option.
using OptionRow = std::vector<std::size_t>;

/// ((option, value), (option, value)), the lower option first.
using OptionPair = std::pair<std::pair<std::size_t, std::size_t>, std::pair<std::size_t, std::size_t>>;

inline std::vector<OptionPair> pairs_of(const OptionRow& row) {
  std::vector<OptionPair> pairs;
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = i + 1; j < row.size(); ++j) pairs.push_back({{i, row[i]}, {j, row[j]}});
  }
  return pairs;
}

/// `counts` is the number of values of each option. Each row is the best of several random rows, built around a missing
/// pair.
inline std::vector<OptionRow> pairwise(const std::vector<std::size_t>& counts, std::uint64_t seed) {
  Random random(seed);
  std::set<OptionPair> missing;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::size_t j = i + 1; j < counts.size(); ++j) {
      for (std::size_t a = 0; a < counts[i]; ++a) {
        for (std::size_t b = 0; b < counts[j]; ++b) missing.insert({{i, a}, {j, b}});
      }
    }
  }
  std::vector<OptionRow> rows;
  while (!missing.empty()) {
    const auto [first, second] = *missing.begin();
    OptionRow best;
    std::size_t most = 0;
    for (int attempt = 0; attempt < 30; ++attempt) {
      OptionRow row;
      for (const std::size_t count : counts) row.push_back(random.below(count));
      row[first.first] = first.second;
      row[second.first] = second.second;
      std::size_t covered = 0;
      for (const OptionPair& pair : pairs_of(row)) covered += missing.count(pair);
      if (covered > most) {
        most = covered;
        best = row;
      }
    }
    for (const OptionPair& pair : pairs_of(best)) missing.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

}  // namespace poolgrad::testing
