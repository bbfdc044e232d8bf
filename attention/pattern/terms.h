// What a pattern is made of beyond its band: the shared, immutable part of attention/pattern/pattern.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/pattern/block_list.h"
#include "kernels/schedule/attention_schedule.h"

namespace poolgrad::attention {

using TermKind = kernels::AttentionTerm::Kind;
/// Where documents begin, and the last one ends.
struct Boundaries {
  std::vector<std::int64_t> at;
  kernels::ListIdentity identity;
  friend bool operator==(const Boundaries&, const Boundaries&) = default;
};

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

/// A term of all columns, rows, blocks, ... of a size, with no band.
PatternTerms::Term term_of(TermKind kind, std::int64_t size);
/// The term as kernels want it; its pointers live as long as `term.lists`.
kernels::AttentionTerm with_lists(const PatternTerms::Term& term);
/// "dilated(w 512 1024, r 1 2)"; the band of the term is left out.
std::string to_string(const PatternTerms::Term& term);
/// "causal", "window(255, 0)"; "dense" where there is none.
std::string band_to_string(std::int64_t left, std::int64_t right);

}  // namespace poolgrad::attention
