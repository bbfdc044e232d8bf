// The shared, immutable part of attention/pattern/pattern.h: the terms of a pattern besides its band.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/pattern/pattern.h"
#include "kernels/functors/attention_term.h"
#include "kernels/schedule/attention_schedule.h"

namespace poolgrad::attention {

using TermKind = kernels::AttentionTerm::Kind;
/// The begins of documents, and the end of the last one.
struct Boundaries {
  std::vector<std::int64_t> at;
  kernels::ListIdentity identity;
  friend bool operator==(const Boundaries&, const Boundaries&) = default;
};

/// Listed blocks in both directions, immutable since kernels point to them. One or more lists over block_rows x
/// block_columns blocks, one after another, as compressed rows and as compressed columns. Row b of list l is
/// columns[row_begin[l * (block_rows + 1) + b] .. row_begin[... + 1]), ascending.
struct BlockLists {
  std::int32_t lists = 0, block_rows = 0, block_columns = 0;
  std::int64_t positions = 0;  // of the queries they are made for; 0: those of all rows
  std::vector<std::int64_t> row_begin, column_begin;
  std::vector<std::int32_t> columns, rows;
  std::vector<std::int32_t> column_bitmap, row_bitmap;  // a number for each block; -1, or empty: all pairs count
  std::vector<std::uint64_t> bits;
  kernels::ListIdentity identity;

  friend bool operator==(const BlockLists&, const BlockLists&) = default;
};
/// Rows that a shorter list lacks see nothing. `bitmaps` has one number for each column of all lists, or is empty.
/// Throws ValueError if row_begin does not begin at 0, decreases or does not end at the end of columns, and if the
/// columns of a row are negative or do not ascend.
BlockLists make_block_lists(const std::vector<Pattern::BlockList>& lists, std::vector<std::int32_t> bitmaps = {});

/// Limit of segments, strides and other sizes: their products with strides of shards must not overflow.
inline constexpr std::int64_t max_size = std::int64_t{1} << 48;

/// A sum over groups; the terms of a group form a union. Without terms, every pair counts once.
struct PatternTerms {
  struct Term {
    kernels::AttentionTerm term;  // its pointers are set when schedules are made
    std::shared_ptr<const BlockLists> lists;
    friend bool operator==(const Term& a, const Term& b);
  };
  std::vector<Term> terms;  // by group
  std::shared_ptr<const Boundaries> documents;
  std::vector<std::int64_t> divisors;  // of lengths: the longest segments of branches that require it
  friend bool operator==(const PatternTerms& a, const PatternTerms& b);
};

/// Returns the term in the form of kernels; its pointers live as long as `term.lists`.
kernels::AttentionTerm with_lists(const PatternTerms::Term& term);

}  // namespace poolgrad::attention
