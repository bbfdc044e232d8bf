#include "attention/pattern.h"
#include "attention/pattern_terms.h"

namespace poolgrad::attention {

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
