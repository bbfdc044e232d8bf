// What a pattern is made of beyond its band: the shared, immutable part of attention/pattern/pattern.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/pattern/pattern.h"
#include "kernels/definition/attention_term.h"
#include "kernels/schedule/attention_schedule.h"

namespace poolgrad::attention {

using TermKind = kernels::AttentionTerm::Kind;
/// Where documents begin, and the last one ends.
struct Boundaries {
  std::vector<std::int64_t> at;
  kernels::ListIdentity identity;
  friend bool operator==(const Boundaries&, const Boundaries&) = default;
};

/// Listed blocks in both directions, which kernels are pointed to: made once, never changed. One or more lists over
/// block_rows x block_columns blocks, one after another, as compressed rows and as compressed columns. Row b of list l
/// is columns[row_begin[l * (block_rows + 1) + b] .. row_begin[... + 1]), ascending.
struct BlockLists {
  std::int32_t lists = 0, block_rows = 0, block_columns = 0;
  std::int64_t positions = 0;  // of queries that they are made for; 0: those of all rows
  std::vector<std::int64_t> row_begin, column_begin;
  std::vector<std::int32_t> columns, rows;
  std::vector<std::int32_t> column_bitmap, row_bitmap;  // which says what counts in a block; -1, or empty: all of it
  std::vector<std::uint64_t> bits;
  kernels::ListIdentity identity;

  friend bool operator==(const BlockLists&, const BlockLists&) = default;
};
/// Lists shorter than the longest see nothing in the rows that they lack; `bitmaps` has one number for each column of
/// all lists, or none. Throws ValueError where row_begin does not begin at 0, decreases or ends elsewhere than at the
/// end of columns, or where the columns of a row are negative or do not ascend.
BlockLists make_block_lists(const std::vector<Pattern::BlockList>& lists, std::vector<std::int32_t> bitmaps = {});

/// Of segments, strides and the like: their multiples by strides of shards stay far from overflow.
inline constexpr std::int64_t max_size = std::int64_t{1} << 48;

/// A sum over groups; the terms of a group are united. No term stands for every pair once.
struct PatternTerms {
  struct Term {
    kernels::AttentionTerm term;  // its pointers are set where schedules are made
    std::shared_ptr<const BlockLists> lists;
    friend bool operator==(const Term& a, const Term& b);
  };
  std::vector<Term> terms;  // by group
  std::shared_ptr<const Boundaries> documents;
  std::vector<std::int64_t> divisors;  // of lengths: the longest segments of branches that require it
  friend bool operator==(const PatternTerms& a, const PatternTerms& b);
};

/// The term as kernels want it; its pointers live as long as `term.lists`.
kernels::AttentionTerm with_lists(const PatternTerms::Term& term);

}  // namespace poolgrad::attention
