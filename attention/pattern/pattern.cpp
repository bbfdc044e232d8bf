#include "attention/pattern/pattern.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

using kernels::AttentionTerm;

/// Returns a term of columns, rows, blocks, ... of a size, without a band.
PatternTerms::Term term_of(TermKind kind, std::int64_t size) {
  PatternTerms::Term result;
  result.term.kind = kind;
  result.term.size = size;
  return result;
}

/// Returns the union of terms.
std::shared_ptr<const PatternTerms> pattern_of(std::vector<PatternTerms::Term> terms) {
  auto result = std::make_shared<PatternTerms>();
  result->terms = std::move(terms);
  return result;
}

void check_size(const char* op, const char* what, std::int64_t size, std::int64_t least) {
  if (size < least || size > max_size) throw ValueError(fmt::format("[{}] {} is out of range: {}", op, what, size));
}

}  // namespace

Pattern Pattern::dense() { return {unbounded, unbounded}; }

Pattern Pattern::causal() { return {unbounded, 0}; }

Pattern Pattern::window(std::int64_t left, std::int64_t right) {
  if (left < 0 || right < 0)
    throw ValueError(fmt::format("[window] bounds must not be negative: left {}, right {}", left, right));
  const auto bound = [](std::int64_t value) { return value > kernels::far_away / 2 ? unbounded : value; };
  return {bound(left), bound(right)};
}

Pattern Pattern::documents(std::vector<std::int64_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0)
    throw ValueError("[documents] cu_seqlens must begin with 0" +
                     (cu_seqlens.empty() ? ": it is empty" : fmt::format(": it begins with {}", cu_seqlens.front())));
  const auto descent = std::is_sorted_until(cu_seqlens.begin(), cu_seqlens.end());
  if (descent != cu_seqlens.end())
    throw ValueError(fmt::format("[documents] cu_seqlens decreases: {}, {}", *(descent - 1), *descent));
  check_size("documents", "the end of the last document", cu_seqlens.back(), 0);
  if (cu_seqlens.size() > std::size_t{1} << 31)
    throw ValueError(fmt::format("[documents] there are more than 2^31 - 1 documents: {}", cu_seqlens.size() - 1));
  auto terms = std::make_shared<PatternTerms>();
  terms->documents = std::make_shared<const Boundaries>(Boundaries{std::move(cu_seqlens), {}});
  return Pattern(std::move(terms));
}

Pattern Pattern::sink_tokens(std::int64_t count) {
  check_size("sink_tokens", "the number of tokens", count, 0);
  return Pattern(pattern_of({term_of(TermKind::columns, count)}));
}

Pattern Pattern::global_tokens(std::int64_t count, bool rows) {
  check_size("global_tokens", "the number of tokens", count, 0);
  if (!rows) return sink_tokens(count);
  return Pattern(pattern_of({term_of(TermKind::columns, count), term_of(TermKind::rows, count)}));
}

Pattern Pattern::strided(std::int64_t stride) {
  check_size("strided", "the stride", stride, 1);
  return window(stride - 1, stride - 1) | Pattern(pattern_of({term_of(TermKind::residue, stride)}));
}

Pattern Pattern::axial(std::int64_t width) {
  check_size("axial", "the width", width, 1);
  return Pattern(pattern_of({term_of(TermKind::segment, width), term_of(TermKind::residue, width)}));
}

void Pattern::check_length(std::int64_t length) const {
  if (!terms_) return;
  for (const std::int64_t divisor : terms_->divisors)
    if (length % divisor != 0)
      throw ValueError(
          fmt::format("[dilated] length {} is not a multiple of the longest segment {}; the next multiple is: {}",
                      length, divisor, kernels::ceil_div(length, divisor) * divisor));
}

namespace {

void check(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& rates) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(fmt::format("[dilated] {}: segment lengths ({}), dilation rates ({})", reason,
                                 fmt::join(lengths, ", "), fmt::join(rates, ", ")));
  };
  if (lengths.empty() && rates.empty()) refuse("there is no branch");
  if (lengths.size() != rates.size()) refuse("there must be as many segment lengths as dilation rates");
  if (lengths.size() > AttentionTerm::max_branches)
    refuse(fmt::format("there are more than {} branches", int{AttentionTerm::max_branches}));
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 1 || rates[b] < 1) refuse("segment lengths and dilation rates must be positive");
    if (lengths[b] > max_size) refuse("a segment is too long");
    if (rates[b] > lengths[b]) refuse("a dilation rate is larger than its segment");
  }
}

/// Returns whether every branch refines the next, and shells pay off: LongNet's configurations.
bool is_nested(const AttentionTerm& term) {
  for (int b = 0; b < term.branches; ++b) {
    const std::int64_t w = term.segment_length[b], r = term.dilation_rate[b];
    if (w % r != 0) return false;
    if (b > 0 && (w % term.segment_length[b - 1] != 0 || r % term.dilation_rate[b - 1] != 0)) return false;
  }
  const std::int64_t period = term.dilation_rate[term.branches - 1];
  return period <= kernels::AttentionTerm::max_period && (period <= 16 || 16 * period <= term.segment_length[0]);
}

}  // namespace

Pattern Pattern::dilated(std::vector<std::int64_t> segment_lengths, std::vector<std::int64_t> dilation_rates,
                         const DilatedOptions& options) {
  check(segment_lengths, dilation_rates);
  PatternTerms::Term result;
  AttentionTerm& term = result.term;
  term.kind = TermKind::dilated;
  term.branches = static_cast<std::int32_t>(segment_lengths.size());
  term.grouped = options.mode == DilatedMode::grouped;
  term.contiguous_offset = !term.grouped && options.offset == DilatedOffset::contiguous;
  term.unite = options.unite;
  std::vector<std::size_t> order(segment_lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!term.grouped)  // the sum does not depend on h
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(segment_lengths[a], dilation_rates[a]) < std::pair(segment_lengths[b], dilation_rates[b]);
    });
  for (std::size_t b = 0; b < order.size(); ++b) {
    term.segment_length[b] = segment_lengths[order[b]];
    term.dilation_rate[b] = dilation_rates[order[b]];
  }
  term.nested = !term.grouped && !term.contiguous_offset && is_nested(term);

  auto terms = std::make_shared<PatternTerms>();
  terms->terms.push_back(std::move(result));
  if (options.require_divisible)
    terms->divisors.push_back(*std::max_element(segment_lengths.begin(), segment_lengths.end()));
  return Pattern(std::move(terms));
}

namespace {

/// A divisor of every kernel's tile size.
constexpr std::int64_t granularity = 16;
/// The largest block offset that terms can hold.
constexpr std::int64_t farthest_block = std::int64_t{1} << 30;

void check_block(const char* op, std::int64_t block) {
  if (block < 1 || block % granularity != 0 || block > std::int64_t{1} << 30)
    throw ValueError(
        fmt::format("[{}] block must be a positive multiple of {}, at most 2^30: {}", op, granularity, block));
}

}  // namespace

Pattern Pattern::block_offsets(std::int64_t block, std::vector<std::int64_t> offsets) {
  return block_offsets(block, std::vector<std::vector<std::int64_t>>{std::move(offsets)});
}

Pattern Pattern::block_offsets(std::int64_t block, std::vector<std::vector<std::int64_t>> offsets) {
  check_block("block_offsets", block);
  if (offsets.empty() || offsets.size() > AttentionTerm::max_sets)
    throw ValueError(
        fmt::format("[block_offsets] there must be 1 to {} lists: {}", int{AttentionTerm::max_sets}, offsets.size()));
  PatternTerms::Term result = term_of(TermKind::offsets, block);
  AttentionTerm& term = result.term;
  term.sets = static_cast<std::int32_t>(offsets.size());
  int runs = 0;
  for (std::size_t s = 0; s < offsets.size(); ++s) {
    std::vector<std::int64_t>& list = offsets[s];
    if (list.empty()) throw ValueError(fmt::format("[block_offsets] list {} has no offset", s));
    std::sort(list.begin(), list.end());
    if (list.front() < -farthest_block || list.back() > farthest_block)
      throw ValueError(
          fmt::format("[block_offsets] an offset is out of range: {}", list.front() < 0 ? list.front() : list.back()));
    for (std::size_t n = 0; n < list.size(); ++n) {
      const auto offset = static_cast<std::int32_t>(list[n]);
      if (n > 0 && list[n] <= list[n - 1] + 1) {
        term.run[runs - 1].last = offset;
        continue;
      }
      if (runs == AttentionTerm::max_runs)
        throw ValueError(fmt::format("[block_offsets] there are more than {} runs of neighbouring offsets",
                                     int{AttentionTerm::max_runs}));
      term.run[runs++] = {offset, offset};
    }
    term.set_begin[s + 1] = static_cast<std::int16_t>(runs);
  }
  return Pattern(pattern_of({std::move(result)}));
}

Pattern Pattern::dilated_sparse(std::int64_t block, std::vector<std::int64_t> rates) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t rate : rates) {
    if (rate < 1) throw ValueError(fmt::format("[dilated_sparse] rates must be positive: {}", rate));
    offsets.push_back(rate);
    offsets.push_back(-rate);
  }
  return block_offsets(block, std::move(offsets));
}

Pattern Pattern::local_window(std::int64_t block, std::int64_t window) {
  check_block("local_window", block);
  if (window < 0 || window / block / 2 > farthest_block)
    throw ValueError(fmt::format("[local_window] the window is out of range: {}", window));
  return spaced_blocks(block, 1, window / block / 2);
}

Pattern Pattern::spaced_blocks(std::int64_t block, std::int64_t step, std::int64_t reach) {
  check_block("spaced_blocks", block);
  if (step < 1 || reach < 0)
    throw ValueError(fmt::format(
        "[spaced_blocks] the step must be at least 1 and the reach not negative: step {}, reach {}", step, reach));
  if (reach != unbounded && reach > farthest_block)
    throw ValueError(fmt::format("[spaced_blocks] the reach must be unbounded or at most 2^30 blocks: {}", reach));
  const std::int64_t steps = std::min(reach, farthest_block) / step;
  PatternTerms::Term result = term_of(TermKind::offsets, block);
  result.term.sets = 1;
  result.term.set_begin[1] = 1;
  result.term.step = steps == 0 ? 1 : static_cast<std::int32_t>(step);
  result.term.run[0] = {static_cast<std::int32_t>(-steps * step), static_cast<std::int32_t>(steps * step)};
  return Pattern(pattern_of({std::move(result)}));
}

Pattern Pattern::global_local(std::int64_t block, std::int64_t window, std::int64_t count) {
  return local_window(block, window) | global_tokens(count);
}

Pattern Pattern::random_blocks(std::int64_t block, double density, std::uint64_t seed) {
  check_block("random_blocks", block);
  if (!(density > 0.0 && density <= 1.0))
    throw ValueError(fmt::format("[random_blocks] density must be in (0, 1]: {:f}", density));
  PatternTerms::Term result = term_of(TermKind::random, block);
  result.term.seed = seed;
  result.term.threshold = static_cast<std::uint64_t>(std::ldexp(density, 53));
  return Pattern(pattern_of({std::move(result)}));
}

namespace {

void check(std::size_t number, const Pattern::BlockList& list) {
  const auto& [row_begin, columns] = list;
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(fmt::format("[blocks] list {}: {}", number, reason));
  };
  if (row_begin.empty() || row_begin.front() != 0) refuse("row_begin does not begin with 0");
  for (std::size_t b = 1; b < row_begin.size(); ++b)
    if (row_begin[b] < row_begin[b - 1])
      refuse(fmt::format("row_begin decreases: {}, {} at row {}", row_begin[b - 1], row_begin[b], b - 1));
  if (static_cast<std::size_t>(row_begin.back()) != columns.size())
    refuse(fmt::format("row_begin ends at {}, but there are {} columns", row_begin.back(), columns.size()));
  for (std::size_t b = 0; b + 1 < row_begin.size(); ++b) {
    std::int32_t before = -1;
    for (auto n = static_cast<std::size_t>(row_begin[b]); n < static_cast<std::size_t>(row_begin[b + 1]); ++n) {
      if (columns[n] <= before)
        refuse(fmt::format("the columns of row {} must ascend from 0: {}{}", b, columns[n],
                           before < 0 ? "" : fmt::format(" after {}", before)));
      before = columns[n];
    }
  }
}

}  // namespace

BlockLists make_block_lists(const std::vector<Pattern::BlockList>& lists, std::vector<std::int32_t> bitmaps) {
  BlockLists result;
  result.lists = static_cast<std::int32_t>(lists.size());
  for (std::size_t l = 0; l < lists.size(); ++l) {
    const auto& [row_begin, columns] = lists[l];
    check(l, lists[l]);
    result.block_rows = std::max(result.block_rows, static_cast<std::int32_t>(row_begin.size() - 1));
    for (const std::int32_t column : columns) {
      if (column == std::numeric_limits<std::int32_t>::max())
        throw ValueError(fmt::format("[blocks] column {} is too large", column));
      result.block_columns = std::max(result.block_columns, column + 1);
    }
    result.columns.insert(result.columns.end(), columns.begin(), columns.end());
  }
  result.rows.resize(result.columns.size());
  result.row_bitmap.resize(bitmaps.size());
  result.column_bitmap = std::move(bitmaps);
  std::int64_t first = 0;
  std::vector<std::int64_t> next(static_cast<std::size_t>(result.block_columns) + 1);
  for (const auto& [row_begin, columns] : lists) {
    for (std::size_t b = 0; b <= static_cast<std::size_t>(result.block_rows); ++b)
      result.row_begin.push_back(first + row_begin[std::min(b, row_begin.size() - 1)]);
    // Counts columns, then fills them in the order of rows.
    std::fill(next.begin(), next.end(), 0);
    for (const std::int32_t column : columns) ++next[static_cast<std::size_t>(column) + 1];
    next[0] = first;
    for (std::size_t c = 1; c < next.size(); ++c) next[c] += next[c - 1];
    result.column_begin.insert(result.column_begin.end(), next.begin(), next.end());
    for (std::size_t b = 0; b + 1 < row_begin.size(); ++b)
      for (auto n = static_cast<std::size_t>(row_begin[b]); n < static_cast<std::size_t>(row_begin[b + 1]); ++n) {
        const auto at = static_cast<std::size_t>(next[static_cast<std::size_t>(columns[n])]++);
        result.rows[at] = static_cast<std::int32_t>(b);
        if (!result.row_bitmap.empty())
          result.row_bitmap[at] = result.column_bitmap[static_cast<std::size_t>(first) + n];
      }
    first += static_cast<std::int64_t>(columns.size());
  }
  return result;
}

Pattern Pattern::blocks(std::int64_t block, std::vector<std::int32_t> row_begin, std::vector<std::int32_t> columns) {
  return blocks(block, std::vector{BlockList{std::move(row_begin), std::move(columns)}});
}

Pattern Pattern::blocks(std::int64_t block, std::vector<BlockList> lists) {
  check_block("blocks", block);
  if (lists.empty()) throw ValueError("[blocks] there is no list");
  PatternTerms::Term result = term_of(TermKind::listed, block);
  result.lists = std::make_shared<const BlockLists>(make_block_lists(lists));
  return Pattern(pattern_of({std::move(result)}));
}

Pattern Pattern::block_bitmap(std::int64_t block, std::int64_t key_blocks, const std::vector<bool>& bitmap) {
  check_block("block_bitmap", block);
  if (key_blocks < 1 || bitmap.size() % static_cast<std::size_t>(key_blocks) != 0)
    throw ValueError(fmt::format("[block_bitmap] {} blocks are not rows of {}", bitmap.size(), key_blocks));
  std::vector<std::int32_t> row_begin{0}, columns;
  for (std::size_t n = 0; n < bitmap.size(); ++n) {
    const auto column = static_cast<std::int64_t>(n) % key_blocks;
    if (bitmap[n]) columns.push_back(static_cast<std::int32_t>(column));
    if (column == key_blocks - 1) row_begin.push_back(static_cast<std::int32_t>(columns.size()));
  }
  return blocks(block, std::move(row_begin), std::move(columns));
}

}  // namespace poolgrad::attention
