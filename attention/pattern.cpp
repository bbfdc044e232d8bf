#include "attention/pattern.h"

#include <algorithm>

#include "allocator/error.h"
#include "attention/pattern_terms.h"

namespace poolgrad::attention {

namespace {

/// Terms that are united.
std::shared_ptr<const PatternTerms> pattern_of(std::vector<PatternTerms::Term> terms) {
  auto result = std::make_shared<PatternTerms>();
  result->terms = std::move(terms);
  return result;
}

void check_size(const char* op, const char* what, std::int64_t size, std::int64_t least) {
  if (size < least || size > max_size)
    throw ValueError("[" + std::string(op) + "] " + what + " is out of range: " + std::to_string(size));
}

}  // namespace

PatternTerms::Term term_of(TermKind kind, std::int64_t size) {
  PatternTerms::Term result;
  result.term.kind = kind;
  result.term.size = size;
  return result;
}

Pattern Pattern::dense() { return {unbounded, unbounded}; }

Pattern Pattern::causal() { return {unbounded, 0}; }

Pattern Pattern::window(std::int64_t left, std::int64_t right) {
  if (left < 0 || right < 0)
    throw ValueError("[window] bounds must not be negative: left " + std::to_string(left) + ", right " +
                     std::to_string(right));
  const auto bound = [](std::int64_t value) { return value > kernels::far_away / 2 ? unbounded : value; };
  return {bound(left), bound(right)};
}

Pattern Pattern::documents(std::vector<std::int64_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0)
    throw ValueError("[documents] cu_seqlens must begin with 0" +
                     (cu_seqlens.empty() ? ": it is empty" : ": it begins with " + std::to_string(cu_seqlens.front())));
  const auto descent = std::is_sorted_until(cu_seqlens.begin(), cu_seqlens.end());
  if (descent != cu_seqlens.end())
    throw ValueError("[documents] cu_seqlens decreases: " + std::to_string(*(descent - 1)) + ", " +
                     std::to_string(*descent));
  check_size("documents", "the end of the last document", cu_seqlens.back(), 0);
  if (cu_seqlens.size() > std::size_t{1} << 31)
    throw ValueError("[documents] there are more than 2^31 - 1 documents: " + std::to_string(cu_seqlens.size() - 1));
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
      throw ValueError("[dilated] length " + std::to_string(length) + " is not a multiple of the longest segment " +
                       std::to_string(divisor) +
                       "; the next that is: " + std::to_string(kernels::ceil_div(length, divisor) * divisor));
}

}  // namespace poolgrad::attention
