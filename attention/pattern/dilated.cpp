#include <algorithm>
#include <numeric>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

using kernels::AttentionTerm;

std::string list(const std::vector<std::int64_t>& values) {
  std::string text = "(";
  for (const std::int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + ")";
}

void check(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& rates) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError("[dilated] " + reason + ": segment lengths " + list(lengths) + ", dilation rates " + list(rates));
  };
  if (lengths.empty() && rates.empty()) refuse("there is no branch");
  if (lengths.size() != rates.size()) refuse("there must be as many segment lengths as dilation rates");
  if (lengths.size() > AttentionTerm::max_branches)
    refuse("there are more than " + std::to_string(AttentionTerm::max_branches) + " branches");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 1 || rates[b] < 1) refuse("segment lengths and dilation rates must be positive");
    if (lengths[b] > max_size) refuse("a segment is too long");
    if (rates[b] > lengths[b]) refuse("a dilation rate is larger than its segment, which some heads would find empty");
  }
}

/// Whether every branch refines the next, and shells pay: LongNet's configurations.
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
  if (!term.grouped)  // the sum does not depend on it
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

}  // namespace poolgrad::attention
