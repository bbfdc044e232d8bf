// Compares the visits of a compiled pattern with its definition.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/pattern/pattern.h"
#include "tests/attention/oracle_patterns.h"
#include "tests/kernels/attention/schedule_pairs.h"

namespace poolgrad::attention::testing_support {

using oracle::Multiplicity;

/// Definitions with the parameters of Pattern's functions.
namespace definition {

using oracle::axial, oracle::block_offsets, oracle::blocks, oracle::both, oracle::documents, oracle::either,
    oracle::strided, oracle::sum;

inline Multiplicity window(std::int64_t left, std::int64_t right) {
  return oracle::window(left == Pattern::unbounded ? -1 : left, right == Pattern::unbounded ? -1 : right);
}
inline Multiplicity global_tokens(std::int64_t count, bool rows) {
  return rows ? either(oracle::first_keys(count), oracle::first_queries(count)) : oracle::first_keys(count);
}
inline Multiplicity dilated(const std::vector<std::int64_t>& w, const std::vector<std::int64_t>& r,
                            const DilatedOptions& options = {}) {
  const Multiplicity branches = options.mode == DilatedMode::grouped
                                    ? oracle::grouped(w, r)
                                    : oracle::longnet(w, r, options.offset == DilatedOffset::contiguous);
  return options.unite ? oracle::united(branches) : branches;
}

}  // namespace definition

/// Checks that the passes of the pattern together visit the pairs of `expected`, as do their transpositions, in tiles
/// of `limit` rows. multiplicity() must agree.
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
