// Every kind of term, alone and combined, with the multiplicity of each pair.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels::testing {

using Kind = AttentionTerm::Kind;

/// Sums the terms of different groups, takes the union within a group, and applies the band.
inline Multiplicity of_terms(const AttentionSchedule& s) {
  return [s, inside = band(s)](std::int64_t h, std::int64_t i, std::int64_t j) {
    double count = 0;
    for (int t = 0; t < s.term_count; ++t) {
      bool earlier = false;
      for (int e = 0; e < t; ++e)
        earlier |= s.term[e].group == s.term[t].group && s.term[e].multiplicity(h, s.heads, i, j) > 0;
      if (!earlier && s.term[t].visited) count += static_cast<double>(s.term[t].multiplicity(h, s.heads, i, j));
    }
    return inside(h, i, j) * count;
  };
}

inline AttentionTerm dilated(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& rates,
                             bool nested) {
  AttentionTerm term;
  term.kind = Kind::dilated;
  term.nested = nested;
  term.branches = static_cast<std::int32_t>(rates.size());
  std::copy(lengths.begin(), lengths.end(), term.segment_length);
  std::copy(rates.begin(), rates.end(), term.dilation_rate);
  return term;
}
inline AttentionTerm of_kind(Kind kind, std::int64_t size, std::int16_t group = 0) {
  AttentionTerm term;
  term.kind = kind;
  term.size = size;
  term.group = group;
  return term;
}
inline AttentionTerm offsets(std::int64_t block, const std::vector<AttentionTerm::OffsetRun>& runs) {
  AttentionTerm term = of_kind(Kind::offsets, block);
  term.sets = 1;
  term.set_begin[1] = static_cast<std::int16_t>(runs.size());
  std::copy(runs.begin(), runs.end(), term.run);
  return term;
}

struct Named {
  const char* name;
  std::vector<AttentionTerm> terms;
  std::int64_t modulus = 1, cut = 0;
};

inline std::vector<Named> patterns() {
  AttentionTerm united = dilated({16, 32, 64}, {1, 2, 4}, false), random = of_kind(Kind::random, 16);
  united.unite = true;
  random.seed = 7;
  random.threshold = std::uint64_t{1} << 51;
  return {
      {"nested branches", {dilated({16, 32, 64}, {1, 2, 4}, true)}, 4, 16},
      {"branches that are not nested", {dilated({12, 24}, {4, 6}, false)}, 12},
      {"united branches", {united}, 4},
      {"phases that begin anew with a segment", {dilated({10, 7}, {4, 3}, false)}, 12},
      {"block offsets", {offsets(16, {{-4, -4}, {-2, 2}, {4, 4}})}, 1, 16},
      {"random blocks", {random}, 1, 16},
      {"axial", {of_kind(Kind::segment, 12), of_kind(Kind::residue, 12)}, 12},
      {"sum of a segment and columns", {of_kind(Kind::segment, 20), of_kind(Kind::columns, 5, 1)}},
      {"global rows and columns", {of_kind(Kind::columns, 9), of_kind(Kind::rows, 9), offsets(16, {{-1, 1}})}, 1, 16}};
}

inline BackwardExample example(const Named& pattern, PositionMap queries, PositionMap keys, bool causal) {
  BackwardExample e;
  e.q_heads = e.schedule.heads = 4;
  e.kv_heads = 2;
  e.schedule.queries = queries;
  e.schedule.keys = keys;
  e.schedule.right = causal ? 0 : unbounded;
  e.schedule.modulus = pattern.modulus;
  e.schedule.cut = pattern.cut;
  e.schedule.term_count = static_cast<std::int32_t>(pattern.terms.size());
  std::copy(pattern.terms.begin(), pattern.terms.end(), e.schedule.term);
  e.multiplicity = of_terms(e.schedule);
  return e;
}

/// Two lists of blocks of 16, over 5 block rows and 6 block columns; heads alternate. Row 3 of the first list is empty.
class ListedBlocks {
 public:
  ListedBlocks() {
    for (std::int64_t l = 0; l < lists; ++l) {
      const std::int64_t* begin = row_begin_.data() + l * (block_rows + 1);
      for (std::int32_t c = 0; c < block_columns; ++c) {
        column_begin_.push_back(static_cast<std::int64_t>(rows_.size()));
        for (std::int32_t r = 0; r < block_rows; ++r)
          for (std::int64_t n = begin[r]; n < begin[r + 1]; ++n)
            if (columns_[static_cast<std::size_t>(n)] == c) rows_.push_back(r);
      }
      column_begin_.push_back(static_cast<std::int64_t>(rows_.size()));
    }
  }
  /// Valid as long as this object.
  AttentionTerm term() const {
    AttentionTerm term = of_kind(Kind::listed, 16);
    term.lists = lists;
    term.block_rows = block_rows;
    term.block_columns = block_columns;
    term.row_begin = row_begin_.data();
    term.columns = columns_.data();
    term.column_begin = column_begin_.data();
    term.rows = rows_.data();
    return term;
  }

 private:
  static constexpr std::int32_t block_rows = 5, block_columns = 6, lists = 2;
  std::vector<std::int64_t> row_begin_{0, 2, 3, 5, 5, 8, 8, 9, 11, 12, 13, 14}, column_begin_;
  std::vector<std::int32_t> columns_{0, 1, 3, 2, 5, 0, 3, 4, 1, 0, 5, 2, 3, 4}, rows_;
};

}  // namespace poolgrad::kernels::testing
