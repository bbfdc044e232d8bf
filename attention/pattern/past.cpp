// Finds the earlier keys that later queries see: the keys that a sequence in chunks must keep.
#include <algorithm>

#include "attention/pattern/pattern.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

using Past = Pattern::Past;

/// Returns the first key that the query blocks from `block` on list, in any list; `none` if they list nothing.
std::int64_t first_listed(const BlockLists& lists, std::int64_t block, std::int64_t none) {
  std::int64_t first = none;
  for (std::int64_t l = 0; l < lists.lists; ++l)
    for (std::int64_t b = block; b < lists.block_rows; ++b) {
      const auto row = static_cast<std::size_t>(l * (lists.block_rows + 1) + b);
      if (lists.row_begin[row] < lists.row_begin[row + 1])
        first = std::min<std::int64_t>(first, lists.columns[static_cast<std::size_t>(lists.row_begin[row])]);
    }
  return first;
}

/// Returns the past of one term, without its band.
Past past_of(const PatternTerms::Term& listed, std::int64_t position) {
  const kernels::AttentionTerm& term = listed.term;
  const auto begin_of = [position](std::int64_t size) { return kernels::floor_div(position, size) * size; };
  switch (term.kind) {
    case TermKind::columns: return {std::min(term.size, position), position};
    case TermKind::rows: return {0, position < term.size ? 0 : position};
    case TermKind::segment: return {0, begin_of(term.size)};
    case TermKind::dilated: {
      std::int64_t first = position;
      for (int b = 0; b < term.branches; ++b) first = std::min(first, begin_of(term.segment_length[b]));
      return {0, first};
    }
    case TermKind::offsets: {
      std::int64_t nearest = 0;
      for (int n = 0; n < term.set_begin[term.sets]; ++n) nearest = std::min<std::int64_t>(nearest, term.run[n].first);
      return {0, begin_of(term.size) + nearest * term.size};
    }
    case TermKind::listed: {
      const std::int64_t block = kernels::floor_div(position, term.size);
      return {0, first_listed(*listed.lists, block, kernels::ceil_div(position, term.size)) * term.size};
    }
    case TermKind::all:
    case TermKind::residue:
    case TermKind::random: break;
  }
  return {};
}

/// Drops keys before `from`, for a band that moves on or a document that begins there. The first keys stay until `from`
/// is past all of them, so that there is at most one gap.
Past cut_before(const Past& past, std::int64_t from) {
  return from <= 0 || past.first >= from ? past : Past{0, std::max(past.recent, from)};
}

/// Returns the begin of a band that reaches `left` keys back.
std::int64_t reach_of(std::int64_t position, std::int64_t left) {
  return left == Pattern::unbounded ? 0 : position - left;
}

}  // namespace

Pattern::Past Pattern::past(std::int64_t position) const {
  Past all{0, terms_ && !terms_->terms.empty() ? position : 0};
  std::int64_t begin = 0;
  if (terms_) {
    for (const PatternTerms::Term& term : terms_->terms) {
      const Past one = cut_before(past_of(term, position), reach_of(position, term.term.left));
      all = {std::max(all.first, one.first), std::min(all.recent, one.recent)};
    }
    if (terms_->documents) {
      const std::vector<std::int64_t>& bounds = terms_->documents->at;
      const auto next = std::upper_bound(bounds.begin(), bounds.end(), position);
      begin = std::max(begin, next == bounds.end() ? position : *(next - 1));
    }
  }
  all = cut_before(cut_before(all, begin), reach_of(position, left_));
  all.recent = std::clamp<std::int64_t>(all.recent, 0, position);
  if (all.first >= all.recent && all.first > 0) return {0, 0};
  return all;
}

namespace {

/// Returns whether block `n` of the lists, on the diagonal, has a pair above the diagonal.
bool looks_ahead_within(const BlockLists& lists, std::size_t n, std::int64_t size) {
  const std::int32_t bitmap = lists.column_bitmap.empty() ? -1 : lists.column_bitmap[n];
  if (bitmap < 0) return size > 1;
  const std::uint64_t* const rows = lists.bits.data() + std::int64_t{bitmap} * size;
  for (std::int64_t row = 0; row + 1 < size; ++row)
    if (rows[row] >> (row + 1) != 0) return true;
  return false;
}

bool looks_ahead(const BlockLists& lists, std::int64_t size) {
  for (std::int64_t l = 0; l < lists.lists; ++l)
    for (std::int64_t b = 0; b < lists.block_rows; ++b) {
      const auto row = static_cast<std::size_t>(l * (lists.block_rows + 1) + b);
      if (lists.row_begin[row] == lists.row_begin[row + 1]) continue;
      const auto last = static_cast<std::size_t>(lists.row_begin[row + 1] - 1);
      if (lists.columns[last] > b || (lists.columns[last] == b && looks_ahead_within(lists, last, size))) return true;
    }
  return false;
}

}  // namespace

bool Pattern::looks_ahead() const {
  if (right_ == 0) return false;
  if (!terms_ || terms_->terms.empty()) return true;
  return std::any_of(terms_->terms.begin(), terms_->terms.end(), [](const PatternTerms::Term& term) {
    if (term.term.right == 0) return false;
    return !term.lists || attention::looks_ahead(*term.lists, term.term.size);
  });
}

std::int64_t Pattern::length() const {
  if (!terms_ || terms_->terms.empty()) return unbounded;
  std::int64_t longest = 0;
  for (const PatternTerms::Term& term : terms_->terms) {
    if (!term.lists) return unbounded;
    const BlockLists& lists = *term.lists;
    longest = std::max(longest, lists.positions > 0 ? lists.positions : lists.block_rows * term.term.size);
  }
  return longest;
}

}  // namespace poolgrad::attention
