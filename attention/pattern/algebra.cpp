#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

using Term = PatternTerms::Term;

const PatternTerms& parts_of(const std::shared_ptr<const PatternTerms>& terms) {
  static const PatternTerms none;
  return terms ? *terms : none;
}

bool same(const std::shared_ptr<const Boundaries>& a, const std::shared_ptr<const Boundaries>& b) {
  return a == b || (a && b && *a == *b);
}

/// Returns the boundaries of pairs that share a document in both.
std::shared_ptr<const Boundaries> both(const std::shared_ptr<const Boundaries>& a,
                                       const std::shared_ptr<const Boundaries>& b) {
  if (!b || same(a, b)) return a;
  if (!a) return b;
  const std::int64_t end = std::min(a->at.back(), b->at.back());
  std::vector<std::int64_t> result;
  std::set_union(a->at.begin(), a->at.end(), b->at.begin(), b->at.end(), std::back_inserter(result));
  result.erase(std::upper_bound(result.begin(), result.end(), end), result.end());
  return std::make_shared<const Boundaries>(Boundaries{std::move(result), {}});
}

/// Returns the terms, with the pattern's band as the band of each.
std::vector<Term> terms_with_band(const PatternTerms& parts, std::int64_t left, std::int64_t right) {
  std::vector<Term> terms = parts.terms;
  if (terms.empty()) terms.emplace_back();
  for (Term& term : terms) {
    term.term.left = std::min(term.term.left, left);
    term.term.right = std::min(term.term.right, right);
  }
  return terms;
}

/// Orders terms: terms that can be subtracted as intervals come first.
int rank(const Term& term) {
  switch (term.term.kind) {
    case TermKind::all: return 0;
    case TermKind::columns: return 1;
    case TermKind::rows: return 2;
    case TermKind::segment: return 3;
    case TermKind::offsets: return term.term.step == 1 ? 4 : 7;
    case TermKind::dilated: return 5;
    case TermKind::residue: return 6;
    case TermKind::listed: return 8;
    default: return 9;
  }
}

/// Returns whether a counts every pair that b counts, judged by their form.
bool contains(const Term& a, const Term& b) {
  Term widened = b;
  widened.term.left = a.term.left;
  widened.term.right = a.term.right;
  return b.term.left <= a.term.left && b.term.right <= a.term.right && (a.term.kind == TermKind::all || widened == a);
}

/// Returns one group of all terms, in the best order, without terms that another contains.
std::vector<Term> united(std::vector<Term> terms) {
  for (Term& term : terms) {
    term.term.group = 0;
    term.term.unite = term.term.kind == TermKind::dilated;
  }
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return rank(a) < rank(b); });
  std::vector<Term> result;
  for (const Term& term : terms) {
    const bool contained =
        std::any_of(result.begin(), result.end(), [&](const Term& other) { return contains(other, term); });
    if (contained) continue;
    std::erase_if(result, [&](const Term& other) { return contains(term, other); });
    result.push_back(term);
  }
  return result;
}

/// Returns the divisors of lengths that either side requires.
std::vector<std::int64_t> divisors_of(const PatternTerms& a, const PatternTerms& b) {
  std::vector<std::int64_t> divisors = a.divisors;
  for (const std::int64_t divisor : b.divisors)
    if (std::find(divisors.begin(), divisors.end(), divisor) == divisors.end()) divisors.push_back(divisor);
  return divisors;
}

/// The common part of | and +: documents belong to the result as a whole, and so does a band that is the same in both.
struct Join {
  struct Side {
    const Pattern& pattern;
    const PatternTerms& parts;
    std::int64_t left, right;
  };
  Join(const std::string& op, const Side& a, const Side& b) : whole(std::make_shared<PatternTerms>()) {
    if (!same(a.parts.documents, b.parts.documents))
      throw ValueError(
          fmt::format("[pattern] documents apply to a whole pattern, by &; the sides of {} differ in them: {} and {}",
                      op, a.pattern.to_string(), b.pattern.to_string()));
    whole->documents = a.parts.documents;
    whole->divisors = divisors_of(a.parts, b.parts);
    const bool common = a.left == b.left && a.right == b.right;
    constexpr std::int64_t none = Pattern::unbounded;
    if (common) left = a.left, right = a.right;
    first = terms_with_band(a.parts, common ? none : a.left, common ? none : a.right);
    second = terms_with_band(b.parts, common ? none : b.left, common ? none : b.right);
  }

  std::shared_ptr<PatternTerms> whole;
  std::vector<Term> first, second;
  std::int64_t left = Pattern::unbounded, right = Pattern::unbounded;
};

constexpr int max_groups = 1024;

}  // namespace

kernels::AttentionTerm with_lists(const Term& term) {
  kernels::AttentionTerm result = term.term;
  if (!term.lists) return result;
  result.lists = term.lists->lists;
  result.block_rows = term.lists->block_rows;
  result.block_columns = term.lists->block_columns;
  result.row_begin = term.lists->row_begin.data();
  result.column_begin = term.lists->column_begin.data();
  result.columns = term.lists->columns.data();
  result.rows = term.lists->rows.data();
  result.lists_identity = term.lists->identity.number();
  if (term.lists->bits.empty()) return result;
  result.column_bitmap = term.lists->column_bitmap.data();
  result.row_bitmap = term.lists->row_bitmap.data();
  result.bits = term.lists->bits.data();
  result.bitmaps = static_cast<std::int32_t>(term.lists->bits.size() / static_cast<std::size_t>(term.term.size));
  return result;
}

bool operator==(const Term& a, const Term& b) {
  return a.term == b.term && (a.lists == b.lists || (a.lists && b.lists && *a.lists == *b.lists));
}

bool operator==(const PatternTerms& a, const PatternTerms& b) {
  return a.terms == b.terms && a.divisors == b.divisors && same(a.documents, b.documents);
}

bool operator==(const Pattern& a, const Pattern& b) {
  return a.left_ == b.left_ && a.right_ == b.right_ &&
         (a.terms_ == b.terms_ || parts_of(a.terms_) == parts_of(b.terms_));
}

Pattern operator&(const Pattern& a, const Pattern& b) {
  const PatternTerms &x = parts_of(a.terms_), &y = parts_of(b.terms_);
  const std::int64_t left = std::min(a.left_, b.left_), right = std::min(a.right_, b.right_);
  if (!x.terms.empty() && !y.terms.empty())
    throw ValueError(
        fmt::format("[pattern] one side of & must be made of dense, causal, window and documents: {} and {}",
                    a.to_string(), b.to_string()));
  if (!a.terms_ && !b.terms_) return Pattern(left, right);
  auto terms = std::make_shared<PatternTerms>(x.terms.empty() ? y : x);
  terms->documents = both(x.documents, y.documents);
  terms->divisors = divisors_of(x, y);
  return Pattern(std::move(terms), left, right);
}

Pattern operator|(const Pattern& a, const Pattern& b) {
  Join join("|", {a, parts_of(a.terms_), a.left_, a.right_}, {b, parts_of(b.terms_), b.left_, b.right_});
  std::vector<Term> terms = std::move(join.first);
  terms.insert(terms.end(), join.second.begin(), join.second.end());
  terms = united(std::move(terms));
  if (terms.size() > kernels::AttentionSchedule::max_terms)
    throw ValueError(fmt::format("[pattern] a union has at most {} terms: {} and {}",
                                 int{kernels::AttentionSchedule::max_terms}, a.to_string(), b.to_string()));
  if (terms.size() == 1) {  // its band becomes that of the whole
    join.left = std::min(join.left, std::exchange(terms[0].term.left, Pattern::unbounded));
    join.right = std::min(join.right, std::exchange(terms[0].term.right, Pattern::unbounded));
    if (terms[0] == Term{}) terms.clear();
  }
  join.whole->terms = std::move(terms);
  return Pattern(std::move(join.whole), join.left, join.right);
}

Pattern operator+(const Pattern& a, const Pattern& b) {
  Join join("+", {a, parts_of(a.terms_), a.left_, a.right_}, {b, parts_of(b.terms_), b.left_, b.right_});
  const int groups = join.first.back().term.group + 1;
  std::vector<Term>& terms = join.whole->terms;
  terms = std::move(join.first);
  for (Term& term : join.second) {
    if (groups + term.term.group > max_groups)
      throw ValueError(fmt::format("[pattern] a sum has at most {} summands", max_groups));
    term.term.group = static_cast<std::int16_t>(term.term.group + groups);
    terms.push_back(std::move(term));
  }
  return Pattern(std::move(join.whole), join.left, join.right);
}

std::int64_t Pattern::multiplicity(std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) const {
  if (h < 0 || h >= heads) throw ValueError(fmt::format("[multiplicity] there is no head {} of {} heads", h, heads));
  if ((left_ != unbounded && j < i - left_) || (right_ != unbounded && j > i + right_)) return 0;
  const PatternTerms& parts = parts_of(terms_);
  if (parts.documents) {
    const std::vector<std::int64_t>& bounds = parts.documents->at;
    if (std::min(i, j) < bounds.front() || std::max(i, j) >= bounds.back()) return 0;
    const auto document = [&](std::int64_t at) { return std::upper_bound(bounds.begin(), bounds.end(), at); };
    if (document(i) != document(j)) return 0;
  }
  if (parts.terms.empty()) return 1;
  std::int64_t sum = 0, counted = -1;  // counted: the last group that counts
  for (const Term& term : parts.terms) {
    if (term.term.group == counted) continue;
    const std::int64_t m = with_lists(term).multiplicity(h, heads, i, j);
    sum += m;
    if (m > 0) counted = term.term.group;
  }
  return sum;
}

namespace {

std::string dilated(const kernels::AttentionTerm& term) {
  const auto branches = static_cast<std::size_t>(term.branches);
  return fmt::format("dilated(w {}, r {}{}{}{})", fmt::join(std::span(term.segment_length, branches), " "),
                     fmt::join(std::span(term.dilation_rate, branches), " "), term.grouped ? ", grouped" : "",
                     term.contiguous_offset ? ", contiguous" : "", term.unite ? ", united" : "");
}

std::string offsets(const kernels::AttentionTerm& term) {
  std::string text = fmt::format("block_offsets({}", term.size);
  for (int s = 0; s < term.sets; ++s) {
    text += s == 0 ? ":" : " /";
    for (int n = term.set_begin[s]; n < term.set_begin[s + 1]; ++n) {
      text += fmt::format(" {}", term.run[n].first);
      if (term.run[n].last > term.run[n].first) text += fmt::format("..{}", term.run[n].last);
      if (term.step > 1) text += fmt::format(" by {}", term.step);
    }
  }
  return text + ")";
}

/// "causal", "window(255, 0)"; "dense" without a band.
std::string band_to_string(std::int64_t left, std::int64_t right) {
  if (left == Pattern::unbounded && right == Pattern::unbounded) return "dense";
  if (left == Pattern::unbounded && right == 0) return "causal";
  const auto bound = [](std::int64_t value) {
    return value == Pattern::unbounded ? "unbounded" : std::to_string(value);
  };
  return fmt::format("window({}, {})", bound(left), bound(right));
}

/// "dilated(w 512 1024, r 1 2)"; leaves out the band of the term.
std::string term_to_string(const PatternTerms::Term& listed) {
  const kernels::AttentionTerm& term = listed.term;
  const std::int64_t size = term.size;
  switch (term.kind) {
    case TermKind::all: return "dense";
    case TermKind::columns: return fmt::format("columns({})", size);
    case TermKind::rows: return fmt::format("rows({})", size);
    case TermKind::segment: return fmt::format("segments({})", size);
    case TermKind::residue: return fmt::format("residues({})", size);
    case TermKind::dilated: return dilated(term);
    case TermKind::offsets: return offsets(term);
    case TermKind::listed:
      if (!listed.lists->bits.empty())
        return fmt::format("where({} x {} blocks of {}, {} seen, {} of them whole)", listed.lists->block_rows,
                           listed.lists->block_columns, size, listed.lists->columns.size(),
                           std::count(listed.lists->column_bitmap.begin(), listed.lists->column_bitmap.end(), -1));
      return fmt::format("blocks({}, {} x {} x {}, {} listed)", size, listed.lists->lists, listed.lists->block_rows,
                         listed.lists->block_columns, listed.lists->columns.size());
    case TermKind::random:
      return fmt::format("random_blocks({}, density {:f}, seed {})", size,
                         static_cast<double>(term.threshold) * 0x1p-53, term.seed);
  }
  return {};
}

}  // namespace

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
            : bare                          ? term_to_string(term)
                                            : "(" + term_to_string(term) + " & " + own + ")";
  }
  std::string whole = band == "dense" ? "" : band;
  if (terms_->documents)
    whole += fmt::format("{}documents({})", whole.empty() ? "" : " & ", terms_->documents->at.size() - 1);
  if (text.empty()) return whole.empty() ? band : whole;
  if (whole.empty()) return text;
  return (composed ? "(" + text + ")" : text) + " & " + whole;
}

}  // namespace poolgrad::attention
