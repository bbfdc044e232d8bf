#include "attention/pattern/pattern.h"

#include <algorithm>

#include "allocator/error.h"
#include "attention/pattern/terms.h"

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

namespace {

std::string bound(std::int64_t value) { return value == Pattern::unbounded ? "unbounded" : std::to_string(value); }

std::string dilated(const kernels::AttentionTerm& term) {
  std::string lengths, rates;
  for (int b = 0; b < term.branches; ++b) {
    lengths += " " + std::to_string(term.segment_length[b]);
    rates += " " + std::to_string(term.dilation_rate[b]);
  }
  return "dilated(w" + lengths + ", r" + rates + (term.grouped ? ", grouped" : "") +
         (term.contiguous_offset ? ", contiguous" : "") + (term.unite ? ", united" : "") + ")";
}

std::string offsets(const kernels::AttentionTerm& term) {
  std::string text = "block_offsets(" + std::to_string(term.size);
  for (int s = 0; s < term.sets; ++s) {
    text += s == 0 ? ":" : " /";
    for (int n = term.set_begin[s]; n < term.set_begin[s + 1]; ++n) {
      text += " " + std::to_string(term.run[n].first);
      if (term.run[n].last > term.run[n].first) text += ".." + std::to_string(term.run[n].last);
      if (term.step > 1) text += " by " + std::to_string(term.step);
    }
  }
  return text + ")";
}

}  // namespace

std::string band_to_string(std::int64_t left, std::int64_t right) {
  if (left == Pattern::unbounded && right == Pattern::unbounded) return "dense";
  if (left == Pattern::unbounded && right == 0) return "causal";
  return "window(" + bound(left) + ", " + bound(right) + ")";
}

std::string to_string(const PatternTerms::Term& listed) {
  const kernels::AttentionTerm& term = listed.term;
  const std::string size = std::to_string(term.size);
  switch (term.kind) {
    case TermKind::all: return "dense";
    case TermKind::columns: return "columns(" + size + ")";
    case TermKind::rows: return "rows(" + size + ")";
    case TermKind::segment: return "segments(" + size + ")";
    case TermKind::residue: return "residues(" + size + ")";
    case TermKind::dilated: return dilated(term);
    case TermKind::offsets: return offsets(term);
    case TermKind::listed:
      return "blocks(" + size + ", " + std::to_string(listed.lists->lists) + " x " +
             std::to_string(listed.lists->block_rows) + " x " + std::to_string(listed.lists->block_columns) + ", " +
             std::to_string(listed.lists->columns.size()) + " listed)";
    case TermKind::random:
      return "random_blocks(" + size + ", density " + std::to_string(static_cast<double>(term.threshold) * 0x1p-53) +
             ", seed " + std::to_string(term.seed) + ")";
  }
  return {};
}

std::string Pattern::to_string() const {
  const std::string band = band_to_string(left_, right_);
  if (!terms_) return band;
  std::string text;
  bool composed = false;
  for (std::size_t n = 0; n < terms_->terms.size(); ++n) {
    const PatternTerms::Term& term = terms_->terms[n];
    const bool bare = term.term.left == unbounded && term.term.right == unbounded;
    const std::string own = band_to_string(term.term.left, term.term.right);
    if (n > 0) text += term.term.group == terms_->terms[n - 1].term.group ? " | " : " + ";
    if (n > 0) composed = true;
    text += term.term.kind == TermKind::all ? own
            : bare                          ? attention::to_string(term)
                                            : "(" + attention::to_string(term) + " & " + own + ")";
  }
  std::string whole = band == "dense" ? "" : band;
  if (terms_->documents)
    whole += (whole.empty() ? "" : " & ") + ("documents(" + std::to_string(terms_->documents->at.size() - 1) + ")");
  if (text.empty()) return whole.empty() ? band : whole;
  if (whole.empty()) return text;
  return (composed ? "(" + text + ")" : text) + " & " + whole;
}

}  // namespace poolgrad::attention
