// The table of patterns of docs/attention.md, pair by pair, written apart from the code under test; and what a compiled
// pattern visits, for comparison.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention/pattern.h"
#include "tests/kernels/schedule_pairs.h"

namespace poolgrad::attention::testing_support {

/// m_h(i, j) with `heads` query heads.
using Multiplicity = std::function<std::int64_t(std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j)>;

inline std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}
inline std::int64_t mod_of(std::int64_t a, std::int64_t b) { return a - b * floor_of(a, b); }

namespace definition {

inline Multiplicity window(std::int64_t left, std::int64_t right) {
  return [=](auto, auto, auto i, auto j) {
    return (left == Pattern::unbounded || -left <= j - i) && (right == Pattern::unbounded || j - i <= right);
  };
}
inline Multiplicity documents(const std::vector<std::int64_t>& bounds) {
  const auto document = [=](std::int64_t at) -> std::int64_t {
    for (std::size_t d = 0; d + 1 < bounds.size(); ++d)
      if (bounds[d] <= at && at < bounds[d + 1]) return static_cast<std::int64_t>(d);
    return -1;
  };
  return [=](auto, auto, auto i, auto j) { return document(i) >= 0 && document(i) == document(j); };
}
/// Heads are dealt out to consecutive groups, one more to each of the first.
inline std::int64_t group_of(std::int64_t h, std::int64_t heads, std::int64_t groups) {
  std::int64_t end = 0, group = -1;
  while (end <= h) {
    ++group;
    end += heads / groups + (group < heads % groups ? 1 : 0);
  }
  return group;
}
inline Multiplicity dilated(const std::vector<std::int64_t>& w, const std::vector<std::int64_t>& r,
                            const DilatedOptions& options = {}) {
  return [=](std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) {
    std::int64_t m = 0;
    for (std::size_t b = 0; b < w.size(); ++b) {
      std::int64_t phase = h % r[b];
      if (options.offset == DilatedOffset::contiguous) phase = h / ((heads + r[b] - 1) / r[b]);
      if (options.mode == DilatedMode::grouped) {
        if (group_of(h, heads, static_cast<std::int64_t>(w.size())) != static_cast<std::int64_t>(b)) continue;
        phase = static_cast<std::int64_t>(b) % r[b];
      }
      m += floor_of(i, w[b]) == floor_of(j, w[b]) && mod_of(i, w[b]) % r[b] == phase && mod_of(j, w[b]) % r[b] == phase;
    }
    return options.unite ? std::min<std::int64_t>(m, 1) : m;
  };
}
inline Multiplicity block_offsets(std::int64_t block, const std::vector<std::vector<std::int64_t>>& lists) {
  return [=](auto h, auto, auto i, auto j) {
    const auto& list = lists[static_cast<std::size_t>(h) % lists.size()];
    return std::find(list.begin(), list.end(), floor_of(j, block) - floor_of(i, block)) != list.end();
  };
}
inline Multiplicity global_tokens(std::int64_t count, bool rows) {
  return [=](auto, auto, auto i, auto j) { return j < count || (rows && i < count); };
}
inline Multiplicity strided(std::int64_t stride) {
  return [=](auto, auto, auto i, auto j) { return std::abs(i - j) < stride || (i - j) % stride == 0; };
}
inline Multiplicity axial(std::int64_t width) {
  return [=](auto, auto, auto i, auto j) {
    return floor_of(i, width) == floor_of(j, width) || mod_of(i, width) == mod_of(j, width);
  };
}
inline Multiplicity blocks(std::int64_t block, const std::vector<std::vector<std::vector<bool>>>& lists) {
  return [=](auto h, auto, auto i, auto j) {
    const auto& list = lists[static_cast<std::size_t>(h) % lists.size()];
    const std::int64_t row = floor_of(i, block), column = floor_of(j, block);
    if (row < 0 || row >= static_cast<std::int64_t>(list.size())) return false;
    const auto& columns = list[static_cast<std::size_t>(row)];
    return column < static_cast<std::int64_t>(columns.size()) && columns[static_cast<std::size_t>(column)];
  };
}
inline Multiplicity both(const Multiplicity& a, const Multiplicity& b) {
  return [=](auto h, auto heads, auto i, auto j) { return a(h, heads, i, j) * b(h, heads, i, j); };
}
inline Multiplicity either(const Multiplicity& a, const Multiplicity& b) {
  return [=](auto h, auto heads, auto i, auto j) {
    return std::min<std::int64_t>(1, a(h, heads, i, j) + b(h, heads, i, j));
  };
}
inline Multiplicity sum(const Multiplicity& a, const Multiplicity& b) {
  return [=](auto h, auto heads, auto i, auto j) { return a(h, heads, i, j) + b(h, heads, i, j); };
}

}  // namespace definition

/// The passes of the pattern together visit what `expected` says, and so do their transpositions, in tiles of `limit`
/// rows; and multiplicity() says the same.
inline void expect_means(const Pattern& pattern, const Multiplicity& expected, std::int64_t heads,
                         const kernels::PositionMap& queries, const kernels::PositionMap& keys, std::int64_t limit) {
  using kernels::testing_support::VisitedPairs;
  const Pattern::Compiled compiled = pattern.compile(heads, queries, keys);
  double pairs = 0, counted = 0;
  for (const auto& pass : compiled.passes) counted += pass.count_pairs();
  int errors = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    std::vector<VisitedPairs> visited, mirrored;
    for (const auto& pass : compiled.passes) {
      visited.emplace_back(pass, h, limit, 64);
      mirrored.emplace_back(pass.transposed(), h, limit, 48);
      pairs += visited.back().pairs();
    }
    for (std::int64_t i = 0; i < queries.count && errors < 5; ++i)
      for (std::int64_t j = 0; j < keys.count && errors < 5; ++j) {
        const std::int64_t at = queries.position(i), key = keys.position(j), m = expected(h, heads, at, key);
        double weight = 0, mirror = 0;
        for (const VisitedPairs& pass : visited) weight += pass.weight(i, j);
        for (const VisitedPairs& pass : mirrored) mirror += pass.weight(j, i);
        const auto wanted = static_cast<double>(m);
        if (std::abs(weight - wanted) < 1e-12 && std::abs(mirror - wanted) < 1e-12 &&
            pattern.multiplicity(h, heads, at, key) == m)
          continue;
        ++errors;
        ADD_FAILURE() << pattern.to_string() << " in tiles of " << limit << ": head " << h << " of " << heads
                      << ", query " << at << ", key " << key << " counts " << m << "; visited " << weight
                      << ", transposed " << mirror << ", multiplicity() " << pattern.multiplicity(h, heads, at, key);
      }
  }
  EXPECT_EQ(counted, pairs) << pattern.to_string();
}

}  // namespace poolgrad::attention::testing_support
